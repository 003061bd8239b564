"""Data stores of pictures in folders."""

import os
import shutil
from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch

from ekya.core.errors import UserError
from ekya.fleet.policy.assignment import Assignment, Part
from ekya.fleet.policy.names import JobName, NodeName, SiteName
from ekya.fleet.run.deep_edge import folder_store
from ekya.fleet.run.deep_edge.folder_store import read_stores
from ekya.fleet.run.deep_edge.store import Trigger
from ekya.fleet.run.training.protocol import Trained
from ekya.models.edge.checkpoints import from_bytes, save_model, to_bytes
from ekya.models.edge.model import build_edge_model

EAST, WEST = NodeName("east"), NodeName("west")
SPREAD = Assignment(
    JobName("cam"), (Part(EAST, chunks=8), Part(WEST, chunks=8)), "as it is", WEST, mode="asynchronous"
)


def pictures(root, **counts):
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for number in range(count):
            image = np.full((20, 30, 3), 10 * number, np.uint8)
            cv2.imwrite(str(root / name / f"{number:03d}.png"), image)


def described(folder, text):
    (folder / "stores.yaml").write_text(f"stores: {{cam: {{{text}}}}}")
    return folder / "stores.yaml"


def same(weights, model):
    ours, theirs = from_bytes(weights).state_dict(), model.state_dict()
    return all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())


@pytest.fixture
def folder(tmp_path):
    pictures(tmp_path / "east", car=10, bus=5)
    pictures(tmp_path / "west", car=5)
    return tmp_path


BOTH = "samples: {east: east, west: west}, out: cam.safetensors, model: mobilenet_v3_small, side: 16"


def test_pictures_train_where_they_lie_and_a_fifth_of_each_class_validates(folder) -> None:
    store = read_stores(described(folder, BOTH))["cam"]
    assert store.classes == ("bus", "car")
    job = store.job()
    assert job.chunks == {SiteName("east"): 12, SiteName("west"): 4}
    task = store.task(SPREAD)
    assert {node: len(crops) for node, crops in task.training.items()} == {EAST: 12, WEST: 4}
    assert len(task.validation) == 4
    assert task.validation.side == 16
    tracks = [crops.tracks for crops in (*task.training.values(), task.validation)]
    assert len(np.unique(np.concatenate(tracks))) == 20
    assert (task.home, task.mode) == (WEST, "asynchronous")
    assert store.task(replace(SPREAD, mode="synchronous")).mode == "synchronous"
    assert set(task.validation.classes.tolist()) == {0, 1}


def test_the_next_update_begins_with_the_weights_of_the_last_one(folder) -> None:
    store = read_stores(described(folder, BOTH))["cam"]
    trained = build_edge_model(("bus", "car"), 0, 77, "mobilenet_v3_small")
    assert same(store.task(SPREAD).start, store.model)
    store.update(Trained(to_bytes(trained), 0.9, 1))
    again = read_stores(folder / "stores.yaml")["cam"].task(SPREAD)
    assert same(again.start, trained)
    assert not same(again.start, store.model)


def test_without_a_node_pictures_lie_with_the_parameter_server(folder) -> None:
    store = read_stores(described(folder, BOTH.replace("{east: east, west: west}", "east")))["cam"]
    assert list(store.task(SPREAD).training) == [WEST]


def test_a_damaged_picture_is_left_out_and_said(folder, caplog) -> None:
    store = read_stores(described(folder, BOTH))["cam"]
    (folder / "west" / "car" / "000.png").write_bytes(b"no picture")
    assert len(store.task(SPREAD).training[WEST]) == 3
    assert "cam: 1 pictures cannot be read and are left out, as " in caplog.text
    assert "000.png" in caplog.text


def test_what_is_missing_is_said_with_its_key(folder) -> None:
    save_model(build_edge_model(("bus", "car"), 0, 0, "mobilenet_v3_small"), folder / "start.safetensors")
    for text, sentence in (
        (BOTH + ", trigger: {new_samples: 0}", "cam.trigger.new_samples: 0 is too small; use at least 1"),
        (
            BOTH + ", trigger: {new_samples: 9, accuracy: 95}",
            "trigger.accuracy: 95 is too large; use at most 1",
        ),
        (BOTH + ", trigger: {accuracy: 0.9}", "trigger.new_samples: this key is missing; add it"),
        (
            BOTH + ", trigger: {new_sample: 9}",
            "trigger.new_sample: there is no such key; did you mean new_samples",
        ),
        (BOTH + ", trigger: 200", "stores.cam.trigger: 200 is not possible; write keys and values"),
        ("out: a", "samples: this key is missing; add it"),
        (BOTH + ", colour: red", "colour: there is no such key"),
        (BOTH.replace("west: west", "west: moon"), "stores.cam.samples.west: there is no folder"),
        (BOTH.replace("cam.saf", "moon/cam.saf"), "stores.cam.out: there is no folder"),
        (BOTH.replace("mobilenet_v3_small", "moon"), "stores.cam.model: there is no moon"),
        (BOTH.replace("{east: east, west: west}", "west"), "there are no folders of two classes"),
        (BOTH + ", start: moon.safetensors", "cannot read the model"),
        (BOTH.replace("mobilenet_v3_small", "resnet18") + ", start: start.safetensors", "leave the key out"),
    ):
        with pytest.raises(UserError, match=sentence):
            read_stores(described(folder, text))
    (folder / "stores.yaml").write_text("cam: {}")
    with pytest.raises(UserError, match="a file of stores looks like"):
        read_stores(folder / "stores.yaml")


def test_folders_that_are_emptied_have_no_update(folder) -> None:
    store = read_stores(described(folder, BOTH))["cam"]
    for root in ("east", "west"):
        for name in ("car", "bus"):
            shutil.rmtree(folder / root / name, ignore_errors=True)
    with pytest.raises(UserError, match="cam: no pictures of bus, car in its folders"):
        store.job()


TRIGGERED = BOTH + ", trigger: {new_samples: 5, accuracy: 0.8}"


def comes(folder, number, shade=7):
    cv2.imwrite(str(folder / "west" / "car" / f"{number:03d}.png"), np.full((20, 30, 3), shade, np.uint8))


def test_new_pictures_are_those_since_the_last_update_began_also_for_the_next_manager(folder) -> None:
    store = read_stores(described(folder, TRIGGERED))["cam"]
    assert store.trigger == Trigger(5, 0.8)
    assert store.new_samples() == 20
    store.task(SPREAD)
    assert store.new_samples() == 20
    store.began()
    assert store.new_samples() == 0
    comes(folder, 100)
    (folder / "west" / "car" / "notes.txt").write_text("no picture")
    (folder / "east" / "bus" / "000.png").unlink()
    assert store.new_samples() == 1
    os.utime(folder / "west" / "car" / "000.png", ns=(1, 1))  # another picture in its place
    assert store.new_samples() == 2
    assert read_stores(folder / "stores.yaml")["cam"].new_samples() == 2


def test_what_comes_while_pictures_are_read_is_new_afterwards(folder, monkeypatch) -> None:
    store = read_stores(described(folder, TRIGGERED))["cam"]
    whole = folder_store.read_picture

    def reads(path):
        comes(folder, 200)
        return whole(path)

    monkeypatch.setattr(folder_store, "read_picture", reads)
    store.task(SPREAD)
    store.began()
    assert store.new_samples() == 1


def test_a_store_without_a_trigger_keeps_no_record(folder) -> None:
    store = read_stores(described(folder, BOTH))["cam"]
    store.task(SPREAD)
    store.began()
    assert store.trigger is None
    assert not list(folder.glob("*.began.json"))


def test_the_model_is_judged_by_the_newest_pictures_only(folder) -> None:
    store = read_stores(described(folder, TRIGGERED))["cam"]
    says_car = build_edge_model(("car", "bus"), 0, 1, "mobilenet_v3_small")
    with torch.no_grad():
        says_car.head.weight.zero_()
        says_car.head.bias.copy_(torch.tensor([1.0, 0.0]))
    store.update(Trained(to_bytes(says_car), 0.9, 1))
    for at, place in enumerate(("east/bus/000", "east/bus/001", "west/car/000", "west/car/001")):
        later_ns = 2_000_000_000_000_000_000 + at
        os.utime(folder / f"{place}.png", ns=(later_ns, later_ns))
    assert [store.accuracy(newest) for newest in (2, 3, 4)] == pytest.approx([1, 2 / 3, 1 / 2])
    for name in ("000", "001"):
        (folder / "west" / "car" / f"{name}.png").write_bytes(b"no picture")
        os.utime(folder / "west" / "car" / f"{name}.png", ns=(later_ns, later_ns))
    with pytest.raises(UserError, match="none of its newest 2 pictures can be read"):
        store.accuracy(2)


def test_a_record_that_is_something_else_is_refused_with_a_remedy(folder) -> None:
    for words in ("nothing", "[1]", '[["at", "a", "b", "c"]]', "{}x"):
        (folder / "cam.safetensors.began.json").write_text(words)
        with pytest.raises(UserError, match=r"cam.safetensors.began.json: it does not say .*; remove it"):
            read_stores(described(folder, TRIGGERED))


def test_a_record_that_cannot_be_kept_does_not_stop_an_update(folder, caplog) -> None:
    store = read_stores(described(folder, TRIGGERED))["cam"]
    store.task(SPREAD)
    (folder / "cam.safetensors.began.json").mkdir()
    store.began()
    assert store.new_samples() == 0
    assert "cam: its update is under way, which the next manager will not know" in caplog.text

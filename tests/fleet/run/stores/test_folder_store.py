"""Data stores of pictures in folders."""

import os
import shutil
from dataclasses import replace
from hashlib import sha256

import cv2
import numpy as np
import pytest
import torch

from ekya.core.configs import RetrainConfig
from ekya.core.errors import UserError
from ekya.fleet.policy.places import STORES
from ekya.fleet.run.stores import folder_store
from ekya.fleet.run.stores.folder_store import read_stores
from ekya.models.edge.checkpoints import from_bytes, save_model, to_bytes
from ekya.models.edge.model import build_edge_model

CONFIG = RetrainConfig(20, 16, 0, 1, 1.0)


def pictures(root, **counts):
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for number in range(count):
            image = np.full((20, 30, 3), 10 * number, np.uint8)
            cv2.imwrite(str(root / name / f"{number:03d}.png"), image)


def described(folder, text):
    (folder / "stores.yaml").write_text(f"stores: {{cam: {{{text}}}}}")
    return folder / "stores.yaml"


def bundle(store):
    return store.training_bundle(CONFIG)


def same(weights, model):
    ours, theirs = from_bytes(weights).state_dict(), model.state_dict()
    return all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())


@pytest.fixture
def folder(tmp_path):
    pictures(tmp_path / "in", car=15, bus=5)
    return tmp_path


STORE = "samples: in, out: cam.safetensors, model: mobilenet_v3_small, side: 16"


def test_a_fifth_of_each_class_validates_and_the_rest_trains(folder) -> None:
    store = read_stores(described(folder, STORE))["cam"]
    assert store.classes == ("bus", "car")
    made, data = bundle(store), bundle(store).data
    assert (made.config, data.classes, len(data.training)) == (CONFIG, ("bus", "car"), 16)
    assert (len(data.validation), data.validation.side) == (4, 16)
    assert len(np.unique(np.concatenate([data.training.tracks, data.validation.tracks]))) == 20
    assert set(data.validation.classes.tolist()) == {0, 1}


def offer(store, weight=1.0, epochs=20):
    return store.make_offer(epochs, weight, 3, 9)


def test_an_offer_is_sized_by_the_pictures(folder, monkeypatch) -> None:
    store = read_stores(described(folder, STORE + ", batch_size: 8"))["cam"]
    monkeypatch.setattr(type(store), "measure_accuracy", lambda self, newest: 0.5 if newest == 100 else 1.0)
    made = offer(store, 2.0, 6)
    assert (made.site, made.stream, made.now_us, made.until_us) == (STORES, "cam", 3, 9)
    assert (made.config, made.epochs) == (replace(CONFIG, epochs=6, batch_size=8), 6)
    crop_mb = (16 * 16 * 3 + 24) / 1e6
    assert made.crops_mb == pytest.approx(20 * crop_mb)
    assert 0 < made.back_mb < 2 * made.model_mb
    assert (made.gain, made.per_accuracy, made.at_home) == (pytest.approx(0.5), 2.0, 0.0)
    assert made.gpu_s == pytest.approx(16 * 6 * store.crop_gpu_s)


def test_the_first_update_is_estimated_by_the_card_and_later_ones_by_former_ones(folder, monkeypatch) -> None:
    store = read_stores(described(folder, STORE))["cam"]
    assert 1e-5 < store.crop_gpu_s < 1
    store.record_update(0.02, 0.1)
    store.record_update(0.04, 0.3)
    for again in (store, read_stores(folder / "stores.yaml")["cam"]):
        assert (offer(again).gpu_s, offer(again).gain) == pytest.approx((0.03 * 16 * 20, 0.2))
    for _ in range(10):
        store.record_update(0.05, -1.0)
    assert (offer(store).gpu_s, offer(store).gain) == pytest.approx((0.05 * 16 * 20, 0.001))
    triggered = read_stores(described(folder, TRIGGERED.replace("cam.saf", "other.saf")))["cam"]
    monkeypatch.setattr(type(store), "measure_accuracy", lambda self, newest: 0.8 if newest == 5 else 1.0)
    assert offer(triggered).gain == pytest.approx(0.1)


def test_the_next_update_begins_with_the_weights_of_the_last_one(folder) -> None:
    store = read_stores(described(folder, STORE))["cam"]
    trained = build_edge_model(("bus", "car"), 0, 77, "mobilenet_v3_small")
    assert same(bundle(store).start, store.model)
    weights = to_bytes(trained)
    assert not store.has_weights(sha256(weights).hexdigest())
    store.store_weights(weights, 0.9)
    assert store.has_weights(sha256(weights).hexdigest())
    assert not store.has_weights(sha256(to_bytes(store.model)).hexdigest())
    again = bundle(read_stores(folder / "stores.yaml")["cam"])
    assert same(again.start, trained)
    assert not same(again.start, store.model)


def test_a_damaged_picture_is_left_out_and_said(folder, caplog) -> None:
    store = read_stores(described(folder, STORE))["cam"]
    (folder / "in" / "car" / "000.png").write_bytes(b"no picture")
    assert len(bundle(store).data.training) == 15
    assert "cam: 1 pictures cannot be read and are left out, as " in caplog.text
    assert "000.png" in caplog.text


def test_what_is_missing_is_said_with_its_key(folder) -> None:
    save_model(build_edge_model(("bus", "car"), 0, 0, "mobilenet_v3_small"), folder / "start.safetensors")
    for text, sentence in (
        (STORE + ", trigger: {new_samples: 0}", "cam.trigger.new_samples: 0 is too small; use at least 1"),
        (
            STORE + ", trigger: {new_samples: 9, accuracy: 95}",
            "trigger.accuracy: 95 is too large; use at most 1",
        ),
        (STORE + ", trigger: {accuracy: 0.9}", "trigger.new_samples: this key is missing; add it"),
        (
            STORE + ", trigger: {new_sample: 9}",
            "trigger.new_sample: there is no such key; did you mean new_samples",
        ),
        (STORE + ", trigger: 200", "stores.cam.trigger: 200 is not possible; write keys and values"),
        ("out: a", "samples: this key is missing; add it"),
        (STORE + ", colour: red", "colour: there is no such key"),
        (STORE.replace("in,", "moon,"), "stores.cam.samples: there is no folder"),
        (STORE.replace("cam.saf", "moon/cam.saf"), "stores.cam.out: there is no folder"),
        (STORE.replace("mobilenet_v3_small", "moon"), "stores.cam.model: there is no moon"),
        (STORE.replace("in,", "in/car,"), "there are no folders of two classes"),
        (STORE + ", start: moon.safetensors", "cannot read the model"),
        (STORE.replace("mobilenet_v3_small", "resnet18") + ", start: start.safetensors", "leave the key out"),
    ):
        with pytest.raises(UserError, match=sentence):
            read_stores(described(folder, text))
    (folder / "stores.yaml").write_text("cam: {}")
    with pytest.raises(UserError, match="a file of stores looks like"):
        read_stores(folder / "stores.yaml")


def test_folders_that_are_emptied_have_no_update(folder) -> None:
    store = read_stores(described(folder, STORE))["cam"]
    for name in ("car", "bus"):
        shutil.rmtree(folder / "in" / name)
    with pytest.raises(UserError, match="cam: no pictures of bus, car in its folder"):
        offer(store)
    with pytest.raises(UserError, match="cam: its 0 pictures are too few to train and to validate"):
        bundle(store)


TRIGGERED = STORE + ", trigger: {new_samples: 5, accuracy: 0.8}"


def comes(folder, number, shade=7):
    cv2.imwrite(str(folder / "in" / "car" / f"{number:03d}.png"), np.full((20, 30, 3), shade, np.uint8))


def test_new_pictures_are_those_since_the_last_update_began_also_for_the_next_run(folder) -> None:
    store = read_stores(described(folder, TRIGGERED))["cam"]
    assert store.new_samples() == 20
    bundle(store)
    assert store.new_samples() == 0
    comes(folder, 100)
    (folder / "in" / "car" / "notes.txt").write_text("no picture")
    (folder / "in" / "bus" / "000.png").unlink()
    assert store.new_samples() == 1
    os.utime(folder / "in" / "car" / "000.png", ns=(1, 1))  # another picture in its place
    assert store.new_samples() == 2
    assert read_stores(folder / "stores.yaml")["cam"].new_samples() == 2


def test_what_comes_while_pictures_are_read_is_new_afterwards(folder, monkeypatch) -> None:
    store = read_stores(described(folder, TRIGGERED))["cam"]
    whole = folder_store.read_picture

    def reads(path):
        comes(folder, 200)
        return whole(path)

    monkeypatch.setattr(folder_store, "read_picture", reads)
    bundle(store)
    assert store.new_samples() == 1


def test_the_model_is_judged_by_the_newest_pictures_only(folder) -> None:
    store = read_stores(described(folder, TRIGGERED))["cam"]
    says_car = build_edge_model(("car", "bus"), 0, 1, "mobilenet_v3_small")
    with torch.no_grad():
        says_car.head.weight.zero_()
        says_car.head.bias.copy_(torch.tensor([1.0, 0.0]))
    store.store_weights(to_bytes(says_car), 0.9)
    for at, place in enumerate(("in/bus/000", "in/bus/001", "in/car/000", "in/car/001")):
        later_ns = 2_000_000_000_000_000_000 + at
        os.utime(folder / f"{place}.png", ns=(later_ns, later_ns))
    assert [store.measure_accuracy(newest) for newest in (2, 3, 4)] == pytest.approx([1, 2 / 3, 1 / 2])
    for name in ("000", "001"):
        (folder / "in" / "car" / f"{name}.png").write_bytes(b"no picture")
        os.utime(folder / "in" / "car" / f"{name}.png", ns=(later_ns, later_ns))
    with pytest.raises(UserError, match="none of its newest 2 pictures can be read"):
        store.measure_accuracy(2)


def test_a_record_that_is_something_else_is_refused_with_a_remedy(folder) -> None:
    whole = '{"began": [[1, "b", "c"]], "updates": [[1, 2]]}'
    for words in (
        "nothing",
        "[1]",
        whole.replace("[1, ", '["at", '),
        whole.replace(', "c"', ""),
        whole + "x",
    ):
        (folder / "cam.safetensors.updates.json").write_text(words)
        with pytest.raises(UserError, match=r"cam.safetensors.updates.json: it does not say .*; remove it"):
            read_stores(described(folder, STORE))
    (folder / "cam.safetensors.updates.json").write_text(whole)
    assert read_stores(folder / "stores.yaml")["cam"].memory.gain == 2


def test_a_record_that_cannot_be_kept_does_not_stop_an_update(folder, caplog) -> None:
    store = read_stores(described(folder, TRIGGERED))["cam"]
    (folder / "cam.safetensors.updates.json").mkdir()
    bundle(store)
    store.record_update(1.0, 0.1)
    assert store.new_samples() == 0
    assert offer(store).gpu_s == pytest.approx(16 * 20)
    assert "cam: a later process will count its pictures as new" in caplog.text
    assert "cam: what an update took is not kept" in caplog.text

"""`ekya golden train` and `ekya edge train`: last screen, files, and that a run loads them."""

import hashlib
import io
import json
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from commands import error_line
from local_server import served
from safetensors import safe_open
from torchvision.models import get_model
from waiting import LONG_GUARD_S, wait_until

from ekya.cli import main
from ekya.cli.fleet_from_options import read_fleet
from ekya.cli.run import RunConfig
from ekya.config.fleet_reading import load_fleet
from ekya.models.catalogue import find_model
from ekya.models.golden.checksum import sha256_of, verified
from ekya.models.golden.detections import Question
from ekya.models.golden.golden_model import open_golden
from ekya.pipeline.base_model import base_model
from ekya.pipeline.train_models import choose_held_out
from ekya.pipeline.trained_card import describe_base, golden_accuracy
from ekya.system.download import PublishedFile

CLASSES = ["person", "car", "truck", "bus", "bicycle", "motorcycle"]


def camera(name, seed, duration_s=6, **scene):
    source = {"kind": "synthetic_city", "seed": seed, "fps": 1, "duration_s": duration_s, "scenes": [scene]}
    return {"id": name, "source": source}


def write_fleet(**changes):
    raw = {
        "classes": CLASSES,
        "golden": {"model": "resnext29"},
        "streams": [camera("north", 3), camera("south", 4)],
        **changes,
    }
    Path("fleet.yaml").write_text(yaml.safe_dump(raw), encoding="utf-8")


class Here:
    """Source in this process, since a separate process takes seconds to start."""

    died = length_s = None

    def __init__(self, spec, classes, areas=None):
        self.source = spec.open(classes)

    def wait_open(self):
        return self.source.fps

    def frames(self):
        return self.source.frames()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ekya.pipeline.train_models.SourceProcess", Here)
    monkeypatch.setattr("ekya.pipeline.prelabel.SourceProcess", Here)


def test_golden_train_writes_weights_that_a_run_loads_and_a_card(tmp_path, capfd, caplog):
    write_fleet()
    assert main(["golden", "train", "fleet.yaml", "--epochs", "2", "--out", "own.safetensors"]) == 0
    out = capfd.readouterr().out
    said = re.search(
        r"resnext29: ([\d.]+)% right \(.* to .*\), balanced over the classes .*%, on (\d+) crops of (\d+) "
        r"objects: the held-out stream (north|south), held out since --holdout names none\n",
        out,
    )
    assert "Weights and card: own.safetensors, own.md" in out
    assert "In a fleet file: golden: {model: resnext29, weights: own.safetensors}" in out
    assert "epoch 2 of 2: loss" in caplog.text
    assert "0 s left at most" in caplog.text
    assert {path.name for path in tmp_path.iterdir()} == {"fleet.yaml", "own.safetensors", "own.md"}
    # The card says the same, and its checksum is the file's.
    card = (tmp_path / "own.md").read_text()
    assert f"**{said[1]}%**" in card
    assert f"{said[2]} crops of {said[3]} objects" in card
    assert f"- sha256: {sha256_of(verified(tmp_path / 'own.safetensors'))}" in card
    assert "drawn by Ekya" in card
    assert "`ekya golden train fleet.yaml --model resnext29 --epochs 2 --out own.safetensors`" in card
    write_fleet(golden={"model": "resnext29", "weights": "own.safetensors"})
    fleet = load_fleet(tmp_path / "fleet.yaml")
    # The accuracy of the file is what the opened model has on the held-out stream.
    golden, right, crops = open_golden(fleet.golden, fleet.classes), 0, 0
    source = fleet.stream(said[4]).source.open(fleet.classes)
    for frame, truth in source.frames():
        (labels,) = golden.label_boxes([Question(truth.boxes, frame.image)])
        right, crops = right + int((labels == truth.classes).sum()), crops + len(labels)
    accuracy, low, high = golden_accuracy(fleet.golden)
    assert crops == int(said[2])
    assert accuracy == pytest.approx(right / crops)
    assert low < accuracy <= high <= 1.0


def test_edge_train_writes_a_base_of_any_architecture_in_half_precision(tmp_path, capfd):
    write_fleet(
        edge={"model": "resnet18", "resolution": 24},
        inference={"resolutions": [24]},
        streams=[camera("south", 4)],
        pretraining=[camera("north", 3)],
    )
    arguments = ["fleet.yaml", "--model", "shufflenet_v2_x1_0", "--epochs", "1"]
    assert main(["edge", "train", *arguments, "--out", "base.safetensors", "--json", "facts.json"]) == 0
    out = capfd.readouterr().out
    assert "the held-out stream south, held out since --holdout names none\n" in out
    assert "edge: {model: shufflenet_v2_x1_0, weights: base.safetensors, resolution: 24}" in out
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert (facts["held_out"], facts["streams"]) == (["south"], ["north"])
    assert sum(map(sum, facts["confusions"])) == facts["held_out_crops"]
    with safe_open("base.safetensors", framework="pt") as file:
        assert json.loads(file.metadata()["training"])["accuracy"] == facts["accuracy"]
        assert {str(file.get_tensor(one).dtype) for one in file.keys() if one.endswith("head.weight")} == {  # noqa: SIM118
            "torch.float16"
        }
    write_fleet()
    fleet = read_fleet(RunConfig(fleet=Path("fleet.yaml"), student="base.safetensors"))
    edge = fleet.edge
    assert (edge.model, edge.weights.name, edge.resolution) == ("shufflenet_v2_x1_0", "base.safetensors", 24)
    assert describe_base(edge).endswith(
        "begin from base.safetensors, which ekya edge train has made of north"
    )
    model = base_model(fleet, 0)
    assert (model.architecture, list(model.classes)) == ("shufflenet_v2_x1_0", CLASSES)
    # It is also what another training begins with.
    again = ["--model", "shufflenet_v2_x1_0", "--weights", "base.safetensors", "--epochs", "1"]
    assert main(["edge", "train", "fleet.yaml", *again, "--out", "more.safetensors"]) == 0
    assert "- began with: base.safetensors" in (tmp_path / "more.md").read_text()


def test_edge_train_begins_with_weights_of_the_catalogue_which_it_fetches(tmp_path, monkeypatch):
    content = io.BytesIO()
    torch.save(get_model("shufflenet_v2_x1_0", weights=None).state_dict(), content)
    digits = hashlib.sha256(content.getvalue()).hexdigest()[:8]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_fleet(edge={"model": "resnet18", "resolution": 24}, inference={"resolutions": [24]})
    arguments = ["--model", "shufflenet_v2_x1_0", "--weights", "shufflenet_v2_x1_0", "--epochs", "1"]
    with served(content.getvalue()) as (server, url):
        file = PublishedFile(url.replace(".onnx", ".pth"), None, digits)
        entry = replace(find_model("shufflenet_v2_x1_0"), file=file)
        monkeypatch.setattr("ekya.models.catalogue.CATALOGUE", (entry,))
        for out in ("one.safetensors", "other.safetensors"):
            assert main(["edge", "train", "fleet.yaml", *arguments, "--out", out]) == 0
        assert server.asked == [None], "it is fetched once"
    assert "- began with: shufflenet_v2_x1_0.pth" in (tmp_path / "one.md").read_text()


def test_training_learns_from_a_label_file_and_holds_the_end_of_one_stream_out(tmp_path, capfd):
    write_fleet(streams=[camera("north", 3, 20)])
    assert main(["golden", "label", "fleet.yaml", "--from-truth", "--out", "labels.parquet"]) == 0
    golden = {"model": "file", "weights": "labels.parquet"}
    write_fleet(streams=[camera("north", 3, 20)], golden=golden)
    capfd.readouterr()
    assert main(["golden", "train", "fleet.yaml", "--epochs", "1", "--out", "own.safetensors"]) == 0
    assert "the objects that came last, held out since --holdout names none" in capfd.readouterr().out
    assert "**" in (tmp_path / "own.md").read_text()


def test_training_goes_on_after_ctrl_c_and_refuses_another_one(tmp_path, monkeypatch, capfd, caplog):
    write_fleet()
    arguments = ["golden", "train", "fleet.yaml", "--epochs", "3", "--out", "own.safetensors"]

    def interrupt(shown, state):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("ekya.cli.train._Shown.show_epoch", interrupt)
        assert main(arguments) == 130
    assert "the same command goes on from there" in capfd.readouterr().out
    assert (tmp_path / "own.safetensors.partial" / "checkpoint.safetensors").is_file()
    assert main([*arguments, "--holdout", "south"]) == 2
    assert "an unfinished training with another holdout; give the same" in error_line(capfd)
    assert main(arguments) == 0
    assert "goes on in epoch 2 of 3" in caplog.text
    capfd.readouterr()
    assert not (tmp_path / "own.safetensors.partial").exists()
    assert main(arguments) == 2
    assert "--out own.safetensors: the file is there already" in error_line(capfd)


def refused_weights():
    Path("own.safetensors").write_bytes(b"no weights")


@pytest.mark.parametrize(
    ("changes", "arguments", "said"),
    [
        ({}, ["golden", "--out", "a.pt"], "weights are written as .safetensors"),
        ({}, ["golden", "--out", "none/a.safetensors"], "there is no folder none"),
        (
            {},
            ["golden", "--model", "resnet18"],
            "no golden model that classifies is called 'resnet18'",
        ),
        ({}, ["edge", "--model", "fastestdet"], "no edge model that classifies is called 'fastestdet'"),
        ({}, ["golden", "--holdout", "west"], "--holdout: the fleet has no 'west'; choose from north, south"),
        ({}, ["golden", "--holdout", "north,south"], "no stream is left to train on"),
        ({}, ["golden", "--weights", "none.pth"], "none.pth: no such file"),
        ({}, ["golden", "--weights", "own.safetensors"], "cannot be read as weights"),
        (
            {"streams": [{"id": "north", "source": {"kind": "synthetic_city", "seed": 3}}]},
            ["golden"],
            "the camera never ends; set it, or windows",
        ),
        (
            {"streams": [{"id": "gate", "source": {"kind": "video", "files": ["fleet.yaml"]}}]},
            ["golden"],
            "it comes without labels; leave it out, or label a recording",
        ),
        (
            {"streams": [camera("a", 3, mix={"car": 1}), camera("b", 4)]},
            ["golden", "--holdout", "b"],
            "two classes",
        ),
    ],
)
def test_training_refuses_in_one_sentence(tmp_path, capfd, changes, arguments, said):
    refused_weights()
    write_fleet(**changes)
    kind, *rest = arguments
    out = [] if "--out" in rest else ["--out", "a.safetensors"]
    code = main([kind, "train", "fleet.yaml", *rest, *out])
    err = capfd.readouterr().err
    assert code == 2
    assert said in err.splitlines()[-1]
    assert not (tmp_path / "a.safetensors").exists()


def test_a_tenth_of_the_streams_is_held_out():
    for streams, held in ((1, 0), (2, 1), (9, 1), (27, 3)):
        names = tuple(f"cam-{number}" for number in range(streams))
        chosen = choose_held_out(names)
        assert len(set(chosen)) == held
        assert set(chosen) <= set(names)


@pytest.mark.long
def test_a_training_that_is_killed_goes_on_to_the_same_file(tmp_path):
    arguments = ["golden", "train", "fleet.yaml", "--epochs", "8", "--out", "own.safetensors"]
    command = [sys.executable, "-P", "-m", "ekya", *arguments]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    raw = {"classes": CLASSES, "golden": {}, "streams": [camera("north", 3, 40), camera("south", 4, 40)]}
    for folder in (whole, killed):
        folder.mkdir()
        (folder / "fleet.yaml").write_text(yaml.safe_dump(raw))
    checkpoint = killed / "own.safetensors.partial" / "checkpoint.safetensors"
    process = subprocess.Popen(command, cwd=killed)
    wait_until(lambda: checkpoint.is_file() or process.poll() is not None, guard_s=LONG_GUARD_S)
    process.kill()
    assert process.wait() == -signal.SIGKILL, "it ended before it was killed"
    for folder in (whole, killed):
        subprocess.run(command, cwd=folder, check=True, timeout=LONG_GUARD_S)
    assert not checkpoint.exists()
    assert (killed / "own.safetensors").read_bytes() == (whole / "own.safetensors").read_bytes()

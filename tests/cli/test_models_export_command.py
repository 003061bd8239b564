"""`ekya models export`: the file, its card, and what is refused."""

import ast
import json
import re

import cv2
import numpy as np
import onnx
import pytest
from commands import error_line
from detecting_run import STREET, fleet_of
from random_models import OUTPUTS, lively_model

from ekya.cli import main
from ekya.config.fleet_reading import write_fleet
from ekya.core.configs import RetrainConfig
from ekya.models.edge.checkpoints import save_model
from ekya.models.golden.checksum import sha256_of, verified
from ekya.models.golden.onnx_detector import open_onnx
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_state import ModelRow, StateStore


def make_run(root, architecture="fastestdet", **edge):
    """Writes a run's folder in which version 1 serves, and begins with weights of the catalogue."""
    folder = RunFolder.create_numbered(root, "made")
    fleet = fleet_of(STREET, folder=root)
    raw = fleet.edge.model_dump() | {"model": architecture, "weights": root / "fastestdet.onnx"} | edge
    if raw["task"] == "classify":
        fleet = fleet.model_copy(
            update={"inference": fleet.inference.model_copy(update={"resolutions": (32,)})}
        )
    write_fleet(folder.fleet, fleet.model_copy(update={"edge": type(fleet.edge).model_validate(raw)}))
    with StateStore(folder.state) as store:
        for version, gamma in ((0, None), (1, RetrainConfig(10, 8, 0, 1, 1.0))):
            path = folder.model(STREET, version)
            save_model(lively_model(architecture), path, half=True)
            store.put_model(
                ModelRow(STREET, version, version - 1, folder.relative_path(path), gamma, 0.75, version)
            )
    put_summary(folder, golden_part=0.25)
    return folder


def put_summary(folder, **changes):
    windows = [{"accuracy": 0.5, "lambda": {"every": 1, "resolution": 96}}, {"accuracy": 0.6, "lambda": None}]
    stream = {"mean_accuracy": 0.55, "student_accuracy": 0.5, "windows": windows, **changes}
    content = {"reference": "large", "licences": {"fastestdet": "BSD-3-Clause"}, "streams": {STREET: stream}}
    folder.summary.write_text(json.dumps(content))


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path)


def export(run, to, *more):
    return main(["models", "export", str(run.path), STREET, "--out", str(to), *more])


def snippet_of(card):
    return re.search(r"```python\n(.*?)```", card.read_text(), re.DOTALL)[1]


def test_export_writes_a_file_that_says_what_it_is(run, tmp_path, capfd):
    to = tmp_path / "yard.onnx"
    to.write_text("an older one")
    assert export(run, to, "--json", "-") == 0
    facts = json.loads(capfd.readouterr().out)
    assert (facts["version"], facts["window"], facts["resolution"]) == (1, 0, 96)
    assert facts["weights_sha256"] == sha256_of(run.model(STREET, 1))
    assert facts["accuracy"]["validation_accuracy"] == 0.75
    notes = {one.key: one.value for one in onnx.load(to).metadata_props}
    assert ast.literal_eval(notes["names"]) == {0: "car", 1: "bus"}
    for key, value in (
        ("licence", "BSD-3-Clause"),
        ("source", "dog-qiuqiu/FastestDet"),
        ("threshold", "0.5"),
    ):
        assert notes[key] == str(facts[key]) == value
    text = to.with_suffix(".md").read_text()
    for words in ("agreement with the golden model large", "75.0%", "60.0%", "retrained in window 0"):
        assert words in text
    # Ekya itself reads it as a golden detector, and its card's checksum.
    assert open_onnx("onnx", verified(to), 0.2).names == ("car", "bus")
    assert {path.suffix for path in tmp_path.iterdir()} == {".onnx", ".md", ""}


@pytest.mark.parametrize("architecture", ["fastestdet", "resnet18"])
def test_export_card_has_code_that_works(tmp_path, monkeypatch, capfd, architecture):
    classifies = {"task": "classify", "resolution": 32} if architecture == "resnet18" else {}
    run = make_run(tmp_path, architecture, **classifies)
    if classifies:
        run.summary.unlink()
    to = tmp_path / "yard.onnx"
    assert export(run, to) == 0
    monkeypatch.chdir(tmp_path)
    noise = np.random.default_rng(2).integers(0, 256, (90, 160, 3)).astype(np.uint8)
    cv2.imwrite("frame.jpg", noise)
    cv2.imwrite("crop.jpg", noise[:60, :60])
    capfd.readouterr()
    exec(snippet_of(to.with_suffix(".md")), {})
    printed = capfd.readouterr().out
    assert any(name in printed for name in OUTPUTS)


def test_export_says_how_much_the_golden_detector_answered(run, tmp_path, capfd):
    assert export(run, tmp_path / "yard.onnx", "--resolution", "128") == 0
    said = capfd.readouterr().out
    assert "version 1 of street, a fastestdet at 128 px" in said
    assert "The golden detector answered 25.0% of its frames" in said


def lose_weights(run):
    run.model(STREET, 1).unlink()


def damage_weights(run):
    run.model(STREET, 1).write_bytes(b"half of it")


def answer_by_golden(run):
    put_summary(run, golden_part=1.0)
    with StateStore(run.state) as store:
        store.remove_models(store.read_models(STREET)[1:])


@pytest.mark.parametrize(
    ("change", "arguments", "said"),
    [
        (None, ["none", STREET, "--out", "a.onnx"], "not a run folder"),
        (None, ["made", "gate", "--out", "a.onnx"], "it has no camera gate; name one of street"),
        (None, ["made", STREET, "--out", "a.pt"], "models are written as .onnx"),
        (None, ["made", STREET, "--out", "none/a.onnx"], "there is no folder none"),
        (None, ["made", STREET, "--out", "a.onnx", "--resolution", "100"], "use a multiple of 32 from 96 on"),
        (lose_weights, ["made", STREET, "--out", "a.onnx"], "it keeps no weights of street"),
        (damage_weights, ["made", STREET, "--out", "a.onnx"], "1.safetensors: not a whole safetensors file"),
        (
            answer_by_golden,
            ["made", STREET, "--out", "a.onnx"],
            "the golden detector answered all its frames",
        ),
    ],
)
def test_export_refuses_in_one_sentence(run, tmp_path, monkeypatch, capfd, change, arguments, said):
    monkeypatch.chdir(tmp_path)
    if change is not None:
        change(run)
    assert main(["models", "export", *arguments, "--runs", str(tmp_path)]) == 2
    assert said in error_line(capfd)
    assert not list(tmp_path.glob("a.*"))

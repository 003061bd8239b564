"""`ekya doctor --measure --video`: what would answer cameras like one's own."""

import json
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from draw_samples import draw_video
from onnx_networks import frame_size, write

from ekya import cli
from ekya.core.configs import GOLDEN_RESOLUTION
from ekya.core.host import HostCosts, StreamCosts
from ekya.core.profile import Family, FamilyCost
from ekya.models.catalogue import STUDENT
from ekya.models.edge.forward import PLAIN, SelfTest
from ekya.pipeline.host_probe import ProbedHost

COSTS = StreamCosts(
    10.0, {352: 0.006, 288: 0.004, 224: 0.003, 160: 0.002, GOLDEN_RESOLUTION: 0.01}, 0.0, False
)


@pytest.fixture
def costs(monkeypatch, tmp_path):
    """Costs of the videos' work as if they were measured here."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    followed = StreamCosts(COSTS.fps, COSTS.frame_gpu_s, 0.0, False, {GOLDEN_RESOLUTION: 0.001})
    host = HostCosts({"cam-1": followed}, 0.01, (FamilyCost(Family(0, 0, 8), 0.02, 0.007),), 2.0)
    measured = ProbedHost(("car",), host, SelfTest(PLAIN, 1.0, 1.0, (), 0.1))
    probe = nullcontext(SimpleNamespace(result=lambda: measured))
    monkeypatch.setattr("ekya.runtime.driver.video_report.start_measuring", lambda fleet: probe)


@pytest.fixture
def golden(tmp_path):
    """A detector that finds the same car in every picture."""
    found = {
        "labels": np.array([[1]]),
        "boxes": np.array([[[0.2, 0.2, 0.6, 0.6]]], np.float32),
        "scores": np.array([[0.9]], np.float32),
    }
    names = "{0: 'person', 1: 'car'}"
    return str(write(tmp_path / "golden.onnx", named=found, sizes=frame_size(), names=names))


def doctor(*options):
    return cli.main(["doctor", *(str(one) for one in options)])


def test_doctor_tries_the_models_on_a_video_and_says_what_would_answer(
    tmp_path, capfd, costs, golden, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "80")
    video = draw_video(tmp_path / "yard.avi", 30, size=(160, 96))
    given = ["--video", video, "--golden", golden, "--student", "base", "--runs", tmp_path / ("long" * 30)]
    given += ["--pictures", tmp_path / "look"]
    assert doctor("--measure", *given, "--json", tmp_path / "said.json") == 0
    said = json.loads((tmp_path / "said.json").read_text())["video"]
    assert (said["golden"], said["classes"]) == ("golden", ["car"])
    (facts,) = said["videos"]
    assert (facts["size"], facts["frames"], facts["fps"]) == ([160, 96], 30, 10.0)
    assert (facts["student_ms"], facts["golden_ms"]) == (6.0, 10.0)
    assert facts["student_f1"] == 0.0, "the shipped base finds nothing in plain pictures"
    assert set(facts["golden_f1"].values()) == {1.0}, "the car stays where it is"
    carried = json.loads((tmp_path / "said.json").read_text())["cameras"]
    assert (carried["by_cores"], carried["resolution"], carried["fps"]) == (None, 352, 10.0), "none was read"
    first = said["cameras"][0]
    assert (first["cameras"], first["by_golden"]) == (1, 1)
    shown = capfd.readouterr().out
    machine, answers = (
        shown.partition("This machine")[2].partition("A fleet may")[0],
        shown.partition("What answers")[2].partition("Labels:")[0],
    )
    assert "long" * 10 in machine
    assert len(answers.splitlines()) > 4
    assert max(map(len, (machine + answers).splitlines())) <= 80
    assert "…" not in machine + answers
    assert "yard.avi: 160x96, 10 frames a second; tried on 30 of its frames" in shown
    assert said["conclusion"][0].startswith(
        "With 1 camera like this the large model answers by itself, on every"
    )
    assert all(sentence in shown for sentence in said["conclusion"])


def test_doctor_looks_at_a_video_alone(tmp_path, capfd, golden):
    video, folder = draw_video(tmp_path / "yard.avi", 30, size=(160, 96)), tmp_path / "look"
    given = ["--video", video, "--golden", golden, "--student", "base", "--pictures", folder]
    assert doctor(*given, "--json", tmp_path / "said.json") == 0
    (look,) = json.loads((tmp_path / "said.json").read_text())["looks"]
    assert (look["objects"], look["picture"]) == ({"car": 1}, str(folder / "cam-1.jpg"))
    out = capfd.readouterr().out
    assert f"cam-1: 160x96, 10 frames a second, 1 car: {folder}/cam-1.jpg" in out.replace("\n", "")
    assert "cam-1: the picture has one colour only" in out
    assert "This machine" not in out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--video", "none.avi"], "ekya: --video none.avi: there is no such file"),
        (["--measure", "--golden", "g.onnx"], "--golden: it goes with --video"),
        (["--measure", "--video", "none.avi"], "ekya: --video none.avi: there is no such file"),
        (["--measure", "--video", "yard.avi", "--offline"], STUDENT.file.url),
        (
            ["--measure", "--video", "broken.avi", "--golden", "GOLDEN", "--student", "base"],
            "cannot be decoded",
        ),
    ],
)
def test_doctor_refuses_in_one_sentence(tmp_path, capfd, monkeypatch, costs, golden, options, says):
    monkeypatch.chdir(tmp_path)
    draw_video(tmp_path / "yard.avi", 2)
    (tmp_path / "broken.avi").write_bytes(b"no video")
    assert doctor(*(golden if one == "GOLDEN" else one for one in options)) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert says in err.splitlines()[-1]

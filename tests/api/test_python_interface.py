"""Tests of ``import ekya``: its names, fleets, and schedulers of one's own, as the documentation has them."""

import ast
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import ekya
from ekya import cli
from ekya.api.playing import LOGGED
from ekya.planning.schedulers.registry import make_scheduler
from ekya.results.storage.trace_file import write_trace
from ekya.simulation.trace.generator_parameters import GeneratorParameters
from ekya.testing import check_scheduler

ROOT = Path(__file__).parents[2]
QUICK = GeneratorParameters(
    epochs=(2, 4), data_fractions=(0.5, 1.0), window_s=60.0, dearest_gpu_s=(20.0, 40.0)
)


@pytest.fixture(scope="module")
def halves():
    """The scheduler of the documentation, made of its page alone."""
    page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    (text,) = (one for one in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "class Halves" in one)
    names = {}
    exec(text, names)
    return names["Halves"]()


def test_names_stand_in_the_stub_too_and_where_they_are_imported_from():
    stub = ast.parse((ROOT / "ekya/__init__.pyi").read_text(encoding="utf-8"))
    typed = [one for one in stub.body if isinstance(one, ast.ImportFrom) and one.module != "ekya"]
    names = {alias.asname: one.module for one in typed for alias in one.names}
    assert sorted([*names, "__version__"]) == sorted(ekya.__all__) == dir(ekya)
    assert names == ekya._HOME
    for name, module in names.items():
        source = (ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
        assert re.search(rf"^(def|class) {name}\b", source, re.MULTILINE), name
    assert ekya.Camera.__module__ == "ekya.api.fleets"
    with pytest.raises(AttributeError, match="'ekya' has no attribute 'cameras'"):
        ekya.cameras  # noqa: B018


def test_import_alone_and_a_fleet_file_bring_no_engine():
    code = (
        "import sys, ekya\n"
        "heavy = lambda: {'torch', 'ray', 'cv2', 'onnxruntime', 'numpy'} & set(sys.modules)\n"
        "assert not heavy(), heavy()\n"
        "ekya.load_fleet(windows=2)\n"
        "sys.exit(', '.join({'torch', 'ray', 'onnxruntime'} & heavy()) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_fleet_of_cameras_has_the_keys_that_are_given(tmp_path):
    for name in ("yard.mp4", "golden.onnx", "student.safetensors"):
        (tmp_path / name).touch()
    cameras = [
        ekya.Camera([tmp_path / "yard.mp4"] * 2, id="yard", weight=2, loop=True),
        "rtsp://cam/live",
    ]
    models = {"golden": tmp_path / "golden.onnx", "student": tmp_path / "student.safetensors"}
    fleet = ekya.Fleet(cameras, gpus=2, **models).config
    first, second = sorted(fleet.streams, key=lambda stream: stream.source.live)
    assert (first.id, first.weight, first.play.loop, len(first.source.files)) == ("yard", 2, True, 2)
    assert (second.id, second.source.url, second.max_age_s) == ("cam-2", "rtsp://cam/live", None)
    assert (fleet.gpus, fleet.classes, fleet.golden.weights) == (2, None, models["golden"])


def test_fleet_that_is_not_possible_raises_one_sentence(tmp_path):
    with pytest.raises(ekya.UserError, match=r"nowhere\.mp4: there is no such file"):
        ekya.Fleet([tmp_path / "nowhere.mp4"])
    with pytest.raises(ekya.UserError, match="window_s"):
        ekya.load_fleet(window_s=-1)


def test_what_a_run_prints_is_logged_where_no_console_is_given(caplog):
    with caplog.at_level("INFO", "ekya"):
        LOGGED.print(f"Given up: {'long ' * 40}", highlight=False, soft_wrap=True)
    assert [record.getMessage().split()[:2] for record in caplog.records] == [["Given", "up:"]]


def test_simulation_is_that_of_the_command(tmp_path, capfd):
    trace = ekya.generate_trace(3, 2, 2, QUICK)
    write_trace(tmp_path / "t.parquet", trace)
    result = ekya.simulate(tmp_path / "t.parquet", ["thief", "no-retrain"], [1, 2], [0, 1])
    words = ["--scheduler", "thief,no-retrain", "--gpus", "1,2", "--seeds", "0,1", "--json", "-"]
    assert cli.main(["simulate", str(tmp_path / "t.parquet"), *words]) == 0
    assert json.loads(capfd.readouterr().out) == json.loads(json.dumps(result.values))
    assert len(result.runs) == 8
    assert result.mean_accuracy["thief", 2.0] == result.values["mean"][1]["mean_accuracy"]
    assert "Mean accuracy" in result._repr_html_()
    with pytest.raises(ekya.UserError, match="two of them have the same name"):
        ekya.simulate(trace, ["thief", make_scheduler("thief")])


def test_scheduler_of_the_documentation_keeps_the_laws_and_is_compared(halves):
    check_scheduler(halves, examples=25)
    result = ekya.simulate(ekya.generate_trace(3, 3, 3, QUICK), ["ekya", halves])
    assert [run.scheduler for run in result.runs] == ["ekya", "halves"]
    assert 0 < result.mean_accuracy["halves", 2.0] <= result.mean_accuracy["ekya", 2.0]


def test_scheduler_and_golden_detector_of_an_installed_package_have_names(tmp_path):
    info = tmp_path / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    points = "[ekya.schedulers]\nmine = mine:Mine\n[ekya.golden_models]\nseer = mine:Seer\n"
    (info / "entry_points.txt").write_text(points)
    (tmp_path / "mine.py").write_text("class Mine:\n    name = 'mine'\nclass Seer: pass\n")
    code = (
        "from ekya.models.golden.spec import DETECTORS, GoldenSpec, detector_of, imported\n"
        "from ekya.planning.schedulers.registry import make_scheduler\n"
        "seer = imported(DETECTORS[detector_of(GoldenSpec(model='seer'))])\n"
        "print(make_scheduler('mine').name, seer.__name__)"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment
    )
    assert (done.stdout, done.stderr) == ("mine Seer\n", "")


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (lambda self, plan: replace(plan, expected_accuracy=2.0), "expects 2.0, and it is"),
        (lambda self, plan: replace(plan, expected_accuracy=next(self.turns)), "gives another plan"),
        (lambda self, plan: replace(plan, phases=(ekya.Phase(()),)), "other streams"),
    ],
)
def test_scheduler_that_breaks_a_law_is_told_which(halves, broken, says):
    class Broken:
        name, needs, turns = "broken", halves.needs, iter(range(10_000))

        def plan(self, view):
            return broken(self, halves.plan(view))

    with pytest.raises(AssertionError, match=says):
        check_scheduler(Broken(), examples=10)


def test_scheduler_with_a_name_that_is_taken_is_refused(halves):
    with pytest.raises(AssertionError, match="name 'uniform': it is taken"):
        check_scheduler(make_scheduler("uniform"))

import contextlib
import json
import os
import signal
import subprocess
import sys
from types import ModuleType

import pytest
import yaml

import ekya.cli.compare
import ekya.cli.run
from ekya import __version__, cli
from ekya.cli.doctor import as_json, examine
from ekya.cli.output import output
from ekya.config.fleet_file import DEFAULT_FLEET, load_fleet
from ekya.config.shipped import shipped_path
from ekya.config.sizing import resolutions_to_measure
from ekya.core.errors import UserError
from ekya.gpu.mps.service import MpsFound
from ekya.gpu.nvml import Gpu, GpuInventory
from ekya.models.edge.forward import ForwardWay, SelfTest
from ekya.pipeline.self_tests import SELF_TESTS, self_test_key
from ekya.results.storage.run_folder import RunFolder
from ekya.system.files import user_errors

WINDOW = {"retrained": True, "retrain_share_milli": 500, "inference_share_milli": 250}
SUMMARY = {
    "world": "live",
    "scheduler": "thief",
    "seed": 7,
    "mean_accuracy": 0.8,
    "balanced_accuracy": 0.7,
    "streams": {
        "cam-1": {
            "mean_accuracy": 0.8,
            "balanced_accuracy": 0.7,
            "without_retraining": 0.6,
            "gain": 0.2,
            "set_aside": None,
            "windows": [WINDOW],
        }
    },
    "frames": {"arrived": 10, "analysed": 6, "skipped": 4, "lost": 0},
    "retrainings": {"started": 1, "finished": 1, "failed": 0},
    "health": {"sentence": None, "streams": {"cam-1": [{"index": 0, "state": "ok"}]}},
    "warnings": [],
}


@pytest.fixture
def fleet(tmp_path):
    path = tmp_path / "fleet.yaml"
    streams = [{"id": "cam-1", "source": {"kind": "synthetic_city", "seed": 1}}]
    raw = {"name": "small", "classes": ["person"], "gpus": 1, "window_s": 9, "golden": {}, "streams": streams}
    path.write_text(yaml.safe_dump(raw))
    return path


class FakeWorld:
    """Fake world that records its calls and leaves a run folder with a summary."""

    def __init__(self, root):
        self.root = root
        self.asked = []
        self.meanwhile = lambda: None
        self.summary = SUMMARY

    def run(self, fleet, options, console=None):
        self.asked.append((fleet, options))
        folder = RunFolder.create(self.root, "run")
        # The worlds handle Ctrl-C themselves: they end early.
        with contextlib.suppress(KeyboardInterrupt):
            self.meanwhile()
        folder.summary.write_text(json.dumps(self.summary))
        return folder.path


@pytest.fixture
def world(tmp_path, monkeypatch):
    fake = FakeWorld(tmp_path / "runs")
    for module, function in (
        ("ekya.runtime.live", "run_live"),
        ("ekya.simulation.emulated.run", "run_emulated"),
    ):
        stand_in = ModuleType(module)
        setattr(stand_in, function, fake.run)
        monkeypatch.setitem(sys.modules, module, stand_in)
    return fake


def error_line(capfd):
    """Returns standard error, which must be one line; standard output must be empty."""
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("ekya: ")
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["rnu"], "No such command"),
        (["run", "--fleet"], "No such option"),
        (["run", "--seed", "x"], "--seed"),
        (["run", "--clock", "moon"], "'moon' is not one of 'wall', 'virtual'"),
        (["run", "--windows", "0"], "--windows"),
        (["run", "a.yaml", "b.yaml"], "unexpected extra argument"),
        (["run", "none.yaml"], "none.yaml: there is no such file; check the path"),
        (["run", "--scheduler", "magic"], "scheduler: there is no 'magic'; choose one of"),
        (["run", "--scheduler", "uniform:inference=2000"], "choose 0 to 1000"),
        (
            ["run", "--video", "a.mp4"],
            "--video: a golden detector has to label what it shows; add --golden FILE",
        ),
        (
            ["run", "--camera", "rtsp://u:tops3cret@cam/", "--golden", "a.onnx"],
            "--camera: every user of this machine can see a password",
        ),
        (["run", "--video", "rtsp://u:tops3cret@cam/", "--golden", "a.onnx"], "--video: it names files"),
        (["run", "--golden", "a.onnx"], "--golden: it goes with --video"),
        (
            ["run", "f.yaml", "--video", "a.mp4"],
            "--video: f.yaml names the cameras already; use one of the two",
        ),
        (["run", "--resume", "none"], "this is not a run folder"),
        (["run", "--resume", "none", "--gpus", "2"], "--resume: a run goes on with the fleet"),
        (["run", "--json", "none/out.json"], "--json none/out.json: there is no folder none"),
        (["run", "--json", "."], "--json .: this is a folder; name a file in it"),
        (["calibrate"], "Missing option '--out'"),
        (["compare", "--schedulers", "thief,oracle"], "oracle has to know what a retraining will give"),
    ],
)
def test_what_the_user_can_put_right_is_one_line_and_exit_code_2(
    arguments, says, capfd, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 2
    assert says in error_line(capfd)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "--clock", "virtual"], "a live camera cannot be watched on virtual time, since"),
        (["compare"], "key 'streams.cam-1.source': a live camera cannot be watched on virtual time"),
        (["profile", "--out", "t.parquet"], "frames come only once; record it with ekya record, or use"),
        (["run"], "key 'streams.cam-1.source.url': the environment variable EKYA_NOT_SET is not set"),
    ],
)
def test_what_live_cameras_cannot_do_is_said_before_anything_is_begun(
    arguments, says, capfd, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f.yaml").write_text(
        "gpus: 1\nwindow_s: 20\ngolden: {model: fasterrcnn_mobilenet_v3_large_320_fpn}\n"
        "preparation: {share_milli: 500}\n"
        "streams: [{id: cam-1, source: {kind: camera, url: 'rtsp://u:${EKYA_NOT_SET}@cam/'}}]\n"
    )
    assert cli.main([*arguments, "f.yaml"]) == 2
    assert says in error_line(capfd)
    assert [path.name for path in tmp_path.iterdir()] == ["f.yaml"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("oracle", "use ekya simulate TRACE --scheduler oracle"),
        ("cloud:up=8", "scheduler: cloud serves weights that are not trained on the GPUs here"),
        ("reuse", "use --clock virtual, or choose another scheduler"),
    ],
)
def test_a_live_run_has_no_scheduler_that_needs_more_than_it_has(name, says, world, fleet, capfd):
    assert cli.main(["run", str(fleet), "--scheduler", name]) == 2
    assert says in error_line(capfd)
    assert not world.asked


def test_virtual_time_brings_weights_from_elsewhere(world, fleet):
    assert cli.main(["run", str(fleet), "--clock", "virtual", "--scheduler", "reuse"]) == 0
    assert world.asked[0][1].scheduler == "reuse"


def test_errors_of_the_system_that_have_a_remedy_are_one_line_too(capfd, monkeypatch, tmp_path, world, fleet):
    def full_disk():
        with user_errors(tmp_path):
            raise OSError(28, "No space left on device")

    world.meanwhile = full_disk
    assert cli.main(["run", str(fleet)]) == 2
    assert (
        error_line(capfd) == f"ekya: {tmp_path}: the disk is full; free some space or choose another folder\n"
    )


def test_arguments_reach_the_run(world, fleet, tmp_path):
    asked = ["--scheduler", "uniform", "--seed", "7", "--gpus", "0.95", "--window", "12", "--windows", "3"]
    more = ["--name", "monday", "--runs", str(tmp_path), "--shares", "cpu", "--no-dashboard"]
    assert cli.main(["run", str(fleet), *asked, *more, "--classes", "person,car"]) == 0
    run_fleet, options = world.asked[0]
    assert (run_fleet.gpus, run_fleet.window_s, run_fleet.windows) == (0.95, 12, 3)
    assert run_fleet.classes == ("person", "car")
    assert (options.scheduler, options.seed, options.name) == ("uniform", 7, "monday")
    assert (options.runs, options.shares, options.dashboard) == (tmp_path, "cpu", False)


def test_the_table_ends_a_run_and_names_its_folder(world, fleet, capfd):
    assert cli.main(["run", str(fleet)]) == 0
    out = capfd.readouterr().out
    assert "cam-1" in out
    assert str(world.root / "run") in out


def test_json_to_standard_output_is_alone_there_whatever_a_world_prints(world, fleet, capfd):
    world.meanwhile = lambda: os.system("echo from a child")
    assert cli.main(["run", str(fleet), "--clock", "virtual", "--json", "-"]) == 0
    captured = capfd.readouterr()
    assert json.loads(captured.out) == SUMMARY
    assert "from a child" in captured.err
    assert "cam-1" in captured.err


def test_json_to_a_file_leaves_the_table_where_it_was(world, fleet, capfd, tmp_path):
    assert cli.main(["run", str(fleet), "--json", str(tmp_path / "out.json")]) == 0
    assert json.loads((tmp_path / "out.json").read_text()) == SUMMARY
    assert "cam-1" in capfd.readouterr().out


def test_ctrl_c_is_130_and_everything_is_reported(world, fleet, capfd):
    world.meanwhile = lambda: signal.raise_signal(signal.SIGINT)
    before = signal.getsignal(signal.SIGINT)
    assert cli.main(["run", str(fleet), "--json", "-"]) == 130
    assert json.loads(capfd.readouterr().out) == SUMMARY
    assert signal.getsignal(signal.SIGINT) is before


def test_more_cameras_than_fit_are_refused_before_anything_starts_unless_overload_is_asked_for(
    world, fleet, capfd
):
    raw = yaml.safe_load(fleet.read_text()) | {"gpus": 0.01}
    fleet.write_text(yaml.safe_dump(raw))
    arguments = ["run", str(fleet), "--clock", "virtual"]
    assert cli.main(arguments) == 2
    said = error_line(capfd)
    assert "gpus: one camera is too much for 0.01 cores" in said
    assert "ms here" in said
    assert "0 of them fit" in said
    assert world.asked == []
    assert cli.main([*arguments, "--overload"]) == 0
    ((ran, options),) = world.asked
    assert options.overload
    assert "Given up: overload: not even one frame a second" in capfd.readouterr().out
    assert ran.says("preparation.streams")


UNWELL = {
    "sentence": "the streams were not well in 3 of their 4 windows (3 behind)",
    "streams": {"cam-1": [{"index": 1, "state": "behind", "reason": "so", "remedy": "what helps"}]},
}


def test_a_run_whose_streams_were_not_well_is_exit_code_3_and_one_sentence(world, fleet, capfd):
    world.summary = SUMMARY | {"health": UNWELL}
    for arguments in (["--clock", "virtual", "--json", "-"], ["--json", "-"]):
        assert cli.main(["run", str(fleet), *arguments]) == 3
        out, err = capfd.readouterr()
        assert json.loads(out) == world.summary
        assert "cam-1 was behind in window 1: so; what helps" in err
        assert err.splitlines()[-1] == f"ekya: {UNWELL['sentence']}"
    world.meanwhile = lambda: signal.raise_signal(signal.SIGINT)
    assert cli.main(["run", str(fleet)]) == 130, "whoever ends it early knows why it is not well"


def test_help_tells_the_exit_code_of_a_run_that_was_not_well(capfd):
    for command in ("run", "replay"):
        cli.main([command, "--help"])
        assert "Exit code 3" in capfd.readouterr().out


def test_a_live_run_cannot_have_more_gpus_than_there_are_but_virtual_time_can(world, fleet, capfd):
    assert cli.main(["run", str(fleet), "--gpus", "5000", "--shares", "cpu"]) == 2
    assert "gpus: 5000 is more than the" in error_line(capfd)
    assert cli.main(["run", str(fleet), "--gpus", "5000", "--clock", "virtual"]) == 0


def test_a_run_is_resumed_by_path_or_name_with_its_own_fleet(world, fleet, tmp_path):
    folder = RunFolder.create(tmp_path / "runs", "monday")
    folder.fleet.write_text(fleet.read_text())
    for named in (str(folder.path), "monday"):
        assert cli.main(["run", "--resume", named, "--runs", str(tmp_path / "runs")]) == 0
        run_fleet, options = world.asked.pop()
        assert run_fleet.name == "small"
        assert options.resume == folder.path
    assert cli.main(["run", "--resume", str(folder.path), "--clock", "virtual"]) == 2


@pytest.fixture
def comparing(monkeypatch):
    """Fake of ``emulated.compare`` whose accuracies depend on the seed alone; returns its calls."""
    asked = []

    def compare(fleet, schedulers, seeds, options):
        asked.append((fleet, schedulers, seeds))
        runs = [
            {**SUMMARY, "scheduler": name, "seed": seed, "mean_accuracy": 0.5 + 0.1 * seed}
            for seed in seeds
            for name in schedulers
        ]
        return {"runs": runs, "mean": {}}

    monkeypatch.setattr(ekya.cli.compare, "compare", compare)
    return asked


def test_compare_prints_the_means_over_the_seeds(comparing, fleet, capfd):
    assert cli.main(["compare", str(fleet), "--schedulers", "thief,uniform", "--seeds", "1,2"]) == 0
    assert comparing[0][1:] == (("thief", "uniform"), (1, 2))
    out = capfd.readouterr().out
    assert "uniform" in out
    assert "65.0" in out
    assert "2 of 2" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--seeds", "1,x"], "--seeds 1,x: these are not whole numbers; write them as 0,1,2"),
        (["--seeds", "1,1"], "--seeds: the same one stands there twice"),
        (["--schedulers", "thief,thief"], "--schedulers: the same one stands there twice"),
        (["--schedulers", "thief,"], "scheduler: there is no ''"),
    ],
)
def test_compare_refuses_what_it_cannot_compare(comparing, arguments, says, capfd):
    assert cli.main(["compare", *arguments]) == 2
    assert says in error_line(capfd)


def test_doctor_says_what_is_here_and_what_is_used(tmp_path):
    no_gpu = GpuInventory((), None, "no NVIDIA driver answers")
    examination = examine(tmp_path / "runs", no_gpu, lambda inventory: MpsFound(False, inventory.why))
    assert (examination.shares, examination.device) == ("cpu", "cpu")
    assert "not mps: no NVIDIA driver answers" in examination.reasons
    found = as_json(examination)["findings"]
    what = ("CPU", "Memory", "Shared memory", "Disk", "GPU", "MPS", "Ray", "torch", "OpenCV", "Shipped fleet")
    assert {*what, "Forward passes"} == set(found)
    assert as_json(examination)["measured"] == {}
    assert json.loads(json.dumps(as_json(examination)))["gpus"] == examination.gpus


def test_doctor_tells_of_the_self_test_that_was_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    no_gpu = GpuInventory((), None, "no NVIDIA driver answers")

    def forward():
        examination = examine(tmp_path, no_gpu, lambda inventory: MpsFound(False, inventory.why))
        return as_json(examination)["findings"]["Forward passes"]

    assert forward()["found"].startswith("not tested yet")
    fleet = load_fleet(shipped_path(DEFAULT_FLEET))
    key = self_test_key("cpu", fleet.edge.model, resolutions_to_measure(fleet))
    SELF_TESTS.save(key, SelfTest(ForwardWay(channels_last=True), 8.0, 4.0, (), 0.5))
    told = "channels last: 4.0 ms for a typical frame of a resnet18, plain 8.0 ms"
    assert forward() == {"found": told, "fine": True}


@pytest.mark.live
@pytest.mark.virtual
def test_doctor_measures_what_the_shipped_fleets_work_takes(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    report = tmp_path / "doctor.json"
    assert cli.main(["doctor", "--runs", str(tmp_path), "--measure", "--json", str(report)]) == 0
    told = json.loads(report.read_text())
    assert told["measured"]["forward"]["way"] in told["findings"]["Forward passes"]["found"]
    assert told["findings"]["Measured"]["found"].startswith("a frame ")


def test_a_card_is_for_virtual_time_only_and_must_be_one(tmp_path, capfd):
    assert cli.main(["run", "--card", "card.json"]) == 2
    assert "--card: a live run plans with what it measures here; add --clock virtual" in error_line(capfd)
    (tmp_path / "card.json").write_text("{}")
    assert cli.main(["run", "--clock", "virtual", "--card", str(tmp_path / "card.json")]) == 2
    assert "is not a cost card (device: Field required)" in error_line(capfd)


def test_doctor_says_what_mps_can_do_here(tmp_path):
    gpus = GpuInventory((Gpu(0, "a GPU", 8 << 30, 7 << 30, "GPU-1"),), "600.1", "1 NVIDIA GPU")
    found = MpsFound(True, "/usr/bin/nvidia-cuda-mps-control can serve each GPU")
    examination = examine(tmp_path / "runs", gpus, lambda _inventory: found)
    assert as_json(examination)["findings"]["MPS"] == {"found": found.why, "fine": True}
    assert any(found.why in reason for reason in examination.reasons)
    assert examination.device == "cuda"


def test_a_folder_without_permission_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(UserError, match="no permission"), output(str(tmp_path / "out.json")):
        pytest.fail("the work began")


def test_help_is_quick_since_it_imports_no_engine():
    code = (
        "import sys; from ekya import cli; cli.main(['run', '--help']); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'ray', 'cv2', 'numpy')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "Examples" in done.stdout


def test_version_and_help_go_to_standard_output(capfd):
    assert cli.main(["--version"]) == 0
    assert capfd.readouterr().out == f"ekya {__version__}\n"
    assert cli.main([]) == 0
    assert "compare" in capfd.readouterr().out

"""Tests of ``ekya run`` and ``ekya compare`` with fake worlds."""

import json
import os
import signal

import pytest
import yaml
from commands import error_line, live_camera, run_summary, write_fleet

import ekya.simulation.emulated.compare
from ekya import cli
from ekya.cli.fleet_from_options import read_fleet, repeat_cameras
from ekya.cli.run import RunConfig
from ekya.config.fleet_reading import load_fleet
from ekya.control.loop import first_state
from ekya.core.errors import UserError
from ekya.pipeline.setup import loop_options
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.segmented_journal import SegmentedJournal
from ekya.system.files import user_errors


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "--clock", "virtual"], "a live camera cannot be watched on virtual time, since"),
        (["compare"], "key 'streams.cam-1.source': a live camera cannot be watched on virtual time"),
        (["profile", "--out", "t.parquet"], "frames come only once; record it with ekya record, or use"),
        (["run"], "key 'streams.cam-1.source.url': the environment variable EKYA_NOT_SET is not set"),
        (["run", "--classes", "person,cars"], "key 'classes': the golden detector knows no 'cars', and no"),
    ],
)
def test_commands_that_live_cameras_do_not_allow_are_refused_at_once(
    arguments, says, capfd, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    write_fleet(tmp_path, **live_camera("rtsp://u:${EKYA_NOT_SET}@cam/"))
    assert cli.main([*arguments, "fleet.yaml"]) == 2
    assert says in error_line(capfd)
    assert [path.name for path in tmp_path.iterdir()] == ["fleet.yaml"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("oracle", "use ekya simulate TRACE --scheduler oracle"),
        ("cloud:up=8", "--scheduler: cloud serves weights that are not trained on the GPUs here"),
        ("reuse", "use ekya simulate TRACE --scheduler reuse"),
    ],
)
def test_run_live_with_a_scheduler_it_cannot_serve_is_refused(name, says, world, fleet, capfd):
    assert cli.main(["run", str(fleet), "--scheduler", name]) == 2
    assert says in error_line(capfd)
    assert not world.runs


def test_run_live_in_a_folder_that_cannot_be_made_is_refused_at_once(world, fleet, capfd):
    assert cli.main(["run", str(fleet), "--runs", str(fleet)]) == 2
    assert f"{fleet}: there is a file of this name; choose another folder" in error_line(capfd)
    assert world.runs == []


def test_run_on_virtual_time_accepts_a_scheduler_of_remote_weights(world, fleet):
    assert cli.main(["run", str(fleet), "--clock", "virtual", "--scheduler", "cloud:up=8"]) == 0
    assert world.runs[0][1].scheduler == "cloud:up=8"


@pytest.mark.parametrize("clock", ["wall", "virtual"])
@pytest.mark.parametrize(("window", "runs_s"), [([], 9), (["--window", "12"], 12)])
def test_run_under_a_preset_has_its_settings_and_the_windows_that_are_set(
    clock, window, runs_s, world, fleet
):
    assert cli.main(["run", str(fleet), "--clock", clock, "--scheduler", "paper", *window]) == 0
    run_fleet, run_options = world.runs[0]
    assert run_options.scheduler == run_fleet.scheduler == "paper"
    assert (run_fleet.preparation.profiler, run_fleet.checkpoints) == ("paper", True)
    assert run_fleet.window_s == runs_s


def test_run_with_a_full_disk_prints_one_line(capfd, monkeypatch, tmp_path, world, fleet):
    def full_disk(folder):
        with user_errors(tmp_path):
            raise OSError(28, "No space left on device")

    world.during = full_disk
    assert cli.main(["run", str(fleet)]) == 2
    assert (
        error_line(capfd) == f"ekya: {tmp_path}: the disk is full; free some space or choose another folder\n"
    )


def test_run_passes_its_options_to_the_world(world, fleet, tmp_path):
    options = ["--scheduler", "uniform", "--seed", "7", "--gpus", "0.95", "--window", "12", "--windows", "3"]
    more = ["--name", "monday", "--runs", str(tmp_path), "--shares", "cpu", "--no-dashboard"]
    assert cli.main(["run", str(fleet), *options, *more, "--classes", "person,car"]) == 0
    run_fleet, run_options = world.runs[0]
    assert (run_fleet.gpus, run_fleet.window_s, run_fleet.windows) == (0.95, 12, 3)
    assert run_fleet.classes == ("person", "car")
    assert (run_options.scheduler, run_options.seed, run_options.name) == ("uniform", 7, "monday")
    assert (run_options.runs, run_options.shares, run_options.dashboard) == (tmp_path, "cpu", False)


def test_run_with_json_to_stdout_prints_nothing_else_there(world, fleet, capfd):
    world.during = lambda folder: os.system("echo from a child")
    assert cli.main(["run", str(fleet), "--clock", "virtual", "--json", "-"]) == 0
    captured = capfd.readouterr()
    assert json.loads(captured.out) == run_summary()
    assert "from a child" in captured.err
    assert "cam-1" in captured.err


def test_run_with_json_to_a_file_still_ends_with_its_table_and_folder(world, fleet, capfd, tmp_path):
    assert cli.main(["run", str(fleet), "--json", str(tmp_path / "out.json")]) == 0
    assert json.loads((tmp_path / "out.json").read_text()) == run_summary()
    out = capfd.readouterr().out
    assert "cam-1" in out
    assert str(world.root / "run") in out


def test_run_after_ctrl_c_reports_and_exits_with_130(world, fleet, capfd):
    world.during = lambda folder: signal.raise_signal(signal.SIGINT)
    before = signal.getsignal(signal.SIGINT)
    assert cli.main(["run", str(fleet), "--json", "-"]) == 130
    assert json.loads(capfd.readouterr().out) == run_summary()
    assert signal.getsignal(signal.SIGINT) is before


def test_run_with_too_many_cameras_needs_overload(world, fleet, capfd):
    raw = yaml.safe_load(fleet.read_text()) | {"gpus": 0.01}
    fleet.write_text(yaml.safe_dump(raw))
    arguments = ["run", str(fleet), "--clock", "virtual"]
    assert cli.main(arguments) == 2
    said = error_line(capfd)
    assert "gpus: one camera is too much for 0.01 cores" in said
    assert "ms here" in said
    assert "0 of them fit" in said
    assert world.runs == []
    assert cli.main([*arguments, "--overload"]) == 0
    ((ran, options),) = world.runs
    assert options.overload
    assert "Given up: overload: not even one frame a second" in capfd.readouterr().out
    assert ran.is_set("preparation.streams")


UNWELL = {
    "sentence": "the streams were not well in 3 of their 4 windows (3 behind)",
    "streams": {"cam-1": [{"index": 1, "state": "behind", "reason": "so", "remedy": "what helps"}]},
}


def test_run_that_was_unhealthy_exits_with_3(world, fleet, capfd):
    world.summary = run_summary(health=UNWELL)
    for arguments in (["--clock", "virtual", "--json", "-"], ["--json", "-"]):
        assert cli.main(["run", str(fleet), *arguments]) == 3
        out, err = capfd.readouterr()
        assert json.loads(out) == world.summary
        assert "cam-1 was behind in window 1: so; what helps" in err
        assert err.splitlines()[-1] == f"ekya: {UNWELL['sentence']}"
    world.during = lambda folder: signal.raise_signal(signal.SIGINT)
    assert cli.main(["run", str(fleet)]) == 130, "Ctrl-C goes first"


def test_run_live_with_more_gpus_than_exist_is_refused(world, fleet, capfd):
    assert cli.main(["run", str(fleet), "--gpus", "5000", "--shares", "cpu"]) == 2
    assert "gpus: 5000 is more than the" in error_line(capfd)
    assert cli.main(["run", str(fleet), "--gpus", "5000", "--clock", "virtual"]) == 0


def test_run_with_resume_takes_the_fleet_of_the_folder(world, fleet, tmp_path):
    folder = RunFolder.create_numbered(tmp_path / "runs", "monday")
    folder.fleet.write_text(fleet.read_text())
    journal = SegmentedJournal(folder, "ekya", loop_options(load_fleet(fleet), (), 0, 1, 1000))
    journal.write_snapshot(first_state())
    journal.close()
    for named in (str(folder.path), "monday"):
        assert cli.main(["run", "--resume", named, "--runs", str(tmp_path / "runs")]) == 0
        run_fleet, options = world.runs.pop()
        assert run_fleet.name == "small"
        assert options.resume == folder.path
    assert cli.main(["run", "--resume", str(folder.path), "--clock", "virtual"]) == 2


def test_run_with_a_card_needs_virtual_time_and_a_valid_card(tmp_path, capfd):
    assert cli.main(["run", "--card", "card.json"]) == 2
    assert "--card: a live run plans with what it measures here; add --clock virtual" in error_line(capfd)
    (tmp_path / "card.json").write_text("{}")
    assert cli.main(["run", "--clock", "virtual", "--card", str(tmp_path / "card.json")]) == 2
    assert "is not a cost card (device: Field required)" in error_line(capfd)


@pytest.fixture
def comparing(monkeypatch):
    """Fake of ``emulated.compare`` whose accuracies depend on the seed alone; returns its calls."""
    asked = []

    def compare(fleet, schedulers, seeds, options):
        asked.append((fleet, schedulers, seeds))
        runs = [
            run_summary(scheduler=name, seed=seed, mean_accuracy=0.5 + 0.1 * seed)
            for seed in seeds
            for name in schedulers
        ]
        return {"runs": runs, "mean": {}, "pairs": []}

    monkeypatch.setattr(ekya.simulation.emulated.compare, "compare", compare)
    return asked


def test_compare_with_two_seeds_prints_means(comparing, fleet, capfd):
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
        (["--schedulers", "thief,"], "--schedulers: there is no ''"),
    ],
)
def test_compare_with_invalid_options_is_refused(comparing, arguments, says, capfd):
    assert cli.main(["compare", *arguments]) == 2
    assert says in error_line(capfd)


def test_cameras_are_repeated_with_other_seeds_and_what_is_not_rendered_is_refused(tmp_path):
    fleet = read_fleet(RunConfig(cameras=6))
    names = [stream.id for stream in fleet.streams]
    assert names == ["cam-1", "cam-2", "cam-3", "cam-4", "cam-1-2", "cam-2-2"]
    assert len({stream.source.seed for stream in fleet.streams}) == 6
    assert [stream.id for stream in read_fleet(RunConfig(cameras=3)).streams] == names[:3]
    with pytest.raises(UserError, match="--cameras"):
        repeat_cameras(load_fleet(write_fleet(tmp_path, **live_camera("rtsp://cam/"))), 2)
    with pytest.raises(UserError, match="--cameras"):
        read_fleet(RunConfig(video=["north.mp4"], cameras=2))

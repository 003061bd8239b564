"""Tests of whole runs in the emulated world, with real frames, models and training."""

import json
import os
import signal
from pathlib import Path

import pytest
import yaml

import ekya.simulation.emulated.run
from ekya.cli import main
from ekya.config.fleet_reading import load_fleet
from ekya.config.run_options import RunOptions
from ekya.config.shipped import shipped_path
from ekya.control.journal_replay import replay_journal
from ekya.core.commands import BeginPreparation, EndPreparation, StartRetraining
from ekya.core.errors import UserError
from ekya.core.events import (
    DriftDetected,
    LabelsReady,
    ModelSwapped,
    ProfileReady,
    RetrainProgress,
)
from ekya.core.profile import Profiler
from ekya.core.shares import Job, Work
from ekya.core.trace import BASE
from ekya.planning.schedulers.allocation import kept_floors
from ekya.planning.schedulers.registry import make_scheduler
from ekya.results.storage.journal import read_journal
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.trace_file import read_trace
from ekya.simulation.emulated.compare import compare
from ekya.simulation.emulated.run import emulate
from ekya.streams.ingest.process import SourceProcess

pytestmark = [pytest.mark.live, pytest.mark.virtual]

SEED = 3


@pytest.fixture(scope="module")
def fleet_file(tmp_path_factory):
    """Two cameras of the shipped fleet, drifted from the start, in short windows and on few GPUs."""
    raw = yaml.safe_load(shipped_path("datasets/synthetic_city/fleet.yaml").read_text())
    raw |= {"name": "two", "window_s": 12, "windows": 2, "gpus": 1.0, "min_accuracy": 0.6}
    raw["preparation"] = {"share_milli": 900, "fraction": 0.15}
    raw["retraining"] |= {"epochs": [2, 4], "data_fractions": [1.0]}
    raw["streams"] = raw["streams"][:2]
    for stream in raw["streams"]:
        stream["source"] |= {"fps": 4, "scenes": stream["source"]["scenes"][1:2]}
        stream["source"]["scenes"][0]["at_s"] = 0
    path = tmp_path_factory.mktemp("fleet") / "two.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


@pytest.fixture(scope="module")
def fleet(fleet_file):
    return load_fleet(fleet_file)


@pytest.fixture(scope="module")
def alone(fleet, tmp_path_factory):
    """Folder of a single run."""
    folder = RunFolder.create_numbered(tmp_path_factory.mktemp("alone"), "run")
    emulate(folder, fleet, "ekya", SEED, quietly)
    return folder


@pytest.fixture(scope="module")
def compared(fleet, tmp_path_factory):
    """Comparison of the same run with one that never retrains."""
    runs = tmp_path_factory.mktemp("compared")
    return compare(fleet, ("ekya", Never()), (SEED,), RunOptions(runs=runs))


class Never:
    """A scheduler that is no name of the registry."""

    name = "never"
    needs = make_scheduler("no-retrain").needs

    def plan(self, view):
        return make_scheduler("no-retrain").plan(view)


def quietly(_batch, _turn):
    """Observes nothing."""


def written(folder):
    """Returns the journal and the summary, without its host costs."""
    summary = json.loads(folder.summary.read_text())
    assert summary.pop("host")["wall_s"] > 0
    return json.dumps(summary), folder.journal.read_bytes()


def test_emulate_same_seed_gives_same_summary_bytes(alone, compared):
    again = RunFolder(Path(compared["runs"][0]["folder"]))
    assert again.path != alone.path
    assert written(again) == written(alone)


def test_emulate_run_retrains_and_journal_replays(alone):
    summary = json.loads(alone.summary.read_text())
    assert summary["frames"]["lost"] == 0
    assert summary["frames"]["arrived"] == 2 * 2 * 12 * 4
    assert summary["retrainings"]["started"] >= 1
    assert summary["labelling_gpu_s"] > 0
    assert summary["profiling_gpu_s"] > 0

    name, constants, turns = read_journal(alone.journal)
    scheduler = make_scheduler(name)
    replayed = list(replay_journal(turns, constants, scheduler.needs, scheduler.plan))
    assert len(replayed) == len(turns)
    assert all(turn.same for turn in replayed)


def test_emulate_preparation_pushes_no_inference_below_minimum(alone):
    shares, pushed = pushed_below_minimum(alone)
    assert shares, "something was prepared"
    assert pushed == []


def pushed_below_minimum(folder):
    """Returns the shares of preparations, and the streams that would reach a_MIN without one, in order."""
    name, constants, turns = read_journal(folder.journal)
    scheduler, views = make_scheduler(name), []

    def planner(view):
        views.append(view)
        return scheduler.plan(view)

    shares, pushed, held_milli = [], [], 0
    for turn, replayed in zip(turns, replay_journal(turns, constants, scheduler.needs, planner), strict=True):
        assert replayed.same
        for command in turn.commands:
            if isinstance(command, BeginPreparation):
                held_milli = command.share_milli
                shares.append(held_milli)
            elif isinstance(command, EndPreparation):
                held_milli = 0
        if turn.plan is not None and held_milli:
            view = views[-1]
            could = kept_floors(view, view.capacity_milli + held_milli)
            below = [one.stream for one in turn.plan.phases[0].assignments if one.below_min]
            pushed += [stream for stream in below if could.get(Job(stream, Work.INFERENCE))]
    return shares, pushed


@pytest.mark.long
def test_emulate_remote_weights_are_trained_and_serve(fleet, tmp_path):
    folder = RunFolder.create_numbered(tmp_path, "away")
    two_epochs = fleet.retraining.model_copy(update={"epochs": fleet.retraining.epochs[:1]})
    longer = {"windows": 3, "gpus": 1.2, "min_accuracy": 0.4, "retraining": two_epochs}
    emulate(folder, fleet.model_copy(update=longer), "cloud:up=20:down=200", SEED, quietly)
    _, _, turns = read_journal(folder.journal)
    events = [event for turn in turns for event in turn.events]
    swapped = [event for event in events if isinstance(event, ModelSwapped)]
    assert {event.stream for event in swapped} == {"cam-1", "cam-2"}
    assert {event.t_us // 12_000_000 for event in swapped} == {1, 2}
    summary = json.loads(folder.summary.read_text())
    assert summary["retrainings"]["started"] == summary["retrainings"]["finished"] == len(swapped)
    assert all(stream["gain"] > 0 for stream in summary["streams"].values())


def test_compare_schedulers_are_scored_on_same_objects(compared):
    assert set(compared["mean"]) == {"ekya", "never"}
    assert [run["scheduler"] for run in compared["runs"]] == ["ekya", "never"]
    counted = [[own["counted_objects"] for own in run["streams"].values()] for run in compared["runs"]]
    assert counted[0] == counted[1]
    first = [run["streams"]["cam-1"]["windows"][0]["accuracy"] for run in compared["runs"]]
    assert first[0] > first[1], "the first labels have adapted it"
    assert compared["runs"][1]["retrainings"]["started"] == 0
    # It serves the base model, so on the same frames only skipped ones can differ.
    for stream in compared["runs"][1]["streams"].values():
        assert stream["gain"] == pytest.approx(0.0, abs=0.03)


def test_compare_takes_finished_runs_of_an_earlier_comparison(fleet, compared):
    (first, never) = (Path(run["folder"]) for run in compared["runs"])
    again = compare(fleet, ("ekya",), (SEED,), RunOptions(runs=first.parents[1]))
    assert [run["folder"] for run in again["runs"]] == [str(first)]
    assert sorted(first.parent.iterdir()) == sorted([first, never])
    assert again["runs"][0]["retrainings"] == compared["runs"][0]["retrainings"]


@pytest.mark.long
def test_compare_runs_a_preset_in_the_windows_of_the_fleet(fleet, tmp_path):
    """The fleet's settings are the preset's, but not its windows, which all schedulers share."""
    unset = fleet.model_copy(update={"window_s": 12.0, "streams": fleet.streams[:1]})
    unset.model_fields_set.discard("window_s")
    result = compare(unset, ("paper",), (SEED,), RunOptions(runs=tmp_path))
    (run,) = result["runs"]
    scheduler, options, steps = read_journal(RunFolder(Path(run["folder"])).journal)
    assert scheduler == run["scheduler"] == "paper"
    assert (options.window_us, options.profiler) == (12_000_000, Profiler.PAPER)
    assert any(isinstance(event, ProfileReady) for step in steps for event in step.events)
    assert any(isinstance(command, StartRetraining) for step in steps for command in step.commands)


@pytest.mark.long
def test_record_fleet_trace_equals_events_of_a_run(fleet_file, tmp_path, capsys):
    """Every label count, micro-profile and epoch of the run is in the trace, with the same figures.

    The run tries γ, and labels no window inside, as a trace does.
    """
    raw = yaml.safe_load(fleet_file.read_text())
    raw["preparation"] |= {"profiler": "paper"}
    fleet_file = tmp_path / "two.yaml"
    fleet_file.write_text(yaml.safe_dump(raw | {"drift": {"notice": False}}))
    alone = RunFolder.create_numbered(tmp_path, "alone")
    emulate(alone, load_fleet(fleet_file), "ekya", SEED, quietly)
    file = tmp_path / "profiles.parquet"
    first = ["profile", str(fleet_file), "--out", str(file), "--seed"]
    asked = [*first, str(SEED)]
    assert main([*asked, "--streams", "cam-1"]) == 0
    assert [stream.stream for stream in read_trace(file).streams] == ["cam-1"]
    assert main(asked) == 2
    assert "--resume" in capsys.readouterr().err
    assert main([*first, "4", "--resume"]) == 2
    assert "recorded with seed 3" in capsys.readouterr().err
    assert main([*asked, "--resume", "--json", str(tmp_path / "said.json")]) == 0
    said = json.loads((tmp_path / "said.json").read_text())
    assert (said["streams"], said["windows"], said["trainings"]) == (["cam-1", "cam-2"], 2, 4)

    trace = read_trace(file)
    windows = {stream.stream: stream.windows[1] for stream in trace.streams}
    turns = read_journal(alone.journal)[2]
    started = {
        command.job: command
        for turn in turns
        for command in turn.commands
        if isinstance(command, StartRetraining)
    }
    seen = set()
    for event in (event for turn in turns for event in turn.events):
        match event:
            case LabelsReady():
                window = windows[event.stream]
                assert (event.training_crops, event.validation_crops, event.gpu_s) == (
                    window.training_crops,
                    window.validation_crops,
                    window.labelling_gpu_s,
                )
                assert event.serving_accuracy == pytest.approx(window.start_of(BASE).validation_accuracy)
            case ProfileReady():
                trial = windows[event.stream].best_trial(event.curve.family, BASE, Profiler.PAPER)
                assert event.curve == trial.curve
            case RetrainProgress():
                config = started[event.job].config
                training = windows[event.stream].best_training(config, BASE)
                epoch = training.epochs[event.epoch - 1]
                assert epoch.gpu_s == pytest.approx(event.gpu_s)
                assert epoch.standings[0].validation_accuracy == pytest.approx(event.validation_accuracy)
            case _:
                continue
        seen.add(type(event))
    assert seen == {LabelsReady, ProfileReady, RetrainProgress}


@pytest.fixture
def dying(monkeypatch):
    """Kills the decoders of given sources before they have opened anything."""

    def of(*specs):
        def opened(spec, classes, areas):
            made = SourceProcess(spec, classes, areas=areas)
            if spec in specs:
                os.kill(made.pid, signal.SIGKILL)
            return made

        monkeypatch.setattr(ekya.simulation.emulated.run, "SourceProcess", opened)

    return of


def test_emulate_dead_decoder_ends_only_its_stream(fleet, dying, tmp_path):
    dying(fleet.streams[0].played)
    folder = RunFolder.create_numbered(tmp_path, "run")
    emulate(folder, fleet.model_copy(update={"windows": 1}), "no-retrain", SEED, quietly)
    summary = json.loads(folder.summary.read_text())
    assert summary["frames"]["arrived"] == 12 * 4
    assert [stream["set_aside"] for stream in summary["streams"].values()] == [
        "killed by signal SIGKILL",
        None,
    ]


def test_emulate_all_decoders_dead_raises(fleet, dying, tmp_path):
    dying(*(stream.played for stream in fleet.streams))
    folder = RunFolder.create_numbered(tmp_path, "run")
    with pytest.raises(UserError, match=r"its process failed \(killed by signal SIGKILL"):
        emulate(folder, fleet, "no-retrain", SEED, quietly)


def drifts_of(folder):
    """Returns the drifts that a run noticed, in order."""
    events = [event for turn in read_journal(folder.journal)[2] for event in turn.events]
    return [event for event in events if isinstance(event, DriftDetected)]


@pytest.mark.long
def test_emulate_moved_camera_is_noticed_within_three_seconds(tmp_path):
    raw = yaml.safe_load(shipped_path("datasets/synthetic_city/fleet.yaml").read_text())
    raw |= {"name": "one", "window_s": 9, "windows": 2, "streams": raw["streams"][:1]}
    raw["streams"][0]["source"]["scenes"][1]["at_s"] = 14
    folders = []
    for notice in (False, True):
        path = tmp_path / f"{notice}.yaml"
        path.write_text(yaml.safe_dump(raw | {"drift": {"notice": notice}}))
        folders.append(RunFolder.create_numbered(tmp_path, str(notice)))
        emulate(folders[-1], load_fleet(path), "no-retrain", SEED, quietly)
    none, (drift,) = map(drifts_of, folders)
    assert none == []
    assert (drift.stream, drift.window) == ("cam-1", 1)
    assert 14_000_000 <= drift.since_us <= 14_600_000
    assert 14_000_000 < drift.t_us <= 17_000_000
    without, with_ = (json.loads(folder.summary.read_text())["streams"]["cam-1"] for folder in folders)
    (told,) = with_["drifts"]
    assert told == {
        "at_s": drift.t_us / 1e6,
        "since_s": drift.since_us / 1e6,
        "reason": drift.reason,
    }
    assert without["drifts"] == []


@pytest.mark.long
def test_emulate_cameras_moved_together_learn_from_each_others_labels(tmp_path):
    raw = yaml.safe_load(shipped_path("datasets/synthetic_city/fleet.yaml").read_text())
    raw |= {"name": "two", "window_s": 17, "windows": 1, "streams": raw["streams"][:2]}
    for stream in raw["streams"]:
        del stream["source"]["scenes"][2:]
        stream["source"]["scenes"][1]["at_s"] = 11
    path = tmp_path / "two.yaml"
    path.write_text(yaml.safe_dump(raw))
    folder = RunFolder.create_numbered(tmp_path, "two")
    emulate(folder, load_fleet(path), "ekya", SEED, quietly)
    labelled = [
        event
        for turn in read_journal(folder.journal)[2]
        for event in turn.events
        if isinstance(event, LabelsReady)
    ]
    pooled = {event.stream: event.pooled for event in labelled if event.pooled is not None}
    assert pooled, "the camera that is labelled second has the labels of the first"
    for stream, labels in pooled.items():
        assert set(labels.streams) - {stream} == {"cam-1", "cam-2"} - {stream}
        assert labels.labels > 10
    alone = [event for event in labelled if event.pooled is None]
    assert {event.stream for event in alone} >= set(pooled), "first without, then with them"

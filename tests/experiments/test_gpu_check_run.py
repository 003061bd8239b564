"""Tests of the check of whole runs: its fleet, and its evaluation of summaries."""

import importlib
import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from ekya.config.fleet_reading import load_fleet
from ekya.control.options import LoopOptions
from ekya.control.protocols import Batch
from ekya.core.events import GpuMeasured, GpuUse
from ekya.results.storage.journal import FileJournal

check = importlib.import_module("gpu_check_run")


OPTIONS = LoopOptions(8_000_000, 2, 1200, 10, 100, 0.4, 700, 1_200_000, 0, (), (), ())


def summary(accuracy, lost=0, gpus=None):
    return {
        "mean_accuracy": accuracy,
        "streams": {"cam-00": {}, "cam-01": {}},
        "frames": {"arrived": 100, "analysed": 60, "skipped": 40 - lost, "lost": lost},
        "retrainings": {"started": 2, "finished": 2, "failed": 0},
        "host": {"start_s": 3.0} | ({} if gpus is None else {"gpus": {"0": gpus}}),
    }


GPU = {
    "energy_j": 900.0,
    "measured_s": 3.0,
    "energy_from": "counter",
    "modelled_energy_j": {
        "idle": 300.0,
        "unexplained": 0.0,
        "jobs": {
            "cam-00": {"inference": 100.0, "retraining": 250.0},
            "cam-01": {"inference": 50.0, "retraining": 200.0},
        },
    },
}


@pytest.mark.parametrize(("streams", "gpus", "held"), [(16, 1.0, 800), (2, 1.2, 700)])
def test_short_fleet_is_readable_and_has_requested_cameras(tmp_path, streams, gpus, held):
    path = tmp_path / "fleet.yaml"
    path.write_text(check.short_fleet(streams, gpus, held))
    fleet = load_fleet(path)
    assert (len(fleet.streams), fleet.windows, fleet.gpus) == (streams, 2, gpus)
    assert len({stream.source.seed for stream in fleet.streams}) == streams
    # Drift comes before the labels of the first window are chosen, or in the second window.
    assert 0 < fleet.streams[0].source.scenes[1].at_s < fleet.window_s / 2
    assert all(stream.source.scenes[0].at_s == 0 for stream in fleet.streams)
    assert fleet.window_s <= 30


def write_journal(folder, energies):
    folder.mkdir(parents=True)
    journal = FileJournal(folder / "journal.jsonl", "ekya", OPTIONS)
    for window, energy_j in enumerate(energies):
        use = GpuUse(0, "GPU-1", 1, 8, 4, 5, 0.9, "sm-utilization", 500.0, 90.0, energy_j, "counter", 2)
        journal.record_batch(Batch(window, (GpuMeasured(window, window, (use,)),)))
        journal.record_decision(window, None, ())
    journal.close()


def option(command, name):
    """Returns the value of an option that is given exactly once."""
    assert command.count(name) == 1
    return command[command.index(name) + 1]


def of(monkeypatch, **summaries):
    def run(command, **_options):
        scheduler = option(command, "--scheduler")
        energies = [600.0, 300.0] if "gpus" in summaries[scheduler]["host"] else []
        write_journal(Path(option(command, "--runs")) / scheduler, energies)
        return subprocess.CompletedProcess(command, 0, stdout=json.dumps(summaries[scheduler]))

    monkeypatch.setattr(subprocess, "run", run)
    return list(check.compared(2, 1.2, 700, "cpu"))


def test_compared_runs_report_each_run_and_the_difference(monkeypatch):
    found = of(monkeypatch, ekya=summary(0.8, gpus=GPU), uniform=summary(0.7, gpus=GPU))
    assert [one.met for one in found] == [True] * 5
    assert found[0].measured.startswith("0 of 100 lost, 60 analysed; 2 of 2 retrainings finished")
    assert found[1].measured == (
        "600 + 300 J in 3 s, by counter; by a model: idle 300 J, inference 150 J, retraining 450 J"
    )
    assert found[4].measured == "0.8000 and 0.7000"


def test_compared_lost_frame_and_worse_plan_are_unmet(monkeypatch):
    found = of(monkeypatch, ekya=summary(0.68, lost=1), uniform=summary(0.7))
    assert [one.met for one in found] == [False, None, True, None, False]


def test_compared_gpu_without_energy_counter_is_unmet(monkeypatch):
    found = of(
        monkeypatch,
        ekya=summary(0.8, gpus=GPU | {"energy_from": "power", "modelled_energy_j": None}),
        uniform=summary(0.7, gpus=GPU | {"energy_j": None}),
    )
    assert [one.met for one in found] == [True, False, True, None, True]


def replaced(run, other, _command, **options):
    """Runs another command with the options of the given one."""
    return run(other, **options)


def test_compared_failed_run_raises_and_shows_its_output(monkeypatch, capfd):
    failing = [sys.executable, "-c", "import sys; sys.exit('ekya: no such thing')"]
    monkeypatch.setattr(subprocess, "run", partial(replaced, subprocess.run, failing))
    with pytest.raises(RuntimeError, match="ekya run --scheduler ekya ended with 1"):
        next(check.compared(2, 1.2, 700, "cpu"))
    assert "no such thing" in capfd.readouterr().err


def test_compared_runs_use_the_given_fleet_and_share_backend(monkeypatch):
    commands = []

    def run(command, **_options):
        commands.append(command)
        # The folder of the runs is deleted when the check ends.
        assert load_fleet(Path(command[command.index("run") + 1])).windows == check.WINDOWS
        return subprocess.CompletedProcess(command, 0, stdout=json.dumps(summary(0.8)))

    monkeypatch.setattr(subprocess, "run", run)
    findings = check.compared(2, 1.2, 700, "mps")
    next(findings)
    findings.close()
    (command,) = commands
    assert option(command, "--shares") == "mps"
    assert option(command, "--json") == "-", "the output is only the summary"


def test_runs_without_ray_names_the_package(monkeypatch):
    monkeypatch.delitem(sys.modules, "ekya.runtime.driver.live", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ModuleNotFoundError) as missing:
        next(check.runs())
    assert missing.value.name == "ray"


@pytest.mark.live
@pytest.mark.long
def test_compared_two_cameras_on_cpu_gives_findings():
    found = list(check.compared(2, 1.2, 700, "cpu"))
    assert [one.met for one in found[:4]] == [True, None, True, None]
    assert all(0 < accuracy < 1 for accuracy in found[4].figures["mean_accuracy"].values())

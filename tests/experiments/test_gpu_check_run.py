"""Tests of the check of whole runs: its fleet, and its evaluation of summaries."""

import importlib
import json
import sys

import pytest

from ekya.config.fleet_file import load_fleet
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
def test_the_fleet_is_one_that_can_be_read_and_has_that_many_cameras(tmp_path, streams, gpus, held):
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
        journal.batch(Batch(window, (GpuMeasured(window, window, (use,)),)))
        journal.decision(window, None, ())
    journal.close()


def of(monkeypatch, **summaries):
    def run(fleet, scheduler, _shares):
        energies = [600.0, 300.0] if "gpus" in summaries[scheduler]["host"] else []
        write_journal(check._runs(fleet) / scheduler, energies)
        return summaries[scheduler]

    monkeypatch.setattr(check, "_run", run)
    return list(check.compared(2, 1.2, 700, "cpu"))


def test_both_runs_and_their_difference_are_told(monkeypatch):
    found = of(monkeypatch, ekya=summary(0.8, gpus=GPU), uniform=summary(0.7, gpus=GPU))
    assert [one.met for one in found] == [True] * 5
    assert found[0].measured.startswith("0 of 100 lost, 60 analysed; 2 of 2 retrainings finished")
    assert found[1].measured == (
        "600 + 300 J in 3 s, by counter; by a model: idle 300 J, inference 150 J, retraining 450 J"
    )
    assert found[4].measured == "0.8000 and 0.7000"


def test_a_lost_frame_and_a_worse_plan_are_found(monkeypatch):
    found = of(monkeypatch, ekya=summary(0.68, lost=1), uniform=summary(0.7))
    assert [one.met for one in found] == [False, None, True, None, False]


def test_a_device_without_a_counter_is_no_counter(monkeypatch):
    found = of(
        monkeypatch,
        ekya=summary(0.8, gpus=GPU | {"energy_from": "power", "modelled_energy_j": None}),
        uniform=summary(0.7, gpus=GPU | {"energy_j": None}),
    )
    assert [one.met for one in found] == [True, False, True, None, True]


def test_a_run_that_ends_badly_is_an_error(monkeypatch, tmp_path, capfd):
    monkeypatch.setattr(check, "_EKYA", "import sys; sys.exit('ekya: no such thing')")
    with pytest.raises(RuntimeError, match="ekya run --scheduler uniform ended with 1"):
        check._run(tmp_path / "fleet.yaml", "uniform", "cpu")
    assert "no such thing" in capfd.readouterr().err


def test_a_run_is_asked_for_its_summary_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(check, "_EKYA", "import json, sys; print(json.dumps(sys.argv[1:]))")
    told = check._run(tmp_path / "fleet.yaml", "uniform", "mps")
    assert told[:2] == ["run", str(tmp_path / "fleet.yaml")]
    assert json.dumps(told).count("--shares") == 1
    assert told[told.index("--shares") + 1] == "mps"


def test_without_ray_the_package_is_named(monkeypatch):
    monkeypatch.delitem(sys.modules, "ekya.runtime.live", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ModuleNotFoundError) as missing:
        next(check.runs())
    assert missing.value.name == "ray"


@pytest.mark.live
@pytest.mark.long
def test_two_cameras_really_run_on_cores():
    found = list(check.compared(2, 1.2, 700, "cpu"))
    assert [one.met for one in found[:4]] == [True, None, True, None]
    assert all(0 < accuracy < 1 for accuracy in found[4].figures["mean_accuracy"].values())

"""A whole trace of real cameras and real models, beside a run of the emulated world."""

import json

import pytest
import yaml

from ekya.cli import main
from ekya.config import load_fleet
from ekya.core.commands import StartRetraining
from ekya.core.events import LabelsReady, ProfileReady, RetrainProgress
from ekya.core.trace import BASE
from ekya.journal import read_journal
from ekya.runfolder import RunFolder
from ekya.shipped import shipped_path
from ekya.sim.emulated import emulate
from ekya.tracefile import read_trace

pytestmark = pytest.mark.live


@pytest.fixture
def fleet_file(tmp_path):
    """Two cameras of the shipped fleet, drifted from the start, in short windows."""
    raw = yaml.safe_load(shipped_path("datasets/synthetic_city/fleet.yaml").read_text())
    raw |= {"name": "two", "window_s": 12, "windows": 2}
    raw["preparation"] = {"share_milli": 900, "fraction": 0.15}
    raw["retraining"] |= {"epochs": [2, 4], "data_fractions": [1.0]}
    raw["streams"] = raw["streams"][:2]
    for stream in raw["streams"]:
        stream["source"] |= {"fps": 4, "scenes": stream["source"]["scenes"][1:2]}
        stream["source"]["scenes"][0]["at_s"] = 0
    path = tmp_path / "two.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


def test_a_trace_says_what_the_emulated_run_was_told(fleet_file, tmp_path, capsys):
    """Every label count, micro-profile and epoch of the run stands in the trace, with the same figures."""
    file = tmp_path / "profiles.parquet"
    asked = ["profile", str(fleet_file), "--seed", "3", "--out", str(file)]
    assert main([*asked, "--streams", "cam-1"]) == 0
    assert [stream.stream for stream in read_trace(file).streams] == ["cam-1"]
    assert main(asked) == 2
    assert "--resume" in capsys.readouterr().err
    assert main([*asked, "--resume", "--seed", "4"]) == 2
    assert "recorded with seed 3" in capsys.readouterr().err
    assert main([*asked, "--resume", "--json", str(tmp_path / "said.json")]) == 0
    said = json.loads((tmp_path / "said.json").read_text())
    assert (said["streams"], said["windows"], said["trainings"]) == (["cam-1", "cam-2"], 2, 4)

    trace = read_trace(file)
    windows = {stream.stream: stream.windows[1] for stream in trace.streams}
    folder = RunFolder.create(tmp_path, "run")
    emulate(folder, load_fleet(fleet_file), "thief", 3, lambda batch, turn: None)
    turns = read_journal(folder.journal)[2]
    started = {
        command.job: command
        for turn in turns
        for command in turn.commands
        if isinstance(command, StartRetraining)
    }
    compared = set()
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
                trials = {trial.family: trial for trial in windows[event.stream].trials}
                assert event.curve == trials[event.curve.family].curve
            case RetrainProgress():
                config = started[event.job].config
                training = windows[event.stream].best_training(config, BASE)
                epoch = training.epochs[event.epoch - 1]
                assert epoch.gpu_s == pytest.approx(event.gpu_s)
                assert epoch.standings[0].validation_accuracy == pytest.approx(event.validation_accuracy)
            case _:
                continue
        compared.add(type(event))
    assert compared == {LabelsReady, ProfileReady, RetrainProgress}

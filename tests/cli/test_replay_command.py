"""Tests of ``ekya replay``: what it plays, user errors and its report."""

import json
import sys
from types import ModuleType

import pytest
import yaml

import ekya.cli.profile
from ekya import cli
from ekya.cli.replay import DEFAULT_SCRIPTED
from ekya.config.fleet_file import load_fleet
from ekya.config.shipped import shipped_path
from ekya.control.protocols import Batch
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.configs import InferenceConfig
from ekya.core.trace import Trace
from ekya.core.units import StreamId
from ekya.pipeline.setup import loop_options, script_cues
from ekya.results.storage.journal import FileJournal
from ekya.results.storage.run_folder import RunFolder

CAM, S, EVERY = StreamId("cam-1"), 1_000_000, InferenceConfig(1, 32)
STREAM = {
    "mean_accuracy": 0.8,
    "balanced_accuracy": 0.7,
    "without_retraining": 0.6,
    "gain": 0.2,
    "set_aside": None,
    "windows": [{"retrained": True, "retrain_share_milli": 500, "inference_share_milli": 250}],
}
SUMMARY = {
    "world": "live",
    "scheduler": "thief",
    "mean_accuracy": 0.8,
    "balanced_accuracy": 0.7,
    "streams": {CAM: STREAM},
    "frames": {"arrived": 10, "analysed": 6, "skipped": 4, "lost": 0},
    "retrainings": {"started": 1, "finished": 1, "failed": 0},
    "health": {"sentence": None, "streams": {CAM: [{"index": 0, "state": "ok"}]}},
    "warnings": [],
}


@pytest.fixture
def fleet(tmp_path):
    return written(tmp_path, [{"event": "lost", "at_s": 30, "for_s": 20}])


def written(folder, script):
    stream = {"id": CAM, "play": {"script": script}, "source": {"kind": "synthetic_city", "seed": 1}}
    raw = {"classes": ["person"], "gpus": 1, "window_s": 9, "windows": 9, "golden": {}, "streams": [stream]}
    path = folder / "fleet.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Fake worlds, whose journal has the camera lost at 3 s; returns the list of fleets that they ran."""
    asked = []

    def run(fleet, options, console):
        asked.append(fleet)
        folder = RunFolder.create(tmp_path / "runs", "run")
        journal = FileJournal(folder.journal, "thief", loop_options(fleet, (), 0, 1, 1000))
        for event, share_milli in (
            (ev.StreamAdded(0, CAM, ()), 400),
            (ev.StreamLost(3 * S, CAM, "so"), None),
        ):
            journal.batch(Batch(event.t_us, (event,)))
            commands = () if share_milli is None else (cmd.SetInference(CAM, EVERY, share_milli),)
            journal.decision(event.t_us, None, commands)
        journal.close()
        folder.summary.write_text(json.dumps(SUMMARY))
        return folder.path

    for module, function in (
        ("ekya.runtime.live", "run_live"),
        ("ekya.simulation.emulated.run", "run_emulated"),
    ):
        stand_in = ModuleType(module)
        setattr(stand_in, function, run)
        monkeypatch.setitem(sys.modules, module, stand_in)
    return asked


def test_a_script_is_played_at_the_speed_that_is_asked_for(fleet, asked, capfd):
    assert cli.main(["replay", str(fleet), "--speed", "10", "--clock", "virtual", "--json", "-"]) == 0
    assert asked[0].stream(CAM).play.outages_us == ((3 * S, 5 * S),)
    out, err = capfd.readouterr()
    told = json.loads(out)
    assert told["mean_accuracy"] == 0.8
    assert told["script"] == [
        {
            "at_s": 3.0,
            "until_s": 5.0,
            "stream": CAM,
            "event": "lost",
            "shares_before": {CAM: {"retraining_milli": 0, "inference_milli": 400}},
            "shares_after": {CAM: {"retraining_milli": 0, "inference_milli": 0}},
        }
    ]
    assert "is lost for 2 s" in err


def test_recordings_without_a_script_are_played_as_they_are(tmp_path, asked, capfd):
    assert cli.main(["replay", str(written(tmp_path, [])), "--clock", "virtual", "--json", "-"]) == 0
    assert asked[0].stream(CAM).play.script == ()
    assert json.loads(capfd.readouterr().out)["script"] == []


def test_live_cameras_are_to_be_recorded_before_they_are_replayed(tmp_path, asked, capfd):
    path = written(tmp_path, [])
    raw = yaml.safe_load(path.read_text())
    raw["golden"] = {"model": "fasterrcnn_mobilenet_v3_large_320_fpn"}
    raw["streams"] = [{"id": CAM, "source": {"kind": "camera", "url": "rtsp://cam/"}}]
    path.write_text(yaml.safe_dump(raw))
    assert cli.main(["replay", str(path)]) == 2
    said = capfd.readouterr().err
    assert "a live camera cannot be watched again, since its frames come only once; record it with" in said
    assert not asked


def test_a_trace_is_recorded_of_a_camera_that_was_lost_and_of_no_other_script(tmp_path, monkeypatch, capfd):
    burst = {"event": "burst", "at_s": 50, "for_s": 2}
    lost = {"event": "lost", "at_s": 30, "for_s": 20}
    arguments = ["profile", str(written(tmp_path, [lost, burst])), "--out", str(tmp_path / "t.parquet")]
    assert cli.main(arguments) == 2
    assert "a trace holds what a recording shows by itself; remove burst" in capfd.readouterr().err
    recorded = []

    def record(fleet, *_):
        recorded.append(fleet.stream(CAM).play.script)
        return Trace(1_000_000, "a device", ("person",), (), (), ())

    monkeypatch.setattr(ekya.cli.profile, "record_fleet", record)
    written(tmp_path, [lost])
    assert cli.main(arguments) == 0
    assert [event.event for event in recorded[0]] == ["lost"]


def test_the_shipped_fleet_shows_every_kind_of_event_within_two_minutes():
    fleet = load_fleet(shipped_path(DEFAULT_SCRIPTED))
    assert {str(cue.happens) for cue in script_cues(fleet)} == {"joins", "lost", "back", "night", "burst"}
    end_us = fleet.windows * fleet.window_s * S
    assert end_us <= 120 * S
    assert all((cue.until_us or cue.t_us) < end_us for cue in script_cues(fleet))

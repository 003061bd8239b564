"""Tests of ``ekya replay``: what it plays, user errors and its report."""

import json

import pytest
from commands import empty_trace, live_camera, write_fleet

from ekya import cli
from ekya.cli.replay import DEFAULT_SCRIPTED
from ekya.config.fleet_reading import load_fleet
from ekya.config.shipped import shipped_path
from ekya.control.protocols import Batch
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.configs import InferenceConfig
from ekya.core.units import StreamId
from ekya.pipeline.setup import loop_options, script_cues
from ekya.results.storage.journal import FileJournal

CAM, S, EVERY = StreamId("cam-1"), 1_000_000, InferenceConfig(1, 32)


def written(folder, script):
    stream = {"id": CAM, "play": {"script": script}, "source": {"kind": "synthetic_city", "seed": 1}}
    return write_fleet(folder, windows=9, streams=[stream])


@pytest.fixture
def fleet(tmp_path):
    return written(tmp_path, [{"event": "lost", "at_s": 30, "for_s": 20}])


@pytest.fixture
def losing(world):
    """Fake worlds whose journal has the camera lost at 3 s."""

    def write_journal(folder):
        fleet, _ = world.runs[-1]
        journal = FileJournal(folder.journal, "thief", loop_options(fleet, (), 0, 1, 1000))
        for event, share_milli in (
            (ev.StreamAdded(0, CAM, ()), 400),
            (ev.StreamLost(3 * S, CAM, "so"), None),
        ):
            journal.record_batch(Batch(event.t_us, (event,)))
            commands = () if share_milli is None else (cmd.SetInference(CAM, EVERY, share_milli),)
            journal.record_decision(event.t_us, None, commands)
        journal.close()

    world.during = write_journal
    return world


def test_replay_with_speed_scales_the_script_and_reports_it(fleet, losing, capfd):
    assert cli.main(["replay", str(fleet), "--speed", "10", "--clock", "virtual", "--json", "-"]) == 0
    assert losing.runs[0][0].stream(CAM).play.outages_us == ((3 * S, 5 * S),)
    out, err = capfd.readouterr()
    report = json.loads(out)
    assert report["mean_accuracy"] == 0.8
    assert report["script"] == [
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


def test_replay_without_a_script_reports_no_event(tmp_path, losing, capfd):
    assert cli.main(["replay", str(written(tmp_path, [])), "--clock", "virtual", "--json", "-"]) == 0
    assert losing.runs[0][0].stream(CAM).play.script == ()
    assert json.loads(capfd.readouterr().out)["script"] == []


def test_replay_of_a_live_camera_is_refused(tmp_path, losing, capfd):
    path = write_fleet(tmp_path, **live_camera("rtsp://cam/"))
    assert cli.main(["replay", str(path)]) == 2
    said = capfd.readouterr().err
    assert "a live camera cannot be watched again, since its frames come only once; record it with" in said
    assert not losing.runs


def test_profile_with_a_script_accepts_lost_only(tmp_path, monkeypatch, capfd):
    burst = {"event": "burst", "at_s": 50, "for_s": 2}
    lost = {"event": "lost", "at_s": 30, "for_s": 20}
    arguments = ["profile", str(written(tmp_path, [lost, burst])), "--out", str(tmp_path / "t.parquet")]
    assert cli.main(arguments) == 2
    assert "a trace holds what a recording shows by itself; remove burst" in capfd.readouterr().err
    recorded = []

    def record(fleet, *_):
        recorded.append(fleet.stream(CAM).play.script)
        return empty_trace()

    monkeypatch.setattr("ekya.api.profiling.record_fleet", record)
    written(tmp_path, [lost])
    assert cli.main(arguments) == 0
    assert [event.event for event in recorded[0]] == ["lost"]


def test_default_scripted_fleet_has_every_event_in_two_minutes():
    fleet = load_fleet(shipped_path(DEFAULT_SCRIPTED))
    assert {str(cue.happens) for cue in script_cues(fleet)} == {"joins", "lost", "back", "night", "burst"}
    end_us = fleet.windows * fleet.window_s * S
    assert end_us <= 120 * S
    assert all((cue.until_us or cue.t_us) < end_us for cue in script_cues(fleet))

"""Acceptance test: on the shipped fleet, live from the command line, retraining must improve accuracy."""

import json
import subprocess

import pytest
from live_runs import EKYA, events_of, replayed
from waiting import LONG_GUARD_S

from ekya.core.events import FramesCounted
from ekya.results.storage.run_folder import RunFolder

pytestmark = pytest.mark.live

WINDOWS, WINDOW_S = 3, 15
"""Cameras are moved in the second window; so most of what retraining gains is in the third."""


def test_shipped_fleet_gains_from_retraining(tmp_path):
    runs = tmp_path / "runs"
    brief = ["--windows", str(WINDOWS), "--window", str(WINDOW_S)]
    asked = ["run", *brief, "--runs", str(runs), "--name", "first", "--no-dashboard"]
    done = subprocess.run([*EKYA, *asked], check=False, timeout=LONG_GUARD_S, capture_output=True, text=True)
    assert "Traceback" not in done.stderr

    folder = RunFolder(runs / "first")
    summary = json.loads(folder.summary.read_text())
    frames = summary["frames"]
    assert frames["lost"] == 0
    assert frames["analysed"] > 0
    windows = [window for stream in summary["streams"].values() for window in stream["windows"]]
    assert any(window["retrained"] for window in windows), "a retraining serves"
    gains = [stream["gain"] for stream in summary["streams"].values()]

    health = summary["health"]
    # Where other programs take the processor, what is learnt may come too late for the last frames.
    assert sum(gains) > 0 or health["sentence"], f"better than the base model on the same frames: {gains}"
    assert health["judged"] == len(gains) * (WINDOWS - 1)
    assert {len(one) for one in health["streams"].values()} == {WINDOWS}
    # There frames are dropped too, which is said, and the code is 3.
    assert done.returncode == (0 if health["sentence"] is None else 3), done.stderr
    assert (health["sentence"] or "") in done.stderr
    assert done.stdout.splitlines()[-1] == f"Everything about this run is in {folder.path}"

    counted = sum(event.analysed for event in events_of(folder, FramesCounted))
    assert counted > 0.9 * frames["analysed"] - 100, "the screen knew of nearly all of them while they came"
    assert replayed(folder)

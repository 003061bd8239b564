"""Acceptance test: the shipped fleet, live from the command line, retrains, serves the weights and tells it.

That accuracy gains from it is tested on virtual time (``test_emulated_run``), where no slow machine is late.
"""

import json
import subprocess

import pytest
from live_runs import EKYA, events_of, replayed
from waiting import LONG_GUARD_S

from ekya.core.events import FramesCounted
from ekya.results.storage.run_folder import RunFolder

pytestmark = pytest.mark.live

WINDOWS, WINDOW_S = 3, 15
"""Cameras are moved in the second window, so that there is something to retrain for."""


def test_shipped_fleet_retrains_live_and_tells_how_it_went(tmp_path):
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

    health = summary["health"]
    assert health["judged"] == len(summary["streams"]) * (WINDOWS - 1)
    assert {len(one) for one in health["streams"].values()} == {WINDOWS}
    # Where other programs take the processor, frames are dropped, which is said, and the code is 3.
    assert done.returncode == (0 if health["sentence"] is None else 3), done.stderr
    assert (health["sentence"] or "") in done.stderr
    assert done.stdout.splitlines()[-1] == f"Everything about this run is in {folder.path}"

    counted = sum(event.analysed for event in events_of(folder, FramesCounted))
    assert counted > 0.9 * frames["analysed"] - 100, "the screen knew of nearly all of them while they came"
    assert replayed(folder)

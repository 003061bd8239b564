"""A service under faults, with a fixed seed: its invariants hold."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from chaos_faults import PARTS
from chaos_surroundings import why_no_cameras
from mosquitto import MOSQUITTO

pytestmark = [pytest.mark.live, pytest.mark.long]

ROOT = Path(__file__).resolve().parents[2]


def ran(script, *options):
    """Runs an experiment to its end, which must be a success, and returns what it said."""
    done = subprocess.run(
        [sys.executable, f"experiments/{script}", *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout + done.stderr


@pytest.fixture
def chaos(tmp_path):
    """``chaos(faults)`` does these faults, and returns what was told of them."""

    def run(faults, *options):
        named = ("--minutes", "9", "--seed", "7", "--patience", "2", "--faults", ",".join(faults))
        files = ("--folder", str(tmp_path / "chaos"), "--keep", "--json", str(tmp_path / "chaos.json"))
        ran("chaos.py", *named, *files, *options)
        told = json.loads((tmp_path / "chaos.json").read_text())
        assert [one["fault"] for one in told["faults"]] == list(faults)
        assert sum(told["answers"].values()) > 100
        return told

    return run


def test_invariants_hold_under_faults_of_processes(chaos) -> None:
    of_workers = ("kill:spare+inference", "stop:inference", "memory:inference")
    told = chaos((*of_workers, "kill:raylet", "hang:gcs_server", "power"))
    assert told["restarts"] == 2, "of raylet and gcs_server; after the power cut the supervisor is new"


def test_invariants_hold_under_faults_of_what_surrounds_it(chaos) -> None:
    there = {
        "full": os.geteuid() == 0,
        "clock": shutil.which("cc"),
        "port": True,
        "broker": MOSQUITTO,
        "term:retraining": True,
        "term:swap": True,
    }
    told = chaos([fault for fault, is_there in there.items() if is_there])
    assert told["restarts"] == 0


def test_a_day_holds_in_short(tmp_path, data_dir) -> None:
    if why := why_no_cameras():
        pytest.skip(f"no RTSP server on this machine; {why}")
    if MOSQUITTO is None:
        pytest.skip("no MQTT broker on this machine; apt-get install mosquitto")
    options = ("--minutes", "5", "--golden", str(data_dir / "weights" / "FastestDet.onnx"))
    videos = (f"--video={path}" for path in sorted((data_dir / "videos").glob("*.mp4"))[:3])
    said = ran("soak.py", *options, *videos, "--out", str(tmp_path))
    assert "All of it held." in said


def test_invariants_hold_under_faults_of_cameras(chaos, data_dir) -> None:
    if why := why_no_cameras():
        pytest.skip(f"no RTSP server on this machine; {why}")
    faults = [f"camera:{what}" for what in PARTS["camera"]]
    told = chaos(faults, "--golden", str(data_dir / "weights" / "FastestDet.onnx"))
    assert told["restarts"] == 0

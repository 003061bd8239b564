"""A service under faults, with a fixed seed: its invariants hold."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.live, pytest.mark.long]

ROOT = Path(__file__).resolve().parents[2]
FAULTS = ("kill:spare+inference", "kill:raylet", "power")


def test_invariants_hold_under_faults(tmp_path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "experiments/chaos.py", "--minutes", "5", "--seed", "7", "--patience", "2"),
            *("--faults", ",".join(FAULTS), "--folder", str(tmp_path / "chaos")),
            *("--keep", "--json", str(tmp_path / "chaos.json")),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    told = json.loads((tmp_path / "chaos.json").read_text())
    assert [one["fault"] for one in told["faults"]] == list(FAULTS)
    assert told["restarts"] == 1, "of the raylet; after the power cut the supervisor is new"
    assert sum(told["answers"].values()) > 100

"""Updates of a store beside streams: `ekya fleet run --stores` with two sites, as a user starts it."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from urllib.request import Request, urlopen

import cv2
import pytest
from bundles import NAMES, bars
from waiting import HANG_GUARD_S, LONG_GUARD_S, wait_until

from ekya.fleet.run.loan_file import read_loans
from ekya.fleet.run.stores.update_book import UpdateBook
from ekya.models.edge.checkpoints import load_model

pytestmark = [pytest.mark.live, pytest.mark.long]

WINDOW_S, WINDOWS = 30, 3
ROOT = Path(__file__).resolve().parents[4]


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def asked(url, method="GET"):
    with urlopen(Request(url, method=method), timeout=HANG_GUARD_S) as answer:
        return json.loads(answer.read())


def awaited(condition, run, log):
    told = []

    def holds():
        assert run.poll() is None
        with suppress(OSError):
            told.append(condition())
        return told and told[-1]

    wait_until(holds, log.read_text, LONG_GUARD_S)
    return told[-1]


@pytest.fixture
def folder(tmp_path, write_town):
    """Servers of which south has spare capacity, and pictures enough for the store's trigger."""
    south = {"streams": ["cam-3", "cam-4"], "changes": {"gpus": 1.0}}
    write_town(tmp_path, WINDOW_S, WINDOWS, blocks=1, scene=-1, fps=3, south=south)
    drawn = bars(60, 1)
    for number, (crop, place) in enumerate(zip(drawn.crops, drawn.classes, strict=True)):
        root = tmp_path / "pictures" / NAMES[place]
        root.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(root / f"{number:03d}.png"), crop)
    spec = "samples: pictures, out: cam.safetensors, model: mobilenet_v3_small, epochs: 6, weight: 5"
    (tmp_path / "stores.yaml").write_text(f"stores: {{cam: {{{spec}, trigger: {{new_samples: 50}}}}}}")
    return tmp_path


def test_a_store_is_updated_by_its_trigger_and_on_request_on_a_site_that_lends(folder) -> None:
    url, log = f"http://127.0.0.1:{(port := free_port())}", folder / "run.log"
    words = ["servers.yaml", "--stores", "stores.yaml", "--port", str(port), "--json", "told.json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with log.open("w") as said:
        run = subprocess.Popen(
            [sys.executable, "-m", "ekya", "fleet", "run", *words],
            stdout=said,
            stderr=said,
            env=environment,
            cwd=folder,
        )
    try:
        ended = awaited(lambda: asked(f"{url}/monitor")["ended"].get("cam"), run, log)
        assert (ended["reason"], ended["ordered_by"], ended["failures"]) == ("", "trigger", 0)
        assert ended["accuracy"] > 0.3
        assert load_model(folder / "cam.safetensors").classes == tuple(sorted(NAMES))
        assert (folder / "cam.safetensors.updates.json").is_file()
        first = (folder / "cam.safetensors").read_bytes()
        assert asked(f"{url}/launcher?store=cam&epochs=3", "POST") == {"update": 1}
        awaited(lambda: asked(f"{url}/monitor")["ended"]["cam"]["update"] == 1, run, log)
        assert (folder / "cam.safetensors").read_bytes() != first
        assert run.wait(LONG_GUARD_S) == 0, log.read_text()
    finally:
        if run.poll() is None:  # It ends its sites.
            run.send_signal(signal.SIGINT)
            run.wait(LONG_GUARD_S)
    told = json.loads((folder / "told.json").read_text())
    assert told["frames"]["lost"] == 0
    loans = [loan for loan in read_loans(folder / "runs" / "town" / "loans.jsonl") if loan.site == "stores"]
    assert [(loan.outcome, loan.host) for loan in loans] == [("arrived", "south")] * 2
    assert all(loan.moved_mb["stores", "south"] > 1 for loan in loans)
    assert not UpdateBook({}, folder / "runs" / "town" / "updates.jsonl").ended
    assert "Traceback" not in log.read_text()

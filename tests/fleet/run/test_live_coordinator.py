"""The driver of live servers, with their coordinator, is killed while a retraining runs on another server."""

import json
import subprocess
import sys
import time
from itertools import pairwise

import pytest

from ekya import cli
from ekya.core import events as ev
from ekya.core.units import StreamId
from ekya.results.storage.journal import read_journal
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_tables import read_predictions

pytestmark = [pytest.mark.live, pytest.mark.long]

WINDOW_S, WINDOWS = 24, 3
GAP_S = 3.0
"""Longest time for which no frame of a stream may be analysed."""


@pytest.fixture(scope="module")
def file(tmp_path_factory, write_town):
    south = {"streams": ["cam-3", "cam-4"], "changes": {"gpus": 1.0}}
    folder = tmp_path_factory.mktemp("coordinated")
    return write_town(folder, WINDOW_S, WINDOWS, blocks=1, scene=-1, fps=3, south=south)


def records(loans):
    if not loans.is_file():
        return []
    return [json.loads(line) for line in loans.read_text().splitlines() if line.endswith("}")]


def killed_after_a_loan(file, folder):
    """Begins a run, and kills its driver half a second after the first loan; returns the loans until then."""
    words = ["fleet", "run", str(file), "--runs", str(folder)]
    driver = subprocess.Popen([sys.executable, "-m", "ekya", *words])
    try:
        while not (
            made := [one["loan"] for one in records(folder / "town" / "loans.jsonl") if "site" in one]
        ):
            assert driver.poll() is None, "it ended before it made a loan"
            time.sleep(0.05)
        time.sleep(0.5)
    finally:
        driver.kill()
        driver.wait()
    return made


def longest_gap_s(folder, stream):
    read = read_predictions(folder.predictions(stream))
    at_us = [t_us for t_us, analysed in zip(read.t_us, read.analysed, strict=True) if analysed]
    return max(after - before for before, after in pairwise(at_us)) / 1e6


def test_loans_go_on_are_taken_up_and_new_ones_are_made_and_no_inference_stops(file, tmp_path) -> None:
    loans, told = tmp_path / "town" / "loans.jsonl", tmp_path / "told.json"
    before = killed_after_a_loan(file, tmp_path)
    assert cli.main(["fleet", "run", "--resume", str(loans.parent), "--json", str(told)]) == 0
    summary = json.loads(told.read_text())

    made = [one for one in records(loans) if "site" in one]
    ended = {one["loan"]: one["outcome"] for one in records(loans) if "outcome" in one}
    assert [one["loan"] for one in made] == list(range(len(made)))
    assert sorted(ended) == [one["loan"] for one in made]
    assert ended[before[0]] in ("arrived", "given up")  # its server told the new coordinator
    assert len(made) > len(before)
    assert "arrived" in ended.values()

    assert summary["frames"]["lost"] == 0
    for site, streams in (("north", ("cam-1", "cam-2")), ("south", ("cam-3", "cam-4"))):
        assert summary["servers"][site]["died_s"] is None
        _, _, turns = read_journal(RunFolder(tmp_path / "town" / site).journal)
        assert not [one for turn in turns for one in turn.events if isinstance(one, ev.WorkerDied)]
        for stream in map(StreamId, streams):
            assert longest_gap_s(RunFolder(tmp_path / "town" / site), stream) <= GAP_S

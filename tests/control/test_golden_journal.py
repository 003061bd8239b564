"""A recorded run, byte for byte: the loop's commands change only on purpose.

`EKYA_RENEW_GOLDEN=1 pytest tests/control/test_golden_journal.py` rewrites the file; review the changes before
you commit them, and give the reason in the commit message.

Floats are rounded to six decimal places, since the last digits depend on the machine's linear algebra.
"""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from script import MISFORTUNES, OPTIONS, three_cameras
from whole_runs import run

from ekya.control.loop import first_state
from ekya.control.protocols import Batch
from ekya.control.step import step
from ekya.planning.schedulers.registry import make_scheduler
from ekya.results.storage.journal import encode_fact, read_journal

GOLDEN = Path(__file__).parent / "golden" / "thief.jsonl"
DIGITS = 6


def cameras():
    """One camera trains slower than its profile says, and is stopped by the end of its window."""
    first, second, third = three_cameras()
    return first, replace(second, slowness=8.0), third


def rounded(value):
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return value


def lines_of(path):
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        record.pop("version", None)  # of Ekya; no decision
        yield json.dumps(rounded(record), separators=(",", ":"))


def test_golden_run_is_reproduced(tmp_path):
    path = tmp_path / "journal.jsonl"
    run("thief", cameras=cameras(), misfortunes=MISFORTUNES, path=path)
    told = "\n".join(lines_of(path)) + "\n"
    if os.environ.get("EKYA_RENEW_GOLDEN") == "1":
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(told, encoding="utf-8")
        pytest.skip("the golden journal was written again")
    kept = GOLDEN.read_text(encoding="utf-8")
    for number, (now, then) in enumerate(zip(told.splitlines(), kept.splitlines(), strict=False), start=1):
        assert now == then, f"line {number} of the journal differs"
    assert told == kept


def test_golden_events_give_golden_commands():
    """The golden journal is an ordinary journal: an old run, decided by the loop as it is now.

    Steps are compared here and not by `replay`, to which a rounded number is another number.
    """
    scheduler, options, turns = read_journal(GOLDEN)
    assert (scheduler, options) == ("thief", OPTIONS)
    chosen = make_scheduler(scheduler)
    state = first_state()
    for recorded in turns:
        batch = Batch(recorded.now_us, recorded.events)
        turn = step(state, batch, options, chosen.needs, chosen.plan)
        then, now = ([rounded(encode_fact(c)) for c in cs] for cs in (recorded.commands, turn.commands))
        assert now == then
        state = turn.state


def test_golden_journal_covers_command_kinds():
    """A golden run with few kinds of commands guards little."""
    _, _, turns = read_journal(GOLDEN)
    commands = {type(command).__name__ for turn in turns for command in turn.commands}
    assert commands == {
        "BeginPreparation",
        "EndPreparation",
        "SetInference",
        "StartRetraining",
        "ResizeRetraining",
        "ServeModel",
        "StopRetraining",
        "RestartWorker",
    }

"""What live tests share: the command line of a process, the events of a run, and its replay."""

import sys

from ekya.control.journal_replay import replay_journal
from ekya.planning.schedulers.registry import make_scheduler
from ekya.results.storage.journal import read_journal

EKYA = [sys.executable, "-c", "import sys; from ekya.cli import main; sys.exit(main())"]
"""Command of another process, before its arguments."""


def events_of(folder, kind):
    """Returns the events of a kind in the journal of a run."""
    _, _, turns = read_journal(folder.journal)
    return [event for turn in turns for event in turn.events if isinstance(event, kind)]


def replayed(folder):
    """Returns the recorded steps of a run, which a replay decides in the same way."""
    name, constants, turns = read_journal(folder.journal)
    scheduler = make_scheduler(name)
    again = list(replay_journal(turns, constants, scheduler.needs, scheduler.plan))
    assert len(again) == len(turns)
    assert all(one.same for one in again)
    return turns

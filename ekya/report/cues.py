"""Shows the events of a script: a log line for each as it occurs, and a table of all."""

from collections.abc import Sequence

from rich.table import Table

from ekya.core.units import us_to_seconds
from ekya.measuring.cues import CueTold, Happening

_WORDS = {
    Happening.JOINS: "joins",
    Happening.LOST: "is lost",
    Happening.BACK: "is back",
    Happening.NIGHT: "has night",
    Happening.BURST: "has a burst",
}


def cue_line(told: CueTold) -> str:
    """Returns the log line of an event."""
    return f"{us_to_seconds(told.t_us):.1f} s: {told.cue.stream} {_what(told)}; {share_changes(told)}"


def cue_table(told: Sequence[CueTold]) -> Table:
    """Builds a table of all events with the share changes."""
    table = Table(title="The script, and shares in thousandths of a GPU (inference + retraining)")
    table.add_column("At", justify="right")
    for name in ("Stream", "What happens", "Shares"):
        table.add_column(name)
    for one in told:
        at = f"{us_to_seconds(one.t_us):.1f} s"
        table.add_row(at, one.cue.stream, _what(one), share_changes(one))
    return table


def share_changes(told: CueTold) -> str:
    """Returns the streams whose share (inference and retraining) changed, before and after."""
    changes = []
    for stream in sorted({*told.before, *told.after}):
        before, after = sum(told.before.get(stream, (0, 0))), sum(told.after.get(stream, (0, 0)))
        if before != after:
            changes.append(f"{stream} {before} → {after}")
    return ", ".join(changes) or "shares stay"


def _what(told: CueTold) -> str:
    until_us = told.cue.until_us
    how_long = "" if until_us is None else f" for {us_to_seconds(until_us - told.cue.t_us):g} s"
    return _WORDS[told.cue.happens] + how_long

"""Faults that ``chaos.py`` does to a service, and what came of them, as lines and a table."""

import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chaos_service import KINDS
from rich.table import Table

from ekya.core.errors import UserError

INVARIANTS = {
    "serves": "the service answers, and all cameras that should serve do, within the limit",
    "processes": "each kind of process is there again, and a hung one is not left",
    "answers": "each serving camera's answers go on",
    "order": "answers in the sink rise by camera, and none comes twice unless the service process died",
    "shares": "no shares above the capacity",
    "replay": "the journal replays to the same commands",
    "terms": "cameras, pauses, freezes and weights are as asked for, also after a restart",
    "stop": "the service ends in order when it is asked to",
    "left": "no process, shared memory or folder of Ray is left after the stop",
    "memory": "the processes need no more memory at the end than after the start",
}

SMALL_S, _LARGE_S, _HANG_S = 60.0, 150.0, 200.0
_LARGE = ("service", "raylet", "gcs_server")


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to the service.

    Attributes:
        what: ``kill``, ``stop`` (for seconds), ``hang`` (for good), ``restart`` or ``power``.
        kinds: of processes.
    """

    what: str
    kinds: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.what + (":" + "+".join(self.kinds) if self.kinds else "")

    @staticmethod
    def of(text: str) -> "Fault":
        """Returns the fault of this name.

        Raises:
            UserError: there is none.
        """
        what, _, kinds = text.strip().partition(":")
        named = tuple(kinds.split("+")) if kinds else ()
        whole = what in ("restart", "power")
        if whole == bool(named) or not (whole or what in ("kill", "stop", "hang")) or set(named) - set(KINDS):
            raise UserError(
                f"--faults {text}: give kill:, stop: or hang: with one or two (+) of {', '.join(KINDS)}; "
                "restart, or power"
            )
        return Fault(what, named)

    @property
    def limit_s(self) -> float:
        """Seconds within which everything must be in order again."""
        if self.what == "hang":
            return _HANG_S
        return _LARGE_S if self.what in ("restart", "power") or set(self.kinds) & set(_LARGE) else SMALL_S


@dataclass(frozen=True, slots=True)
class Outcome:
    """A fault and what came of it.

    Attributes:
        fault: its name.
        at_s: seconds since the service was ready first.
        changed: what was changed over the API just before.
        recovered_s: until everything was in order; None if it was not within the limit.
        silent_s: longest time without an answer of a camera that serves.
        noted: further facts.
        failed: invariants, each with what was found.
    """

    fault: str
    at_s: float
    changed: tuple[str, ...]
    recovered_s: float | None
    silent_s: float
    noted: str
    failed: tuple[str, ...]


def deck(chance: random.Random) -> Iterator[Fault]:
    """Yields faults without end: each of a kind once, in random order, then all again."""
    while True:
        singles = [Fault("kill", (kind,)) for kind in KINDS]
        pairs = [Fault("kill", tuple(chance.sample(KINDS, 2))) for _ in range(3)]
        stops = [Fault("stop", (kind,)) for kind in KINDS]
        hangs = [Fault("hang", (kind,)) for kind in KINDS]
        cards = [*singles, *pairs, *stops, *hangs, *[Fault("restart"), Fault("power")] * 2]
        chance.shuffle(cards)
        yield from cards


def line(number: int, outcome: Outcome) -> str:
    """Returns a fault in a line."""
    took = "not in order" if outcome.recovered_s is None else f"{outcome.recovered_s:6.1f} s"
    words = [
        f"{number:3d} {outcome.at_s:6.0f} s  {outcome.fault:32s} {took}",
        f"silent {outcome.silent_s:.1f} s",
    ]
    words += [", ".join(outcome.changed)] if outcome.changed else []
    words += [outcome.noted] if outcome.noted else []
    return "; ".join([*words, *(f"FAILED {one}" for one in outcome.failed)])


def summary(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Returns a row for each kind of fault."""
    rows = []
    for fault in sorted({one.fault for one in outcomes}):
        of = [one for one in outcomes if one.fault == fault]
        times = [one.recovered_s for one in of if one.recovered_s is not None]
        rows.append(
            {
                "fault": fault,
                "count": len(of),
                "median_s": statistics.median(times) if times else None,
                "worst_s": max(times) if len(times) == len(of) else None,
                "silent_s": max(one.silent_s for one in of),
                "failed": sum(bool(one.failed) for one in of),
            }
        )
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Returns the rows for display."""
    shown = Table(title="Seconds from a fault until everything is in order", title_justify="left")
    for name in ("fault", "count", "median", "worst", "no answers for", "failed"):
        shown.add_column(name, justify="left" if name == "fault" else "right")
    for row in rows:
        cells = (row["median_s"], row["worst_s"], row["silent_s"])
        texts = ["–" if cell is None else f"{cell:.1f}" for cell in cells]
        shown.add_row(row["fault"], str(row["count"]), *texts, str(row["failed"]))
    return shown

"""Faults that ``chaos.py`` does to a service, and what came of them."""

import random
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chaos_service import KINDS

from ekya.core.errors import UserError

INVARIANTS = {
    "done": "the fault is carried out: it reaches a process, or comes at its moment",
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
    "frames": "frames on disk have no gap, and each analysed one is at every sink",
    "port": "a service whose port is taken says so and goes on",
}

SMALL_S, _LARGE_S, _HANG_S = 60.0, 150.0, 200.0
_LARGE = ("service", "raylet", "gcs_server")

OF_PROCESSES = ("kill", "stop", "hang", "memory")
PARTS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(OF_PROCESSES, KINDS),
    "term": ("retraining", "swap"),
    "camera": ("flood", "stall", "size", "codec", "cut"),
}
"""What is named behind the colon of a fault."""

WHOLE = ("restart", "power", "full", "clock", "port", "broker")
"""Faults without a colon."""

RECOVERIES = "Seconds from a fault until everything is in order"
"""Title of a table of ``summary``."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to the service or around it.

    Attributes:
        what: one of ``PARTS`` or ``WHOLE``.
        kinds: of processes, one or two; when a ``term`` comes, or what a ``camera`` does.
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
        most = 0 if what in WHOLE else 2 if what in OF_PROCESSES else 1
        known = what in WHOLE or what in PARTS
        if not known or not min(1, most) <= len(named) <= most or set(named) - set(PARTS.get(what, ())):
            raise UserError(
                f"--faults {text}: give {':, '.join(OF_PROCESSES)}: with one or two (+) of "
                f"{', '.join(KINDS)}; "
                f"term: with {' or '.join(PARTS['term'])}; camera: with one of {', '.join(PARTS['camera'])}; "
                f"or {', '.join(WHOLE)}"
            )
        return Fault(what, named)

    @property
    def victims(self) -> tuple[str, ...]:
        """Kinds of processes that it is done to."""
        return self.kinds if self.what in OF_PROCESSES else ()

    @property
    def limit_s(self) -> float:
        """Seconds within which everything must be in order again."""
        if self.what == "hang":
            return _HANG_S
        small = self.what in ("kill", "stop", "broker", "camera") and not set(self.kinds) & set(_LARGE)
        return SMALL_S if small else _LARGE_S


@dataclass(frozen=True, slots=True)
class Outcome:
    """A fault and what came of it.

    Attributes:
        fault: its name.
        victims: kind and pid of the processes that it reached.
        at_s: seconds since the service was ready first.
        changed: what was changed over the API just before.
        recovered_s: until everything was in order; None if it was not within the limit.
        silent_s: longest time without an answer of a camera that serves.
        noted: further facts.
        failed: invariants, each with what was found.
    """

    fault: str
    victims: tuple[tuple[str, int], ...]
    at_s: float
    changed: tuple[str, ...]
    recovered_s: float | None
    silent_s: float
    noted: str
    failed: tuple[str, ...]


def deck(chance: random.Random, without: Collection[str] = ()) -> Iterator[Fault]:
    """Yields faults without end: each of a kind once, in random order, then all again.

    Args:
        chance: for the order.
        without: what cannot be done here, as in ``Fault.what``.
    """
    while True:
        singles = [Fault(what, (kind,)) for what, kinds in PARTS.items() for kind in kinds]
        pairs = [Fault(what, tuple(chance.sample(KINDS, 2))) for what in ("kill", "stop") for _ in range(3)]
        whole = [Fault(what) for what in WHOLE]
        cards = [*singles, *pairs, *whole, Fault("restart"), Fault("power")]
        chance.shuffle(cards)
        yield from (card for card in cards if card.what not in without)


def line(number: int, outcome: Outcome) -> str:
    """Returns a fault in a line."""
    took = "not in order" if outcome.recovered_s is None else f"{outcome.recovered_s:6.1f} s"
    words = [
        f"{number:3d} {outcome.at_s:6.0f} s  {outcome.fault:32s} {took}",
        f"silent {outcome.silent_s:.1f} s",
    ]
    words += ["hit " + ", ".join(f"{kind} {pid}" for kind, pid in outcome.victims)] if outcome.victims else []
    words += [", ".join(outcome.changed)] if outcome.changed else []
    words += [outcome.noted] if outcome.noted else []
    return "; ".join([*words, *(f"FAILED {one}" for one in outcome.failed)])


def killed(outcomes: Sequence[Outcome]) -> int:
    """Returns how many processes were killed one by one."""
    return sum(len(one.victims) for one in outcomes if one.fault.startswith("kill:"))


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

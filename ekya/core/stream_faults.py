"""Faults of a stream's camera and workers, and the rule by which a stream is set aside."""

from dataclasses import dataclass, replace
from enum import StrEnum

from ekya.core import events as ev
from ekya.core.units import US_PER_S

DEATHS_ALLOWED = 2
"""A stream whose workers die more often than this within ``DEATHS_WITHIN_US`` is set aside."""

DEATHS_WITHIN_US = 600 * US_PER_S
"""Older deaths do not count: a camera that runs for months may lose a process now and then."""

READMITTED_LATEST_US = 3600 * US_PER_S
"""Longest time for which a stream stays set aside where it is readmitted."""

ASIDE_WITHIN_US = 24 * 3600 * US_PER_S
"""Times at which a stream was set aside count for so long; each doubles the time to its readmission."""

TOGETHER_US = 5 * US_PER_S
"""Deaths of both workers of a stream within this time count as one, since they are taken to have one cause,
such as the MPS daemon of their GPU."""


class Status(StrEnum):
    """Status of a stream. Only streams that serve are planned for; those in ``OVER`` do not come
    back by themselves: what has ended, and what is set aside until it is readmitted."""

    SERVING = "serving"
    RESTARTING = "restarting"
    PAUSED = "paused"
    LOST = "lost"
    ENDED = "ended"
    SET_ASIDE = "set aside"


OVER = (Status.ENDED, Status.SET_ASIDE)


@dataclass(frozen=True, slots=True)
class Faults:
    """Faults of a stream's camera and workers.

    A stream serves while its camera gives frames and its inference worker runs. These two fail
    independently, so each is tracked separately and ``status`` is derived from both.

    Attributes:
        lost: why the camera gives no frames; None while it does.
        down: why the inference worker is gone; None while it runs.
        ended: the camera has given its last frame, or the stream is removed.
        paused: an operator has paused it.
        set_aside: why the stream was given up; None unless it was.
        asides_us: times at which it was set aside that still count.
        deaths_us: times of its workers' deaths that still count; deaths of one cause count once.
        last_death: last death, with which one of the other worker may share its cause.
    """

    lost: str | None = None
    down: str | None = None
    ended: bool = False
    set_aside: str | None = None
    deaths_us: tuple[int, ...] = ()
    last_death: ev.WorkerDied | None = None
    paused: bool = False
    asides_us: tuple[int, ...] = ()

    @property
    def status(self) -> tuple[Status, str]:
        """Status, and the reason for not serving; empty while the stream serves."""
        if self.set_aside is not None:
            return Status.SET_ASIDE, self.set_aside
        if self.ended:
            return Status.ENDED, "the stream has ended"
        if self.paused:
            return Status.PAUSED, "an operator has paused it"
        if self.lost is not None:
            return Status.LOST, self.lost
        if self.down is not None:
            return Status.RESTARTING, self.down
        return Status.SERVING, ""

    def after_death(self, event: ev.WorkerDied) -> "Faults":
        """Returns the faults after a worker's death; one charged death too many sets the stream aside."""
        if not event.charged:
            return replace(self, down=event.reason) if event.role is ev.Role.INFERENCE else self
        last = self.last_death
        deaths_us = tuple(at_us for at_us in self.deaths_us if at_us > event.t_us - DEATHS_WITHIN_US)
        if last is not None and last.role is not event.role and event.t_us - last.t_us < TOGETHER_US:
            # Counted with the death before; a third one soon after has another cause.
            last = None
        else:
            deaths_us, last = (*deaths_us, event.t_us), event
        counted = replace(self, deaths_us=deaths_us, last_death=last)
        if len(deaths_us) > DEATHS_ALLOWED:
            minutes = DEATHS_WITHIN_US // (60 * US_PER_S)
            times = f"its workers died {len(deaths_us)} times within {minutes} minutes"
            asides_us = tuple(at_us for at_us in self.asides_us if at_us > event.t_us - ASIDE_WITHIN_US)
            reason = f"{times}, the last time: {event.reason}"
            return replace(counted, set_aside=reason, asides_us=(*asides_us, event.t_us))
        return replace(counted, down=event.reason) if event.role is ev.Role.INFERENCE else counted

    def readmitted_us(self, after_us: int) -> int | None:
        """Returns the time at which a stream that is set aside is readmitted; None if it is not set aside.

        Args:
            after_us: time to the first readmission; doubled by each that follows within a day.
        """
        if self.set_aside is None or not self.asides_us:
            return None
        waits_us = after_us << (len(self.asides_us) - 1)
        # A first wait that is longer than the bound stays as it is.
        return self.asides_us[-1] + min(waits_us, max(after_us, READMITTED_LATEST_US))

    def after_readmission(self) -> "Faults":
        """Returns the faults of a stream that is set aside no more; its workers are started again."""
        down = "it was set aside and is started again"
        return Faults(down=down, ended=self.ended, paused=self.paused, asides_us=self.asides_us)


NO_FAULTS = Faults()

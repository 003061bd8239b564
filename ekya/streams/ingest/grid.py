"""Resamples a camera's pictures to a constant rate, so that a second of the file is a second of real time."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ekya.core.units import US_PER_S

_NOT_YET = "it was not there yet"


@dataclass(frozen=True, slots=True)
class Gap:
    """Slots in which the camera was lost; they repeat its last picture.

    Attributes:
        begin, end: first slot of the gap, and first slot after it.
        reason: why the camera was lost, in words.
    """

    begin: int
    end: int
    reason: str


@dataclass(eq=False)
class FrameGrid:
    """Fills every slot with the newest picture that had arrived by the slot's time.

    A gap begins at the camera's last picture, not when the loss is detected. If the first picture comes late,
    it also fills the slots before, as a gap.

    Attributes:
        fps: slots a second.
        limit: number of slots.
        put: callback that takes the picture of the next slot, (H, W, 3) uint8.
        slots: number of slots filled so far.
        repeated: number of slots outside gaps that repeat the picture of the slot before.
        gaps: closed gaps, in order.
    """

    fps: float
    limit: int
    put: Callable[[NDArray[np.uint8]], None]
    slots: int = field(default=0, init=False)
    repeated: int = field(default=0, init=False)
    gaps: list[Gap] = field(default_factory=list, init=False)
    _newest: NDArray[np.uint8] | None = field(default=None, init=False)
    _fresh: bool = field(default=False, init=False)
    _same_since: int = field(default=0, init=False)
    _lost: str | None = field(default=None, init=False)

    @property
    def due_us(self) -> int:
        """Time at which the next slot is due, microseconds since the first slot."""
        return round(self.slots * US_PER_S / self.fps)

    @property
    def full(self) -> bool:
        """True when all slots are filled."""
        return self.slots >= self.limit

    def show(self, t_us: int, image: NDArray[np.uint8]) -> None:
        """Adds the picture that is shown from ``t_us`` on; times rise, and may lie before the first slot."""
        if self._newest is None and t_us > 0:
            self._newest, self._lost = image, self._lost or _NOT_YET
        self.fill(t_us - 1)
        self.close_gap()
        self._newest, self._fresh = image, True

    def lose(self, reason: str) -> None:
        """Marks the camera as lost until its next picture."""
        self._lost = reason

    def fill(self, until_us: int) -> None:
        """Fills all slots that are due by ``until_us``; none before the first picture."""
        while self._newest is not None and not self.full and self.due_us <= until_us:
            self.put(self._newest)
            self.slots += 1
            if self._fresh:
                self._fresh, self._same_since = False, self.slots

    def close_gap(self) -> None:
        """Records the slots since the last new picture, as a gap if the camera was lost, else as repeated.

        To be called after the last picture.
        """
        same = self.slots - self._same_since
        if self._lost is not None and same:
            self.gaps.append(Gap(self._same_since, self.slots, self._lost))
        elif self._lost is None:
            self.repeated += same
        self._lost = None
        self._same_since = self.slots

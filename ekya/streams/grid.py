"""A camera's pictures at an even rate, so that a second in the file is a second in the street."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ekya.core.units import US_PER_S

_NOT_YET = "it was not there yet"


@dataclass(frozen=True, slots=True)
class Gap:
    """Slots in which the camera was lost, and which hold what it had shown before.

    Attributes:
        begin, end: the first of them, and the first behind them.
        reason: why it was lost, in words.
    """

    begin: int
    end: int
    reason: str


@dataclass(eq=False)
class FrameGrid:
    """Puts into every slot the newest picture that had come by its time.

    A camera that gives nothing until it is known to be lost was lost from its last picture on. One that only
    came later has its first picture in the slots before, as a gap.

    Attributes:
        fps: slots a second.
        limit: how many slots there are.
        put: takes the picture of the next slot, (H, W, 3) uint8.
        slots: filled so far.
        repeated: those of them that hold the picture of the slot before, outside of gaps.
        gaps: closed ones, in order.
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
        """When the next slot is to be filled, since the first."""
        return round(self.slots * US_PER_S / self.fps)

    @property
    def full(self) -> bool:
        """Whether nothing more goes in."""
        return self.slots >= self.limit

    def show(self, t_us: int, image: NDArray[np.uint8]) -> None:
        """The camera shows this from then on; times rise, and may lie before the first slot."""
        if self._newest is None and t_us > 0:
            self._newest, self._lost = image, self._lost or _NOT_YET
        self.fill(t_us - 1)
        self._close_gap()
        self._newest, self._fresh = image, True

    def lose(self, reason: str) -> None:
        """The camera gives nothing for now."""
        self._lost = reason

    def fill(self, until_us: int) -> None:
        """Fill all slots that are due by then; nothing where there was no picture yet."""
        while self._newest is not None and not self.full and self.due_us <= until_us:
            self.put(self._newest)
            self.slots += 1
            if self._fresh:
                self._fresh, self._same_since = False, self.slots

    def end(self) -> None:
        """Nothing more comes."""
        self._close_gap()

    def _close_gap(self) -> None:
        """A camera that was lost since its last picture is so no more."""
        same = self.slots - self._same_since
        if self._lost is not None and same:
            self.gaps.append(Gap(self._same_since, self.slots, self._lost))
        elif self._lost is None:
            self.repeated += same
        self._lost = None
        self._same_since = self.slots

"""A golden model on the meter: what it has taken so far says what the next questions will."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ekya.labeling.detections import FramePlace, Question
from ekya.workers.collector import UNNAMED
from ekya.workers.labels import Labels

_TRIED_ON = (360, 640, 3)


class MeteredGolden:
    """The part of a golden model that labelling needs, with its cost where no cost card says it."""

    def __init__(self, golden: Labels, clock: Callable[[], float]) -> None:
        """Put it on the meter.

        Args:
            golden: it.
            clock: seconds of GPU time that have passed for it.
        """
        self._golden = golden
        self._clock = clock
        self._operations = 0
        self._took_s = 0.0

    @property
    def took_s(self) -> float:
        """GPU-seconds of everything it was asked so far."""
        return self._took_s

    @property
    def background(self) -> int | None:
        """As the golden model's."""
        return self._golden.background

    def try_out(self) -> None:
        """Labels a grey picture, twice: the first time is no measure."""
        boxes = np.array([[100, 100, 200, 200]], np.float32)
        question = Question(boxes, np.full(_TRIED_ON, 114, np.uint8), None, FramePlace(UNNAMED, 0))
        self._golden.label([question])
        self.label([question])

    def label(self, items: Sequence[Question]) -> list[NDArray[np.int64]]:
        """As the golden model's."""
        began_s = self._clock()
        labels = self._golden.label(items)
        self._took_s += self._clock() - began_s
        self._operations += self._golden.operations(items)
        return labels

    def operations(self, items: Sequence[Question]) -> int:
        """As the golden model's."""
        return self._golden.operations(items)

    def gpu_s(self, items: Sequence[Question]) -> float:
        """What it will take for these, at the speed that it has had so far; 0.0 before it was tried."""
        if not self._operations:
            return 0.0
        return self._golden.operations(items) * self._took_s / self._operations

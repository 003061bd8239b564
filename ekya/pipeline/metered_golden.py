"""Golden model with a meter: predicts the cost of questions from the measured cost of earlier ones."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ekya.models.golden.detections import FramePlace, GoldenObjects, Question
from ekya.models.golden.golden_model import Labels
from ekya.pipeline.collector import UNNAMED

_TRIED_ON = (360, 640, 3)
_NO_BOXES = np.zeros((0, 4), np.float32)


class MeteredGolden:
    """The part of a golden model that labelling needs, with measured costs in place of a cost card."""

    def __init__(self, golden: Labels, clock: Callable[[], float]) -> None:
        """Wraps a golden model.

        Args:
            golden: the golden model.
            clock: seconds of GPU time that it has used.
        """
        self.background = golden.background
        """The background class of the golden model."""
        self.finds = golden.finds
        """Whether it finds the objects of an image itself."""
        self.took_s = 0.0
        """GPU-seconds of all questions so far."""
        self.operations = golden.operations
        """Returns the golden model's operation count for some questions."""
        self._golden = golden
        self._clock = clock
        self._operations = 0

    def try_out(self) -> None:
        """Labels a grey picture twice, unless something was labelled before.

        Only the second call is metered, since the first is a warm-up.
        """
        if self._operations:
            return
        boxes = np.array([[100, 100, 200, 200]], np.float32)
        question = Question(boxes, np.full(_TRIED_ON, 114, np.uint8), None, FramePlace(UNNAMED, 0))
        self._golden.label([question])
        self.label([question])

    def label(self, items: Sequence[Question]) -> list[NDArray[np.int64]]:
        """Labels as the golden model does, and meters the call."""
        began_s = self._clock()
        labels = self._golden.label(items)
        self.took_s += self._clock() - began_s
        self._operations += self._golden.operations(items)
        return labels

    def find(
        self,
        image: NDArray[np.uint8],
        place: FramePlace | None = None,
        size: tuple[int, int] | None = None,
    ) -> GoldenObjects | None:
        """Finds objects as the golden model does, and meters the call."""
        began_s = self._clock()
        found = self._golden.find(image, place, size)
        self.took_s += self._clock() - began_s
        self._operations += self._golden.operations([Question(_NO_BOXES, image, place=place)])
        return found

    def gpu_s(self, items: Sequence[Question]) -> float:
        """Returns the expected GPU-seconds of these questions at the average speed so far; 0.0 before any."""
        if not self._operations:
            return 0.0
        return self._golden.operations(items) * self.took_s / self._operations

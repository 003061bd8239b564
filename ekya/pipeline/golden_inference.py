"""The golden model at work in a live run: in inference, where λ of it are offered, and metered for labels."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ekya.config.fleet_file import FleetConfig
from ekya.core.host import TYPICAL_FRAME
from ekya.models.golden.detections import ON_CPU, FramePlace, GoldenObjects, Question
from ekya.models.golden.golden_model import GoldenModel, Labels, open_golden
from ekya.pipeline.collector import UNNAMED
from ekya.pipeline.device_scopes import UNCHARGED, DeviceScopes
from ekya.pipeline.discover_classes import fleet_classes

TYPICAL_QUESTION = Question(np.zeros((0, 4), np.float32), np.zeros(TYPICAL_FRAME, np.uint8))
"""A frame, to count the golden detector's operations on it, and to warm it up."""


class GoldenInference:
    """Golden detector of the streams of a process, opened on first use. Thread-safe.

    Args:
        fleet: with open classes found.
        scopes: contexts of each analysis; one may block until its share lets it run. Their device is that
            on which the detector is opened.

    Attributes:
        runs_on: where the detector runs; on a CPU before it is opened.
    """

    def __init__(self, fleet: FleetConfig, scopes: DeviceScopes = UNCHARGED) -> None:
        self._fleet, self._scopes = fleet, scopes
        self.runs_on = ON_CPU
        self._golden: GoldenModel | None = None
        self._lock = threading.Lock()

    def find_objects(self, image: NDArray[np.uint8]) -> GoldenObjects:
        """Returns the objects of an (H, W, 3) uint8 BGR frame."""
        with self._lock:
            golden = self._opened()
            # Inside the lock: who waits for another stream's frame has no batch under way.
            with self._scopes.scope_on(golden.runs_on.device):
                found = golden.find_objects(image)
        assert found is not None, "a fleet file with λ of it names a detector"
        return found

    def operations(self) -> int:
        """Returns the multiplications and additions for a frame; to count them first takes seconds."""
        with self._lock:
            return self._opened().operations([TYPICAL_QUESTION])

    def warm_up(self) -> None:
        """Opens the detector and runs the first forward pass, which is slow, unless it is already open.

        Before a run there is no share, so it waits for none.
        """
        with self._lock:
            if self._golden is None:
                self._opened().find_objects(TYPICAL_QUESTION.picture)

    def _opened(self) -> GoldenModel:
        if self._golden is None:
            fleet = self._fleet
            classes, device = fleet_classes(fleet), self._scopes.device
            self._golden = open_golden(fleet.golden, classes, fleet.edge.task, device)
            self.runs_on = self._golden.runs_on
        return self._golden


_TRIED_ON = (360, 640, 3)
_NO_BOXES = np.zeros((0, 4), np.float32)


class MeteredGolden:
    """The part of a golden model that labelling needs, with measured costs in place of a cost card."""

    def __init__(self, golden: Labels, clock: Callable[[], float]) -> None:
        """Wraps a golden model.

        Args:
            golden: the golden model.
            clock: seconds that its device has worked, as ``device_clock`` counts them.
        """
        self.background = golden.background
        """The background class of the golden model."""
        self.finds = golden.finds
        """Whether it finds the objects of an image itself."""
        self.runs_on = golden.runs_on
        """Where the golden model computes."""
        self.took_s = 0.0
        """Seconds of its device for all questions so far."""
        self.gpu_scope: Callable[[], AbstractContextManager[None]] = nullcontext
        """Context of its questions, where it runs on a GPU; what the CPU does around them has another one."""
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
        self._golden.label_boxes([question])
        with self._metered([question]):
            self._golden.label_boxes([question])

    def label_boxes(self, items: Sequence[Question]) -> list[NDArray[np.int64]]:
        """Labels as the golden model does, and meters the call."""
        with self._charged(), self._metered(items):
            return self._golden.label_boxes(items)

    def find_each(self, items: Sequence[Question]) -> Sequence[GoldenObjects | None]:
        """Finds objects as the golden model does, and meters the call."""
        with self._charged(), self._metered([replace(item, boxes=_NO_BOXES) for item in items]):
            return self._golden.find_each(items)

    def gpu_s(self, items: Sequence[Question]) -> float:
        """Returns the expected GPU-seconds of these questions at the average speed so far; 0.0 before any."""
        if not self._operations:
            return 0.0
        return self._golden.operations(items) * self.took_s / self._operations

    def _charged(self) -> AbstractContextManager[None]:
        return nullcontext() if self.runs_on == ON_CPU else self.gpu_scope()

    @contextmanager
    def _metered(self, items: Sequence[Question]) -> Iterator[None]:
        began_s = self._clock()
        yield
        self.took_s += self._clock() - began_s
        self._operations += self._golden.operations(items)

"""Chooses the classes of a fleet whose file does not name them."""

from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ekya.core.objects import BACKGROUND
from ekya.models.golden.detections import Detector
from ekya.models.golden.label_file import LabelFile
from ekya.streams.ingest.frame import Frame, Truth

_LEAST_PART = 0.02
_NONE = np.zeros(0, dtype=np.int64)


class _Readable(Protocol):
    """A ``StreamSource``, or a ``SourceProcess`` around one."""

    def frames(self) -> Iterator[tuple[Frame, Truth | None]]:
        """Yields all frames in order."""


def occurring_classes(detector: Detector, *sources: _Readable, sample_frames: int = 60) -> tuple[str, ...]:
    """Returns the classes that a detector finds, and ``background``.

    Args:
        detector: the golden one.
        sources: the fleet's cameras; a class found in one of them is the fleet's.
        sample_frames: approximate number of analysed frames of each, evenly spread over all of it.

    Returns:
        Names in the detector's order, each at least a fiftieth of some camera's objects, and
        ``background`` last.
    """
    found = (
        [detector.detect(frame.image).classes for frame in _spread(source, sample_frames)]
        for source in sources
    )
    return _often(detector.names, (np.concatenate([_NONE, *of]) for of in found))


def classes_in(labels: LabelFile, sure_score: float) -> tuple[str, ...]:
    """Returns ``occurring_classes`` of existing labels with at least this confidence."""
    found = (of.found.classes[of.found.scores >= sure_score] for of in labels.streams.values())
    return _often(labels.head.names, found)


def _often(names: tuple[str, ...], cameras: Iterable[NDArray[np.int64]]) -> tuple[str, ...]:
    """Returns the names that are at least a fiftieth of some camera's objects, and ``background``."""
    occurs = np.zeros(len(names), dtype=np.bool_)
    for classes in cameras:
        counts = np.bincount(classes, minlength=len(names))
        occurs |= (counts > 0) & (counts >= _LEAST_PART * counts.sum())
    return (*(name for name, here in zip(names, occurs, strict=True) if here), BACKGROUND)


def _spread(source: _Readable, count: int) -> list[Frame]:
    """Returns between ``count`` and twice as many frames at equal distances; all if there are fewer.

    The number of frames is only certain at the end, since a file's own count is a hint. So every frame is
    kept at first, then every second, every fourth, and so on.
    """
    kept: list[Frame] = []
    stride = 1
    for at, (frame, _) in enumerate(source.frames()):
        if at % stride:
            continue
        kept.append(frame)
        if len(kept) > 2 * count:
            kept = kept[::2]
            stride *= 2
    return kept

"""Tracks objects: matches the boxes of a frame to those of earlier frames."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ekya.core.objects import iou_matrix

_SMOOTHING = 0.5


@dataclass(slots=True, eq=False)
class _Track:
    number: int
    box: NDArray[np.float64]
    velocity: NDArray[np.float64]
    unseen: int = 0

    def predicted(self) -> NDArray[np.float64]:
        return self.box + self.velocity * (self.unseen + 1)


@dataclass(eq=False)
class IouTracker:
    """Matches boxes greedily to tracks by overlap with each track's predicted box.

    A track moves at constant speed (pixels a frame, separately for each edge, so that a growing box is
    followed too). Tracks keep the crops of one object on one side of the split between training and
    validation labels, and count objects; no decision depends on their speed.

    Attributes:
        min_iou: least overlap of a box with a track's predicted box.
        max_unseen: number of frames for which a track survives without a box.
    """

    min_iou: float = 0.3
    max_unseen: int = 10
    _tracks: list[_Track] = field(default_factory=list, init=False)
    _next: int = field(default=0, init=False)

    def number_boxes(self, boxes: NDArray[np.float32]) -> NDArray[np.int64]:
        """Returns the track numbers of the next frame's boxes.

        Args:
            boxes: (N, 4) x0 y0 x1 y1, pixels.

        Returns:
            (N,) int64; numbers count up from 0 and are never reused.
        """
        numbers = np.full(len(boxes), -1, dtype=np.int64)
        seen: set[int] = set()
        for row, column in self._pairs(boxes):
            track = self._tracks[row]
            box = boxes[column].astype(np.float64)
            moved = (box - track.box) / (track.unseen + 1)
            fresh = not track.velocity.any()
            track.velocity = moved if fresh else _SMOOTHING * track.velocity + (1 - _SMOOTHING) * moved
            track.box = box
            track.unseen = 0
            numbers[column] = track.number
            seen.add(track.number)
        for track in self._tracks:
            track.unseen += track.number not in seen
        self._tracks = [track for track in self._tracks if track.unseen <= self.max_unseen]
        for column in np.flatnonzero(numbers < 0).tolist():
            numbers[column] = self._next
            self._tracks.append(_Track(self._next, boxes[column].astype(np.float64), np.zeros(4)))
            self._next += 1
        return numbers

    def _pairs(self, boxes: NDArray[np.float32]) -> list[tuple[int, int]]:
        """Returns (track, box) pairs of rows, best overlap first, each row used once."""
        if not self._tracks or not len(boxes):
            return []
        predicted = np.stack([track.predicted() for track in self._tracks]).astype(np.float32)
        overlap = iou_matrix(predicted, boxes)
        rows, columns = np.nonzero(overlap >= self.min_iou)
        order = np.argsort(-overlap[rows, columns], kind="stable")
        taken_rows: set[int] = set()
        taken_columns: set[int] = set()
        pairs = []
        for row, column in zip(rows[order].tolist(), columns[order].tolist(), strict=True):
            if row not in taken_rows and column not in taken_columns:
                taken_rows.add(row)
                taken_columns.add(column)
                pairs.append((row, column))
        return pairs

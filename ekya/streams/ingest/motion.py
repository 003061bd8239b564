"""Follows boxes by sparse optical flow or by overlap, and finds the moving regions of a fixed camera.

Boxes are followed by median flow (Kalal, Mikolajczyk and Matas, "Forward-Backward Error: Automatic Detection
of Tracking Failures", ICPR'10) over OpenCV's pyramidal Lucas-Kanade: a grid of points in each box is followed
forward and backward, points that do not return to their origin are dropped, and the median of the others
gives the box's shift and growth. The camera may move. Regions are found by background subtraction. Boxes of a
detector in each frame are matched to earlier ones by ``IouTracker``.
"""

from dataclasses import dataclass, field

import cv2
import numpy as np
from numpy.typing import NDArray

from ekya.core.objects import iou_matrix

_WINDOW = 11
_LEVELS = 2
_ITERATIONS = 10
_ENOUGH = (cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, _ITERATIONS, 0.03)

_INNER = 0.7
"""Part of a box's width and height that the grid of points covers: the edges often show street."""

_CAME_BACK = 1.5
"""Greatest forward-backward error of a point, pixels of the copy."""

_LEAST_POINTS = 5
_MOST_GROWTH = 1.25
"""Greatest plausible growth from one picture to the next; it is clipped to this."""

_OF_A_NETWORK = 3
"""Network operations that take as long as one operation of optical flow: its windows are small, and each
point's iterations are sequential (measured on real video)."""

_LEAST_VISIBLE = 0.4
"""Part of a box that must be inside the picture; with less, the object has left."""


@dataclass(eq=False)
class BoxFlow:
    """Follows the boxes of one camera on a small grey copy of the picture.

    Attributes:
        work_side: longest side of the copy, pixels.
        grid: points along each side of a box.
        drops_lost: whether a box whose points are lost is dropped, and does not stay in place.
        rows: of the boxes that were given at the start, those that are still followed.
    """

    work_side: int = 320
    grid: int = 4
    drops_lost: bool = False
    rows: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64), init=False)
    _picture: NDArray[np.uint8] | None = field(default=None, init=False)
    # Not cut to the picture: full size, also of objects that are partly outside.
    _boxes: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 4), np.float32), init=False)
    _shape: tuple[int, ...] = field(default=(), init=False)

    def start_boxes(self, image: NDArray[np.uint8], boxes: NDArray[np.float32]) -> None:
        """Restarts with (N, 4) boxes, x0 y0 x1 y1 in pixels of an (H, W, 3) uint8 BGR picture."""
        self._shape = image.shape
        self._picture = self._small(image)
        self._boxes = boxes
        self.rows = np.arange(len(boxes))

    def has_size_of(self, image: NDArray[np.uint8]) -> bool:
        """Returns whether boxes can be followed into this picture: the previous one had the same size."""
        return self._picture is not None and image.shape == self._shape

    def follow_boxes(self, image: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Returns the boxes' positions in the next picture.

        A box that has left the picture is dropped; for one whose points are lost see ``drops_lost``.

        Returns:
            (M, 4) float32 with M <= N, in the order of the given boxes.
        """
        before, self._picture = self._picture, self._small(image)
        if before is not None and len(self._boxes):
            self._boxes, lost = self._moved(before, self._picture)
            part = _visible(self._boxes, image.shape)
            # At least 1, so that a box without area is dropped as well.
            staying = _area(part) >= _LEAST_VISIBLE * np.maximum(_area(self._boxes), 1.0)
            staying &= ~lost | (not self.drops_lost)
            self._boxes, self.rows = self._boxes[staying], self.rows[staying]
        return _visible(self._boxes, image.shape)

    def count_operations(self, shape: tuple[int, ...], boxes: float) -> int:
        """Returns the cost of following ``boxes`` boxes into a picture of this (H, W, ...) shape.

        Unit: multiplications and additions of a network, on which rates are measured (``_OF_A_NETWORK``).
        Pyramids of both copies: a 5x5 filter in two passes and two 3x3 derivatives a pixel, forward and
        backward. Points: gradients and iterations of the window, on each level, forward and backward.
        """
        scale = min(1.0, self.work_side / max(shape[:2]))
        pixels = shape[0] * shape[1] * scale * scale * 4 / 3
        point = 2 * (_LEVELS + 1) * _WINDOW * _WINDOW * (6 + 8 * _ITERATIONS)
        counted = pixels * 2 * (20 + 2 * 18) + boxes * self.grid * self.grid * point
        return round(_OF_A_NETWORK * counted)

    def _small(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        height, width = image.shape[:2]
        scale = min(1.0, self.work_side / max(height, width))
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        small = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
        return np.asarray(cv2.cvtColor(small, cv2.COLOR_BGR2GRAY), np.uint8)

    def _moved(
        self, before: NDArray[np.uint8], after: NDArray[np.uint8]
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        scale = min(1.0, self.work_side / max(self._shape[:2]))
        points = self._points(_visible(self._boxes, self._shape) * np.float32(scale))
        flat = points.reshape(-1, 1, 2)
        forth, there = _lucas_kanade(before, after, flat)
        back, here = _lucas_kanade(after, before, forth)
        off = np.linalg.norm((back - flat).reshape(-1, 2), axis=1)
        found = there & here & (off <= _CAME_BACK)
        each = (len(self._boxes), self.grid * self.grid)
        return _move(self._boxes, points / scale, forth.reshape(*each, 2) / scale, found.reshape(each))

    def _points(self, boxes: NDArray[np.float32]) -> NDArray[np.float32]:
        """Returns (N, grid squared, 2) points inside the boxes."""
        steps = (np.arange(self.grid) + 0.5) / self.grid * _INNER + (1.0 - _INNER) / 2
        across, down = (part.ravel() for part in np.meshgrid(steps, steps))
        size = boxes[:, 2:] - boxes[:, :2]
        places = boxes[:, None, :2] + np.stack([across, down], axis=1)[None] * size[:, None]
        return np.ascontiguousarray(places, dtype=np.float32)


def _lucas_kanade(
    before: NDArray[np.uint8], after: NDArray[np.uint8], points: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Returns the (K, 1, 2) points' positions in the next picture, and (K,) whether they were found."""
    moved, found, _ = cv2.calcOpticalFlowPyrLK(
        before,
        after,
        points,
        np.zeros_like(points),
        winSize=(_WINDOW, _WINDOW),
        maxLevel=_LEVELS,
        criteria=_ENOUGH,
    )
    return np.asarray(moved, np.float32), np.asarray(found).ravel() == 1


def _move(
    boxes: NDArray[np.float32],
    old: NDArray[np.float32],
    new: NDArray[np.float32],
    found: NDArray[np.bool_],
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Moves (N, 4) boxes by their (N, K, 2) points from old to new, where found (N, K).

    Returns:
        The boxes, and (N,) whether too few points of one were found: it is where it was.
    """
    shift = np.stack([_middle((new - old)[..., axis], found) for axis in (0, 1)], axis=1)
    first, second = np.triu_indices(old.shape[1], 1)
    was = np.linalg.norm(old[:, first] - old[:, second], axis=2)
    now = np.linalg.norm(new[:, first] - new[:, second], axis=2)
    # Points of a tiny box may coincide.
    growth = _middle(now / np.maximum(was, 1e-6), found[:, first] & found[:, second])
    half = (boxes[:, 2:] - boxes[:, :2]) / 2
    centre = boxes[:, :2] + half + shift
    half = half * np.clip(growth, 1.0 / _MOST_GROWTH, _MOST_GROWTH)[:, None]
    lost = found.sum(axis=1) < _LEAST_POINTS
    moved = np.where(lost[:, None], boxes, np.concatenate([centre - half, centre + half], axis=1))
    return np.asarray(moved, np.float32), lost


def _middle(values: NDArray[np.float32], counts: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Returns (N,) medians of the (N, K) values that count; arbitrary for a row in which none does."""
    rows, many = np.arange(len(values)), counts.sum(axis=1)
    # Values that do not count are sorted behind all others.
    inorder = np.sort(np.where(counts, values, np.float32(1e9)), axis=1)
    middle: NDArray[np.float32] = (inorder[rows, (many - 1) // 2] + inorder[rows, many // 2]) / 2
    return middle


def _visible(boxes: NDArray[np.float32], shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Cuts boxes to a picture of this (H, W, ...) shape."""
    return np.clip(boxes, 0.0, [shape[1], shape[0], shape[1], shape[0]]).astype(np.float32)


def _area(boxes: NDArray[np.float32]) -> NDArray[np.float32]:
    area: NDArray[np.float32] = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1)
    return area


_NO_BOXES = np.zeros((0, 4), dtype=np.float32)
_FOREGROUND = 255  # MOG2 marks shadows with 127, which do not count.


@dataclass(eq=False)
class MotionRegions:
    """Boxes around moving objects, from a background learnt frame by frame on a small copy of the picture.

    Attributes:
        work_side: longest side of the copy, pixels.
        min_part, max_part: least and greatest area of a region, as a part of the picture. A
            region that is the whole picture is a change of light or of scene, not an object.
        warm_up: number of first frames from which only the background is learnt.
        history: number of frames in the background model.
    """

    work_side: int = 240
    min_part: float = 0.0015
    max_part: float = 0.25
    warm_up: int = 15
    history: int = 200
    _background: cv2.BackgroundSubtractor | None = field(default=None, init=False)
    _shape: tuple[int, int] = field(default=(0, 0), init=False)
    _seen: int = field(default=0, init=False)

    def find_regions(self, image: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Learns one frame and returns its moving regions.

        Args:
            image: (H, W, 3) uint8, BGR. A change of size starts a new background.

        Returns:
            (N, 4) float32, x0 y0 x1 y1 in pixels of ``image``; touching regions are merged.
        """
        height, width = image.shape[:2]
        if self._background is None or self._shape != (height, width):
            self._background = cv2.createBackgroundSubtractorMOG2(self.history, 16.0, True)
            self._shape = (height, width)
            self._seen = 0
        scale = min(1.0, self.work_side / max(height, width))
        small = cv2.resize(image, (max(1, round(width * scale)), max(1, round(height * scale))))
        mask = self._background.apply(small)
        self._seen += 1
        if self._seen <= self.warm_up:
            return _NO_BOXES
        return self._regions(np.asarray(mask, dtype=np.uint8), width, height)

    def _regions(self, mask: NDArray[np.uint8], width: int, height: int) -> NDArray[np.float32]:
        """Returns boxes of the foreground, after specks are removed and near pieces are joined."""
        moving = cv2.morphologyEx(
            (mask == _FOREGROUND).astype(np.uint8), cv2.MORPH_OPEN, np.ones((2, 2), dtype=np.uint8)
        )
        moving = cv2.dilate(moving, np.ones((7, 7), dtype=np.uint8))
        count, _, stats, _ = cv2.connectedComponentsWithStats(moving)
        # Component 0 is the background.
        if count < 2:
            return _NO_BOXES
        stats = np.asarray(stats[1:], dtype=np.float32)
        # The dilation added three pixels on each side.
        area = (stats[:, cv2.CC_STAT_WIDTH] - 6.0) * (stats[:, cv2.CC_STAT_HEIGHT] - 6.0)
        part = area / mask.size
        stats = stats[(part >= self.min_part) & (part <= self.max_part)]
        low, size = stats[:, :2], stats[:, 2:4]
        # At least one pixel is left of a region when the dilation is taken off.
        boxes = np.concatenate([low + 3.0, low + np.maximum(size - 3.0, 4.0)], axis=1)
        boxes *= np.asarray([width / mask.shape[1], height / mask.shape[0]] * 2, dtype=np.float32)
        return np.asarray(np.clip(boxes, 0.0, [width, height, width, height]), dtype=np.float32)


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
            # Without a speed so far, as of a new track, there is nothing to smooth with.
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
        # Stable, so that equal overlaps are matched in the same order on every machine.
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

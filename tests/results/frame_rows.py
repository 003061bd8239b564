"""Rows of a stream's predictions and reference for tests of scores: 0.4 s between frames."""

import numpy as np
from numpy.typing import NDArray

from ekya.core.records import NO_LABELS, FramePrediction, FrameReference, PredictionColumns, ReferenceColumns

Box = tuple[float, float, float, float]
Item = tuple[Box, int]
Detected = tuple[Box, int, float]

CLASSES = 3
LEFT = (0.0, 0.0, 10.0, 10.0)
NEAR = (3.0, 0.0, 13.0, 10.0)  # IoU with LEFT is 7 / 13
FAR = (50.0, 0.0, 60.0, 10.0)


def boxes_of(boxes: list[Box]) -> NDArray[np.float32]:
    return np.array(boxes, np.float32).reshape(-1, 4)


def seen(frame: int, items: list[Detected], *, by: int | None = None, window: int = 0) -> FramePrediction:
    """Returns a row of predictions; ``by`` is the frame that answers for a skipped one."""
    return FramePrediction(
        frame=frame,
        t_us=frame * 400_000,
        window=window,
        analysed=by is None,
        answered_by=frame if by is None else by,
        model_version=0,
        every=1,
        resolution=32,
        boxes=boxes_of([box for box, _, _ in items]),
        classes=np.array([label for _, label, _ in items], np.int16),
        confidence=np.array([confidence for _, _, confidence in items], np.float32),
    )


def true(frame: int, items: list[Item], tracks: list[int] | None = None) -> FrameReference:
    """Returns a row of the reference; without tracks every object is another one."""
    own = range(len(items)) if tracks is None else tracks
    classes = np.array([label for _, label in items], np.int16)
    boxes = boxes_of([box for box, _ in items])
    return FrameReference(frame, frame * 400_000, boxes, classes, np.array(own, np.int64))


def steady_stream(frames: int, boxes: NDArray[np.float32]):
    """Returns what to score of a stream whose boxes are all answered rightly, in five windows."""
    each, rng, index = len(boxes) // frames, np.random.default_rng(1), np.arange(frames)
    classes = rng.integers(0, CLASSES, len(boxes)).astype(np.int16)
    offsets = np.arange(frames + 1) * each
    predictions = PredictionColumns(
        frame=index,
        t_us=index * 33_333,
        window=(index * 5 // frames).astype(np.int32),
        analysed=np.ones(frames, np.bool_),
        answered_by=index,
        model_version=np.zeros(frames, np.int32),
        every=np.ones(frames, np.int16),
        resolution=np.full(frames, 352, np.int16),
        offsets=offsets,
        boxes=boxes,
        classes=classes,
        confidence=rng.uniform(0.5, 1.0, len(boxes)).astype(np.float32),
    )
    tracks = np.repeat(np.arange(frames), each)
    reference = ReferenceColumns(index, index * 33_333, offsets, boxes, classes, tracks)
    return predictions, reference, NO_LABELS

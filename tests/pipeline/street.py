"""Frames with an empty picture: only their times and objects matter."""

import numpy as np

from ekya.core.configs import InferenceConfig
from ekya.core.records import NOT_ANSWERED, FramePrediction
from ekya.pipeline.collector import CollectedFrame, WindowMaterial
from ekya.streams.ingest.crops import crop_objects
from ekya.streams.ingest.frame import Frame

FPS = 10.0
WINDOW_US = 10_000_000
PER_WINDOW = 100
SIDE = 8
IMAGE = np.zeros((40, 60, 3), np.uint8)
EVERY = InferenceConfig(1, 32)


def t_us(index):
    return round(index * 1_000_000 / FPS)


def boxes_at(index):
    """Returns two boxes that stand still and one that drives by."""
    x = 2.0 * (index % 20)
    return np.array([[0, 0, 10, 10], [30, 0, 40, 10], [x, 20, x + 10, 30]], np.float32)


def frame_at(index, given=True):
    return Frame(index, t_us(index), IMAGE, boxes_at(index) if given else None)


def collected(index, tracks, found=None):
    """Returns a collected frame with one box per track; the box identifies frame and track."""
    boxes = np.array([[track, index, track + 9, index + 9] for track in tracks], np.float32).reshape(-1, 4)
    crops = crop_objects(IMAGE, boxes, SIDE)
    image = IMAGE if found is None else None
    return CollectedFrame(index, t_us(index), boxes, np.array(tracks, np.int64), crops, image, found)


def material(*tracks_of_frames, window=3, found=None):
    sample = tuple(collected(index, tracks, found) for index, tracks in enumerate(tracks_of_frames))
    return WindowMaterial(window, sample, ())


def row(frame, analysed, window=0, config=EVERY):
    """Returns the row of a frame without objects."""
    return FramePrediction(
        frame=frame,
        t_us=frame,
        window=window,
        analysed=analysed,
        answered_by=frame if analysed else NOT_ANSWERED,
        model_version=0,
        every=config.every,
        resolution=config.resolution,
        boxes=np.zeros((0, 4), np.float32),
        classes=np.zeros(0, np.int16),
        confidence=np.zeros(0, np.float32),
    )

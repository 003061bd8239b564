"""Tests of the changed copies of labelled frames."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ekya.models.training.augmentation import LEAST_VISIBLE, copies_of, versions_of
from ekya.models.training.frames import FrameObjects, LabelledFrames
from ekya.models.training.labelled import no_crops

SIDE = 128
DARK, BRIGHT = 20, 250


def frame_with(box: tuple[float, float, float, float], t_us: int = 0) -> LabelledFrames:
    """Returns a dark frame with one bright object."""
    image = np.full((1, SIDE, SIDE, 3), DARK, np.uint8)
    x0, y0, x1, y1 = (round(edge * SIDE) for edge in box)
    image[0, y0:y1, x0:x1] = BRIGHT
    boxes = np.array([[x0, y0, x1, y1]], np.float32) / SIDE
    objects = FrameObjects(boxes, np.array([1]), np.zeros((0, 4), np.float32))
    return LabelledFrames(image, (objects,), ("a", "b"), np.array([0]), np.array([t_us]))


def box_of_bright(image: np.ndarray) -> np.ndarray:
    """Returns the box around the brightest fifth of an image's range."""
    grey = image.astype(np.float32).mean(axis=2)
    rows, columns = np.nonzero(grey > (grey.min() + 4 * grey.max()) / 5)
    return np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]) / SIDE


@given(st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_copy_objects_move_with_their_pixels(seed: int) -> None:
    frame = frame_with((0.4, 0.35, 0.55, 0.6), seed)
    copy = copies_of(frame)
    assert copy.images.shape == frame.images.shape
    (objects,) = copy.objects
    if len(objects.boxes):
        assert objects.classes.tolist() == [1]
        # A grey border may be brighter than the dark frame, but never than the object.
        assert box_of_bright(copy.images[0]) == pytest.approx(objects.boxes[0], abs=2.5 / SIDE)
    else:
        assert len(objects.doubtful) <= 1


@given(st.integers(0, 10_000), st.floats(0.0, 0.8), st.floats(0.0, 0.8))
@settings(max_examples=60, deadline=None)
def test_copy_boxes_stay_inside_and_hidden_objects_are_doubtful(seed: int, x: float, y: float) -> None:
    frame = frame_with((x, y, x + 0.2, y + 0.2), seed)
    (objects,) = copies_of(frame).objects
    regions = np.concatenate([objects.boxes, objects.doubtful])
    assert len(regions) <= 1
    assert regions.min(initial=0.0) >= 0.0
    assert regions.max(initial=1.0) <= 1.0
    assert len(objects.boxes) == len(objects.classes)


def test_object_that_a_copy_mostly_hides_is_doubtful() -> None:
    """Height that is all visible tells the zoom, and the width the part that is hidden."""
    kept, doubtful = [], []
    for t_us in range(300):
        (objects,) = copies_of(frame_with((0.0, 0.4, 0.3, 0.6), t_us)).objects
        for boxes, parts in ((objects.boxes, kept), (objects.doubtful, doubtful)):
            for x0, y0, x1, y1 in boxes.tolist():
                if y0 > 0.0 and y1 < 1.0:
                    parts.append((x1 - x0) / 0.3 / ((y1 - y0) / 0.2))
    assert min(kept) >= LEAST_VISIBLE - 0.02
    assert max(doubtful) <= LEAST_VISIBLE + 0.02
    assert min(len(kept), len(doubtful)) > 5


def test_copy_of_a_frame_does_not_depend_on_the_others() -> None:
    first, second = frame_with((0.2, 0.2, 0.5, 0.5), 1), frame_with((0.4, 0.4, 0.6, 0.6), 2)
    both = copies_of(first.joined([second]))
    alone = copies_of(second)
    assert np.array_equal(both.images[1], alone.images[0])
    assert np.array_equal(both.objects[1].boxes, alone.objects[0].boxes)
    assert not np.array_equal(alone.images, copies_of(frame_with((0.4, 0.4, 0.6, 0.6), 3)).images)


def test_crops_are_trained_on_as_they_are() -> None:
    assert versions_of(no_crops(32)) == 1
    assert len(copies_of(no_crops(32))) == 0

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ekya.core.objects import iou_matrix
from ekya.streams.ingest.motion import BoxFlow

HEIGHT, WIDTH = 180, 320
BOXES = np.array([[60, 40, 100, 80], [180, 90, 250, 140]], np.float32)


def texture(seed, height, width):
    """Returns a pattern that can be recognised: blocks of 4 × 4 pixels of random brightness."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (height // 4 + 1, width // 4 + 1, 1)).astype(np.uint8)
    return np.repeat(blocks.repeat(4, axis=0).repeat(4, axis=1)[:height, :width], 3, axis=2)


def street(shifts, ground=(0, 0)):
    """Draws objects on a ground, each moved by its own shift; a shifted ground simulates a moving camera."""
    picture = np.roll(texture(0, HEIGHT, WIDTH), (ground[1], ground[0]), axis=(0, 1))
    for number, (box, (right, down)) in enumerate(zip(BOXES.astype(int), shifts, strict=True)):
        x0, y0, x1, y1 = box + np.array([right, down, right, down])
        thing = texture(number + 1, y1 - y0, x1 - x0)
        left, top = max(0, -x0), max(0, -y0)
        part = picture[max(0, y0) : max(0, y1), max(0, x0) : max(0, x1)]
        part[:] = thing[top : top + part.shape[0], left : left + part.shape[1]]
    return picture


def following(*pictures, boxes=BOXES):
    flow = BoxFlow()
    flow.start_boxes(pictures[0], boxes)
    for picture in pictures[1:]:
        found = flow.follow_boxes(picture)
    return found


@settings(max_examples=15, deadline=None)
@given(st.tuples(*[st.integers(-5, 5)] * 4), st.tuples(*[st.integers(-5, 5)] * 2))
def test_box_flow_moving_camera_follows_objects(shift, ground):
    shifts = (shift[:2], shift[2:])
    found = following(street([(0, 0)] * 2), street(shifts, ground))
    expected = BOXES + np.array([[*one, *one] for one in shifts], np.float32)
    assert np.diag(iou_matrix(found, expected)).min() > 0.85


def test_box_flow_several_pictures_follows_boxes():
    pictures = [street([(4 * step, 0), (-3 * step, 2 * step)]) for step in range(6)]
    found = following(*pictures)
    expected = BOXES + np.array([[20, 0, 20, 0], [-15, 10, -15, 10]], np.float32)
    assert np.diag(iou_matrix(found, expected)).min() > 0.8


def test_box_flow_nearing_object_grows_its_box():
    far = street([(0, 0)] * 2)
    near = far.copy()
    x0, y0, x1, y1 = BOXES[1].astype(int)
    thing = np.kron(far[y0:y1, x0:x1], np.ones((2, 2, 1), np.uint8))  # scaled by 2, then sampled down to 1.1
    rows = (np.arange(round(1.1 * (y1 - y0))) / 1.1 * 2).astype(int)
    columns = (np.arange(round(1.1 * (x1 - x0))) / 1.1 * 2).astype(int)
    near[y0 : y0 + len(rows), x0 : x0 + len(columns)] = thing[rows][:, columns]
    found = following(far, near)[1]
    assert 1.03 < (found[2] - found[0]) / (x1 - x0) < 1.2


def test_box_flow_leaving_object_is_dropped_in_order():
    pictures = [street([(-6 * step, 0), (0, 0)]) for step in range(17)]
    found = following(*pictures)
    assert len(found) == 1
    assert iou_matrix(found, BOXES[1:]).min() > 0.9


def test_box_flow_flat_box_stays_in_place():
    blank = np.full((HEIGHT, WIDTH, 3), 128, np.uint8)
    noise = np.random.default_rng(0).integers(0, 256, blank.shape).astype(np.uint8)
    np.testing.assert_array_equal(following(noise, blank), BOXES)


def test_box_flow_no_boxes_and_other_sizes_fit():
    flow = BoxFlow()
    picture = street([(0, 0)] * 2)
    assert not flow.has_size_of(picture)
    flow.start_boxes(picture, np.zeros((0, 4), np.float32))
    assert flow.has_size_of(picture)
    assert flow.follow_boxes(picture).shape == (0, 4)
    assert not flow.has_size_of(picture[:100])


@pytest.mark.parametrize("shape", [(352, 640, 3), (1080, 1920, 3)])
def test_box_flow_operations_grow_with_boxes(shape):
    flow = BoxFlow()
    assert (
        0
        < flow.count_operations(shape, 0)
        < flow.count_operations(shape, 1)
        < flow.count_operations(shape, 10)
    )
    assert flow.count_operations((1080, 1920, 3), 5) == flow.count_operations((2160, 3840, 3), 5)

"""Boxes that are followed from frame to frame, numbers of tracks, and regions that move."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ekya.core.objects import iou_matrix
from ekya.streams.ingest.motion import BoxFlow, IouTracker, MotionRegions

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
    flow = BoxFlow(drops_lost=True)
    flow.start_boxes(noise, BOXES)
    assert flow.follow_boxes(blank).shape == (0, 4)


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


@settings(max_examples=60, deadline=None)
@given(
    steps=st.tuples(st.floats(-0.3, 0.3), st.floats(-0.3, 0.3)),  # per frame, in parts of the box size
    size=st.tuples(st.floats(40, 120), st.floats(40, 120)),
    hidden=st.sets(st.integers(5, 28), max_size=8),
    seed=st.integers(0, 1000),
)
def test_tracker_moving_box_keeps_its_number(
    steps: tuple[float, float], size: tuple[float, float], hidden: set[int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    tracker = IouTracker()
    numbers = set()
    for i in range(30):
        x, y = 1500 + steps[0] * size[0] * i, 1500 + steps[1] * size[1] * i
        mine = [x, y, x + size[0], y + size[1]]
        others = [[4000 + 400 * k, 0, 4060 + 400 * k, 60] for k in range(3) if rng.random() < 0.7]
        boxes = np.array(others if i in hidden else [mine, *others], dtype=np.float32).reshape(-1, 4)
        tracks = tracker.number_boxes(boxes)
        if i not in hidden:
            numbers.add(int(tracks[0]))
    assert len(numbers) == 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.tuples(st.integers(0, 90), st.integers(0, 90)), max_size=5), max_size=25))
def test_tracker_numbers_are_never_reused(frames: list[list[tuple[int, int]]]) -> None:
    tracker = IouTracker(max_unseen=2)
    last_seen: dict[int, int] = {}
    newest = -1
    for i, corners in enumerate(frames):
        boxes = np.array([[x, y, x + 12, y + 12] for x, y in corners], dtype=np.float32).reshape(-1, 4)
        tracks = tracker.number_boxes(boxes).tolist()
        assert len(set(tracks)) == len(tracks) == len(boxes)
        for number in tracks:
            if number in last_seen:
                assert i - last_seen[number] <= 3, "a number comes back only while its track lives"
            else:
                assert number > newest, "a new object has a new number"
            last_seen[number] = i
        newest = max([newest, *tracks])


def test_tracker_passing_boxes_keep_their_numbers() -> None:
    tracker = IouTracker()
    first = None
    for i in range(40):
        a = [10.0 * i, 0, 10.0 * i + 50, 50]
        b = [400 - 10.0 * i, 10, 450 - 10.0 * i, 60]
        tracks = tracker.number_boxes(np.array([a, b], dtype=np.float32)).tolist()
        first = first or tracks
    assert tracks == first


def test_tracker_box_unseen_too_long_gets_new_number() -> None:
    tracker = IouTracker(max_unseen=3)
    box = np.array([[0, 0, 10, 10]], dtype=np.float32)
    none = np.zeros((0, 4), dtype=np.float32)
    assert tracker.number_boxes(box).tolist() == [0]
    for _ in range(4):
        assert tracker.number_boxes(none).tolist() == []
    assert tracker.number_boxes(box).tolist() == [1]


def noisy_street(x: int | None, height: int = 240, width: int = 320) -> np.ndarray:
    rng = np.random.default_rng(0)
    image = rng.integers(90, 130, (height, width, 3), dtype=np.uint8)
    if x is not None:
        image[100:140, x : x + 60] = (20, 20, 230)
    return image


def iou_of(a: np.ndarray, b: list[int]) -> float:
    low, high = np.maximum(a[:2], b[:2]), np.minimum(a[2:], b[2:])
    shared = float(np.prod(np.clip(high - low, 0, None)))
    return shared / (float(np.prod(a[2:] - a[:2])) + (b[2] - b[0]) * (b[3] - b[1]) - shared)


def test_motion_boxes_only_moving_objects() -> None:
    motion = MotionRegions()
    for _ in range(30):
        assert len(motion.find_regions(noisy_street(None))) == 0
    overlaps = []
    for x in range(20, 200, 12):
        boxes = motion.find_regions(noisy_street(x))
        assert boxes.dtype == np.float32
        assert len(boxes) <= 2
        overlaps += [max(iou_of(box, [x, 100, x + 60, 140]) for box in boxes)] if len(boxes) else [0.0]
    assert np.mean(overlaps) > 0.6


def test_motion_large_picture_boxes_are_in_its_pixels() -> None:
    motion = MotionRegions(work_side=160)
    big = [noisy_street(x).repeat(3, 0).repeat(3, 1) for x in (None, 100)]
    for _ in range(30):
        motion.find_regions(big[0])
    boxes = motion.find_regions(big[1])
    assert len(boxes) == 1
    assert iou_of(boxes[0], [300, 300, 480, 420]) > 0.6


def test_motion_whole_change_or_new_size_is_no_object() -> None:
    motion = MotionRegions()
    for _ in range(30):
        motion.find_regions(noisy_street(None))
    assert len(motion.find_regions(255 - noisy_street(None))) == 0
    assert len(motion.find_regions(noisy_street(50, 200, 300))) == 0, "a new background is being learnt"

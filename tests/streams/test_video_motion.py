import numpy as np

from ekya.streams.ingest.motion import MotionRegions


def scene(x: int | None, height: int = 240, width: int = 320) -> np.ndarray:
    rng = np.random.default_rng(0)
    image = rng.integers(90, 130, (height, width, 3), dtype=np.uint8)
    if x is not None:
        image[100:140, x : x + 60] = (20, 20, 230)
    return image


def iou(a: np.ndarray, b: list[int]) -> float:
    low, high = np.maximum(a[:2], b[:2]), np.minimum(a[2:], b[2:])
    shared = float(np.prod(np.clip(high - low, 0, None)))
    return shared / (float(np.prod(a[2:] - a[:2])) + (b[2] - b[0]) * (b[3] - b[1]) - shared)


def test_motion_boxes_only_moving_objects() -> None:
    motion = MotionRegions()
    for _ in range(30):
        assert len(motion.find_regions(scene(None))) == 0
    overlaps = []
    for x in range(20, 200, 12):
        boxes = motion.find_regions(scene(x))
        assert boxes.dtype == np.float32
        assert len(boxes) <= 2
        overlaps += [max(iou(box, [x, 100, x + 60, 140]) for box in boxes)] if len(boxes) else [0.0]
    assert np.mean(overlaps) > 0.6


def test_motion_large_picture_boxes_are_in_its_pixels() -> None:
    motion = MotionRegions(work_side=160)
    big = [scene(x).repeat(3, 0).repeat(3, 1) for x in (None, 100)]
    for _ in range(30):
        motion.find_regions(big[0])
    boxes = motion.find_regions(big[1])
    assert len(boxes) == 1
    assert iou(boxes[0], [300, 300, 480, 420]) > 0.6


def test_motion_whole_change_or_new_size_is_no_object() -> None:
    motion = MotionRegions()
    for _ in range(30):
        motion.find_regions(scene(None))
    assert len(motion.find_regions(255 - scene(None))) == 0
    assert len(motion.find_regions(scene(50, 200, 300))) == 0, "a new background is being learnt"

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ekya.streams.ingest.motion import IouTracker


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

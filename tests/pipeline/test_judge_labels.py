"""Labels of a stream against its video: every origin, unit and space of coordinates that tools write."""

import random
import re
from collections.abc import Callable

import numpy as np
import pytest

from ekya.models.golden.detections import Detections
from ekya.models.golden.label_file import StreamTable
from ekya.pipeline.judge_labels import LabelProblem, judge_labels
from ekya.pipeline.sampled_sources import SampledSource, SeenFrame
from ekya.streams.ingest.frame import Frame

FPS, COUNT, WIDTH, HEIGHT = 25.0, 500, 640, 360
SIZE = np.array([WIDTH, HEIGHT] * 2, np.float32)
SEEN = range(15, 240)


def boxes_at(frame: float) -> np.ndarray:
    """Returns two objects that move to and fro, no two frames of a second alike."""
    x = 40 + 480 * abs((frame * 4 / 480) % 2 - 1)
    y = 200 - 180 * abs((frame * 3 / 180) % 2 - 1)
    return np.array([[x, 20, x + 60, 70], [300, y, 360, y + 60]], np.float32)


def read(frames: dict[int, np.ndarray], score: float = 1.0) -> StreamTable:
    """Returns labels of one class as a file of them is read."""
    order = sorted(frames)
    counts = [len(frames[frame]) for frame in order]
    boxes = np.concatenate([frames[frame] for frame in order]).astype(np.float32)
    scores = np.full(len(boxes), score, np.float32)
    found = Detections(boxes, np.zeros(len(boxes), np.int64), scores)
    return StreamTable(np.array(order, np.int64), np.append(0, np.cumsum(counts)).astype(np.int64), found)


def judged(
    frames: dict[int, np.ndarray], seen: bool = True, score: float = 1.0, own: bool = False
) -> LabelProblem | None:
    """Judges labels against a video in which these objects move, or nothing is seen to."""
    # A picture holds its number, by which the detector finds the objects.
    pictures = {at: np.full((HEIGHT, WIDTH, 3), at, np.uint8) for at in range(0, SEEN[-1], 12)}
    moving = [
        SeenFrame(
            at,
            boxes_at(at),
            Frame(at, 0, pictures[at], None) if at in pictures else None,
        )
        for at in (SEEN if seen else ())
    ]
    video = SampledSource(FPS, (Frame(0, 0, pictures[0], None),), COUNT / FPS, tuple(moving))
    return judge_labels(
        read(frames, score), np.array([True]), 0.6, video, own, lambda image: boxes_at(int(image[0, 0, 0]))
    )


def counted(number: Callable[[int], float], every: int = 1, until: int = COUNT) -> dict[int, np.ndarray]:
    """Labels every n-th frame under another number."""
    return {round(number(frame)): boxes_at(frame) for frame in range(0, until, every)}


def scaled(*factors: float) -> dict[int, np.ndarray]:
    return {frame: boxes_at(frame) * np.array(factors * 2, np.float32) for frame in range(COUNT)}


@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize(
    "frames",
    [
        counted(float),
        counted(float, every=5),
        counted(float, until=130),
        {frame: boxes_at(frame) for frame in range(300, COUNT)},
        {frame: boxes_at(frame) for frame in range(3, COUNT)},
    ],
    ids=["every frame", "every 5th", "the begin", "the end", "none in the first three"],
)
def test_labels_of_the_video_are_taken_without_a_word(frames, seen):
    assert judged(frames, seen) is None


OF_RANGES = {
    "from 1": (
        counted(lambda at: at + 1),
        "and its video 500 from 0: its column 'frame' counts from 1; subtract 1",
    ),
    "ms": (counted(lambda at: at * 1e3 / FPS), "column 'frame' counts milliseconds; divide it by 40 and"),
    "us, every 5th": (counted(lambda at: at * 1e6 / FPS, 5), "counts microseconds; divide it by 40000 and"),
    "ns": (counted(lambda at: at * 1e9 / FPS), "counts nanoseconds; divide it by 4e.07 and"),
    "ticks": (counted(lambda at: at * 9e4 / FPS), "counts ticks of 90 kHz; divide it by 3600 and"),
    "another video": (counted(lambda at: at + 700), "labels of frames 700 to 1199, and its video 500 from 0"),
    "parts": (scaled(1 / WIDTH, 1 / HEIGHT), "parts of the picture.*multiply x by 640 and y by 360"),
    "full size": (scaled(3, 3), r"of its boxes outside: they reach to \d+, \d+, and the frames of a run are"),
}
OF_PICTURES = {
    "s": (
        counted(lambda at: at / FPS, 25),
        "counts every 25th frame from 0; multiply it by 25|counts seconds; divide it by 0.04",
    ),
    "every 5th": (
        counted(lambda at: at // 5, 5),
        "for 100% if .* counts every 5th frame from 0; multiply it by 5",
    ),
    "every 8th": (counted(lambda at: at // 8 + 1, 8), "from 1; subtract 1 from it and multiply it by 8"),
    "percent": (scaled(100 / WIDTH, 100 / HEIGHT), "boxes are percent; multiply x by 6.4 and y by 3.6"),
    "half size": (scaled(0.5, 0.5), "boxes are pixels of a picture 320 wide; multiply x by 2 and y by 2"),
    "first 300 from 1": (
        counted(lambda at: at + 1, until=300),
        "1.0 frames behind .* subtract 1 from the column",
    ),
}


@pytest.mark.parametrize("case", OF_RANGES | OF_PICTURES)
def test_labels_made_elsewhere_are_refused_with_the_remedy(case):
    frames, words = (OF_RANGES | OF_PICTURES)[case]
    problem = judged(frames)
    assert problem is not None
    assert problem.certain
    assert re.search(words, problem.sentence), problem.sentence


@pytest.mark.parametrize("case", OF_RANGES)
def test_ranges_alone_tell_most_of_them(case):
    frames, words = OF_RANGES[case]
    problem = judged(frames, seen=False)
    assert problem is not None
    assert problem.certain
    assert re.search(words, problem.sentence), problem.sentence


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        (counted(float, until=900), "labels of frames 0 to 899, and its video 500 from 0"),
        (
            {at: boxes_at(at) + np.array([[0, 310], [0, 0]])[:, [0, 1, 0, 1]] for at in range(3)},
            "% of its boxes outside: they reach to 580, 380",
        ),
    ],
    ids=["a longer video", "boxes that reach outside"],
)
def test_labels_that_may_be_right_are_warned_of(frames, words):
    problem = judged(frames, seen=False)
    assert problem is not None
    assert not problem.certain
    assert words in problem.sentence


def test_labels_in_which_nothing_is_sure_are_warned_of():
    problem = judged(counted(float), score=0.5)
    assert problem is not None
    assert not problem.certain
    assert "confidence of 0.6 or more (the highest is 0.5), so nothing is learnt" in problem.sentence


def test_a_shift_that_is_small_for_labels_is_not_looked_for_in_ekyas_own():
    frames = counted(lambda at: at + 1, until=300)
    assert judged(frames) is not None
    assert judged(frames, own=True) is None


NUMBERS: dict[str, Callable[[int, int], float]] = {
    "frames": lambda at, every: at,
    "labelled frames": lambda at, every: at // every,
    "ms": lambda at, every: at * 1e3 / FPS,
    "us": lambda at, every: at * 1e6 / FPS,
    "ns": lambda at, every: at * 1e9 / FPS,
    "ticks": lambda at, every: at * 9e4 / FPS,
}
PLACES = {
    "pixels": (1.0, 1.0),
    "parts": (1 / WIDTH, 1 / HEIGHT),
    "percent": (100 / WIDTH, 100 / HEIGHT),
    "half": (0.5, 0.5),
    "three times": (3.0, 3.0),
}


@pytest.mark.parametrize("count", [10, pytest.param(200, marks=pytest.mark.long)])
def test_labels_with_one_thing_wrong_are_told_and_others_are_not(count):
    for seed in range(count):
        rng = random.Random(seed)
        numbers, place, origin = rng.choice([*NUMBERS]), rng.choice([*PLACES]), rng.choice((0, 0, 1))
        every, until = rng.choice((1, 2, 3, 5, 8)), rng.choice((COUNT, 300))
        scale = np.array(PLACES[place] * 2, np.float32)
        frames = {
            round(NUMBERS[numbers](at, every)) + origin: boxes_at(at) * scale for at in range(0, until, every)
        }
        counts_frames = numbers == "frames" or (numbers == "labelled frames" and every == 1)
        problem, way = judged(frames), (seed, numbers, place, origin, every, until)
        if counts_frames and place == "pixels" and origin == 0:
            assert problem is None, way
        elif counts_frames != (place == "pixels") or (counts_frames and every == 1):
            assert problem is not None, way
        # Of two mistakes at once nothing may fit any more, and few sparse labels tell no frame from the next.
        assert problem is None or "\n" not in problem.sentence

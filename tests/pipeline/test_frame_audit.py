"""Tests of audits: frames are drawn evenly from all that arrive, and answers are judged as in scores."""

from dataclasses import replace

import numpy as np
import pytest
from bright import FLEET, BrightDetector, picture
from frame_rows import CLASSES, seen, true

from ekya.core.areas import Areas
from ekya.core.objects import DOUBTFUL
from ekya.core.records import NO_LABELS, PredictionColumns, ReferenceColumns
from ekya.core.units import StreamId
from ekya.models.edge.architecture_table import Task
from ekya.models.golden.detections import ON_CPU, GoldenObjects
from ekya.models.golden.golden_from_detections import detector_model
from ekya.pipeline.audit import (
    BUDGET_PART,
    AuditCounts,
    DrawnFrame,
    DrawnFrames,
    FrameDraw,
    audit,
    score_audited_frame,
)
from ekya.pipeline.collector import LONGEST_SIDE
from ekya.pipeline.device_scopes import UNCHARGED
from ekya.pipeline.settings import PreparationSettings
from ekya.results.metrics.accuracy import score_stream
from ekya.results.metrics.detection_accuracy import score_detections
from ekya.streams.ingest.frame import Frame

CAM, WINDOW_US, FRAME_US = StreamId("cam"), 3_000_000, 100_000
CAR, PERSON = FLEET.index("car"), FLEET.index("person")
DETECTS = PreparationSettings(FLEET, 32, 10.0, 96, 7, task=Task.DETECT)
BLANK = np.zeros((4, 6, 3), np.uint8)


def frame_of(index, image=BLANK, boxes=None):
    return Frame(index, index * FRAME_US, image, boxes)


def show(draw, frames, without_picture=(), answer=None):
    for index in frames:
        frame = None if index in without_picture else frame_of(index)
        draw.sample_frame(index * FRAME_US, frame, seen(index, []) if answer is None else answer)


def drawn_from(arrived, seed, most=4, **named):
    draw = FrameDraw(most, replace(DETECTS, seed=seed), WINDOW_US)
    show(draw, range(arrived), **named)
    return draw.drain_sample()


def is_even(counts, draws, part):
    """Returns whether each of these counts is within five standard deviations of an even draw."""
    return np.abs(np.array(counts) - draws * part).max() < 5 * np.sqrt(draws * part * (1 - part))


# Draws


def test_every_frame_that_arrives_is_as_likely_to_be_drawn():
    counts = np.zeros(20, int)
    for seed in range(1000):
        taken = drawn_from(20, seed)
        assert taken.arrived == 20
        assert len({one.frame for one in taken.frames}) == 4
        counts[[one.frame for one in taken.frames]] += 1
    assert is_even(counts, 1000, 4 / 20)


def test_draw_depends_on_seed_and_window_alone():
    frames = [[one.frame for one in drawn_from(200, seed).frames] for seed in (1, 1, 2)]
    assert frames[0] == frames[1] != frames[2]


def test_frames_whose_picture_was_not_taken_are_drawn_as_often_and_seen_in_the_next_picture():
    """Otherwise an inference that is behind would be judged by the frames that it analyses."""
    counts, skipped = np.zeros(21, int), {index for index in range(20) if index % 5}
    for seed in range(1000):
        for one in drawn_from(21, seed, without_picture=skipped).frames:
            counts[one.answer.frame] += 1
            assert one.frame == -(-one.answer.frame // 5) * 5
    assert is_even(counts, 1000, 4 / 21)


def test_draw_that_was_taken_begins_anew():
    draw = FrameDraw(4, DETECTS, WINDOW_US)
    show(draw, range(3))
    first = draw.drain_sample()
    assert (first.arrived, sorted(one.frame for one in first.frames)) == (3, [0, 1, 2])
    nothing = draw.drain_sample()
    assert (nothing.arrived, nothing.frames) == (0, ())
    show(draw, range(50, 90))
    later = draw.drain_sample()
    assert (later.arrived, len(later.frames)) == (40, 4)
    assert min(one.frame for one in later.frames) >= 50


def test_nothing_is_drawn_where_nothing_is_audited():
    taken = drawn_from(30, 1, most=0)
    assert (taken.arrived, taken.frames) == (0, ())


def test_joined_draws_are_even_over_the_frames_of_both():
    counts = np.zeros(40, int)
    for seed in range(1000):
        early, late = drawn_from(10, seed), FrameDraw(4, replace(DETECTS, seed=seed + 5000), WINDOW_US)
        show(late, range(10, 40))
        both = early.joined(late.drain_sample(), 4, seed)
        assert (both.arrived, len(both.frames)) == (40, 4)
        counts[[one.frame for one in both.frames]] += 1
    assert is_even(counts, 1000, 4 / 40)


@pytest.mark.parametrize(
    ("task", "given", "longest"), [(Task.DETECT, False, 640), (Task.CLASSIFY, True, 900)]
)
def test_kept_pictures_are_as_large_as_the_golden_model_needs(task, given, longest):
    assert LONGEST_SIDE == 640
    draw = FrameDraw(1, replace(DETECTS, task=task), WINDOW_US)
    boxes = np.zeros((1, 4), np.float32) if given else None
    draw.sample_frame(0, frame_of(0, np.zeros((450, 900, 3), np.uint8), boxes), None)
    (kept,) = draw.drain_sample().frames
    assert (kept.image.shape[1], kept.size) == (longest, (900, 450))
    assert (kept.boxes is None) != given


# Judgement


def random_frame(rng):
    """Returns boxes, classes and confidences around few places, so that many overlap."""
    count = int(rng.integers(0, 6))
    corner = rng.integers(0, 3, (count, 2)) * 12 + rng.integers(0, 4, (count, 2))
    boxes = np.concatenate([corner, corner + rng.integers(9, 13, (count, 2))], axis=1)
    return (
        [tuple(map(float, box)) for box in boxes],
        rng.integers(0, CLASSES, count).tolist(),
        rng.random(count),
    )


@pytest.mark.parametrize("task", list(Task))
def test_judgement_is_the_score_of_the_frame(task):
    rng = np.random.default_rng(3)
    right = 0
    for _ in range(500):
        boxes, classes, confidence = random_frame(rng)
        objects, names, _ = random_frame(rng)
        doubtful = random_frame(rng)[0][:1] if task is Task.DETECT else []
        row = seen(0, list(zip(boxes, classes, confidence.tolist(), strict=True)))
        items = [*zip(objects, names, strict=True), *((box, DOUBTFUL) for box in doubtful)]
        predicted, reference = (
            PredictionColumns.from_rows([row]),
            ReferenceColumns.from_rows([true(0, items)]),
        )
        score = score_detections if task is Task.DETECT else score_stream
        (whole,) = score(predicted, reference, NO_LABELS, decoded=1, class_count=CLASSES).windows
        golden = GoldenObjects(
            np.array(objects, np.float32).reshape(-1, 4),
            np.array(names, np.int64),
            np.array(doubtful, np.float32).reshape(-1, 4),
        )
        got = score_audited_frame(row, golden, task, CLASSES)
        if objects:  # the score of a window without objects counts no boxes
            assert got == (whole.correct, whole.counted)
        else:
            assert got[0] == 0
        right += got[0]
    assert right > 50


@pytest.mark.parametrize("task", list(Task))
def test_frame_without_an_answer_is_wrong(task):
    objects = GoldenObjects(np.ones((3, 4), np.float32), np.zeros(3, np.int64), np.zeros((0, 4), np.float32))
    assert score_audited_frame(None, objects, task, 2) == (0, 3)


def drawn(image, answer=None, boxes=None, frame=0):
    return DrawnFrame(frame, image, (image.shape[1], image.shape[0]), boxes, answer)


def audited(frames, golden, settings, cost=lambda _: 0.0):
    return audit(DrawnFrames(100, tuple(frames)), golden, settings, CAM, UNCHARGED, cost)


CAR_BOX, PERSON_BOX = (10.0, 10.0, 50.0, 40.0), (70.0, 10.0, 90.0, 60.0)
STREET = picture((10, 10, 50, 40, "car", 0.9), (70, 10, 90, 60, "person", 0.9))


def test_detector_is_audited_on_what_the_golden_one_finds():
    golden = detector_model(FLEET, BrightDetector(), 0.4, names_boxes=False)
    old = seen(0, [(CAR_BOX, CAR, 0.9), ((0.0, 50.0, 20.0, 70.0), CAR, 0.9)])
    counts = audited([drawn(STREET, old), drawn(STREET)], golden, DETECTS)
    assert counts == AuditCounts((2, 0), (4, 2))


def test_masked_objects_are_not_audited():
    """The answer has a car where it is masked, since another mask held then."""
    golden = detector_model(FLEET, BrightDetector(), 0.4, names_boxes=False)
    left = Areas(mask=(((0.0, 0.0), (0.5, 0.0), (0.5, 1.0), (0.0, 1.0)),))
    old = seen(0, [(CAR_BOX, CAR, 0.9), (PERSON_BOX, PERSON, 0.9)])
    assert audited([replace(drawn(STREET, old), areas=left)], golden, DETECTS) == AuditCounts((2,), (2,))


def test_classifier_of_proposed_boxes_is_audited_on_what_the_golden_detector_finds():
    """Also on objects that were never proposed."""
    names = (*FLEET, "background")
    golden = detector_model(names, BrightDetector(), 0.6)
    settings = replace(DETECTS, classes=names, task=Task.CLASSIFY)
    row = seen(0, [(CAR_BOX, CAR, 0.9), ((0.0, 50.0, 20.0, 70.0), PERSON, 0.9)])
    assert audited([drawn(STREET, row)], golden, settings) == AuditCounts((1,), (2,))


class NamesBoxes:
    """Golden model that names given boxes by their left side, and is not sure of some."""

    background, finds, runs_on = None, False, ON_CPU

    def label_boxes(self, items):
        return [np.array([-1 if box[0] > 80 else int(box[0] > 60) for box in item.boxes]) for item in items]

    def find_each(self, items):
        raise AssertionError("it finds nothing")


def test_classifier_of_given_boxes_is_audited_on_those_that_the_golden_model_names():
    boxes = np.array([CAR_BOX, PERSON_BOX, (85, 0, 99, 9)], np.float32)
    row = seen(0, [(CAR_BOX, 0, 0.9), (PERSON_BOX, 0, 0.9)])
    settings = replace(DETECTS, task=Task.CLASSIFY)
    assert audited([drawn(STREET, row, boxes)], NamesBoxes(), settings) == AuditCounts((1,), (2,))


class Unknowing(NamesBoxes):
    """Golden model that knows some frames only, as a label file does."""

    def find_each(self, items):
        none = np.zeros((0, 4), np.float32)
        known = GoldenObjects(np.array([CAR_BOX], np.float32), np.array([CAR]), none)
        return [known if of.place.stream == CAM and of.place.frame == 1 else None for of in items]


def test_frames_that_a_label_file_does_not_have_are_left_out():
    assert audited([drawn(STREET, frame=at) for at in range(3)], Unknowing(), DETECTS).counted == (1,)


def test_budget_limits_the_audit():
    golden = detector_model(FLEET, BrightDetector(), 0.4, names_boxes=False)
    limited = replace(DETECTS, label_gpu_s=1.0)
    for affords in (0, 2, 4):
        cost = BUDGET_PART / (affords + 0.5)
        counts = audited([drawn(STREET)] * 4, golden, limited, cost=lambda asked, one=cost: one * len(asked))
        assert len(counts.counted) == affords

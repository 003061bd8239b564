"""Tests of choosing the objects to label, and of splitting them into training and validation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from street import material, t_us

from ekya.core.objects import DOUBTFUL
from ekya.models.golden.detections import ON_CPU, Detections
from ekya.models.training.frames import NOTHING, FrameObjects, LabelledFrames
from ekya.pipeline.labels import LABELLED_TRACKS, LabelledPart, choose, choose_pictures, label_window

SIDE = 8


class Golden:
    """Golden model that derives an object's class from its track: the box's left edge."""

    background, runs_on = None, ON_CPU

    def __init__(self):
        self.asked = []

    def label_boxes(self, items):
        self.asked.append(items)
        return [boxes[:, 0].astype(np.int64) % 3 for boxes in (item.boxes for item in items)]


tracks_of_frames = st.lists(st.lists(st.integers(0, 12), max_size=4, unique=True), max_size=10).map(
    lambda frames: [list(map(int, frame)) for frame in frames]
)


def places(selection):
    return [(frame.frame, int(frame.tracks[row])) for frame, rows in selection.chosen for row in rows]


@settings(max_examples=30)
@given(tracks_of_frames, st.integers(0, 30), st.integers(0, 5))
def test_choose_keeps_to_the_part_and_the_limit(frames, limit, seed):
    found = material(*frames)
    objects = {track for frame in frames for track in frame}
    labelled = places(choose(found, limit, seed))
    assert len({track for _, track in labelled}) <= len(objects) * LABELLED_TRACKS
    assert len(labelled) <= limit
    assert len(set(labelled)) == len(labelled)
    assert set(labelled) <= {(at, track) for at, frame in enumerate(frames) for track in frame}
    assert labelled == sorted(labelled, key=lambda place: place[0])


@settings(max_examples=30)
@given(tracks_of_frames, st.integers(0, 5))
def test_choose_without_limit_takes_the_whole_part(frames, seed):
    labelled = places(choose(material(*frames), 1000, seed))
    chosen = {track for _, track in labelled}
    objects = {track for frame in frames for track in frame}
    assert len(chosen) == int(len(objects) * LABELLED_TRACKS)
    assert sorted(labelled) == sorted(
        (at, track) for at, frame in enumerate(frames) for track in frame if track in chosen
    )


def test_choose_depends_on_seed_and_window():
    frames = [[track for track in range(20) if (track + at) % 3] for at in range(12)]

    def choice(seed, window):
        return places(choose(material(*frames, window=window), 25, seed))

    assert choice(1, 3) == choice(1, 3)
    assert choice(1, 3) != choice(2, 3)
    assert choice(1, 3) != choice(1, 4)


def test_choose_leaves_objects_to_measure_with():
    """Labelled objects never count in accuracy, so too many would leave few to measure it."""
    assert 0.0 < LABELLED_TRACKS <= 0.6


def test_choose_gives_every_object_a_chance():
    frames = [list(range(10))] * 2
    often = np.zeros(10)
    for seed in range(200):
        for track in {track for _, track in places(choose(material(*frames), 1000, seed))}:
            often[track] += 1
    expected = 200 * LABELLED_TRACKS
    assert often.min() > expected - 30
    assert often.max() < expected + 30


def parted(frames, limit=1000, seed=0):
    golden, found = Golden(), material(*frames)
    chosen = choose(found, limit, seed)
    return label_window(found, chosen, golden, SIDE, limit, seed), chosen, golden


@settings(max_examples=20)
@given(tracks_of_frames, st.integers(1, 30), st.integers(0, 3))
def test_label_window_splits_objects_without_loss(frames, limit, seed):
    labels, chosen, _ = parted(frames, limit, seed)
    training, validation = labels.training, labels.validation
    assert not set(training.examples.tracks) & set(validation.examples.tracks)
    both = [
        (int(frame), int(track))
        for part in (training, validation)
        for frame, track in zip(part.frames, part.examples.tracks, strict=True)
    ]
    assert sorted(both) == sorted(places(chosen))


def test_label_window_columns_agree_in_every_row():
    labels, _, _ = parted([[track for track in range(16) if track % 4 != at % 4] for at in range(8)])
    assert labels.window == 3
    for part in (labels.training, labels.validation):
        assert len(part.examples) > 0
        assert (part.boxes[:, 0] == part.examples.tracks).all()
        assert (part.boxes[:, 1] == part.frames).all()
        assert (part.examples.t_us == [t_us(frame) for frame in part.frames]).all()
        assert (part.examples.classes == part.examples.tracks % 3).all()
        assert part.examples.crops.shape == (len(part.frames), SIDE, SIDE, 3)


def test_label_window_asks_for_chosen_boxes_once():
    _, chosen, golden = parted([list(range(8))] * 3, limit=5)
    (asked,) = golden.asked
    assert sum(len(item.boxes) for item in asked) == 5
    assert all((a.boxes == b.boxes).all() for a, b in zip(asked, chosen.questions, strict=True))


def test_label_window_without_objects_asks_nothing():
    labels, chosen, golden = parted([[], [7]])
    assert chosen.chosen == []
    assert golden.asked == []
    assert (len(labels.training.examples), len(labels.validation.examples)) == (0, 0)
    assert labels.training.boxes.shape == (0, 4)


class Detector:
    """Detector that names tracks below ``objects``, is unsure of the next, and calls the rest background."""

    background, runs_on = 5, ON_CPU

    def __init__(self, objects):
        self.objects = objects

    def label_boxes(self, items):
        return [self._names(boxes[:, 0].astype(np.int64)) for boxes in (item.boxes for item in items)]

    def _names(self, tracks):
        named = np.where(tracks < self.objects, tracks % 3, self.background)
        return np.where(tracks == self.objects, -1, named)


def detected(frames, objects, limit=1000, pictures=1000, seed=0):
    found = material(*frames)
    return label_window(found, choose_pictures(found, pictures, seed), Detector(objects), SIDE, limit, seed)


@settings(max_examples=30)
@given(tracks_of_frames, st.integers(0, 12), st.integers(0, 5))
def test_choose_pictures_takes_all_objects_of_few_pictures(frames, pictures, seed):
    found = material(*frames)
    chosen = choose_pictures(found, pictures, seed)
    drawn = {track for _, track in places(choose(found, 1000, seed))}
    assert len(chosen.chosen) <= pictures
    for frame, rows in chosen.chosen:
        assert frame.tracks[rows].tolist() == [track for track in frame.tracks if track in drawn]


@settings(max_examples=30)
@given(tracks_of_frames, st.integers(0, 12), st.integers(0, 5))
def test_choose_pictures_takes_all_with_known_detections(frames, pictures, seed):
    known = Detections(np.zeros((0, 4), np.float32), np.zeros(0, np.int64), np.zeros(0, np.float32))
    found = material(*frames, found=known)
    assert places(choose_pictures(found, pictures, seed)) == places(choose(found, 1000, seed))


@settings(max_examples=40)
@given(tracks_of_frames, st.integers(0, 12), st.integers(1, 20), st.integers(0, 5))
def test_label_window_limits_background_and_never_validates_it(frames, objects, limit, seed):
    labels = detected(frames, objects, limit, seed=seed)
    training, validation = labels.training.examples, labels.validation.examples
    background = int((training.classes == Detector.background).sum())
    named = len(training) - background + len(validation)
    assert background <= named <= limit
    assert not np.any(validation.classes == Detector.background)
    assert not set(training.tracks) & set(validation.tracks)
    assert objects not in {*training.tracks.tolist(), *validation.tracks.tolist()}, "it is unsure of this one"


def test_label_window_of_background_only_cannot_train():
    labels = detected([[8, 9, 10, 11]] * 6, objects=2)
    assert (len(labels.training.examples), len(labels.validation.examples)) == (0, 0)


def test_label_window_of_much_background_validates_on_objects():
    labels = detected([list(range(40))] * 6, objects=6)
    assert len(labels.validation.examples) > 0
    assert set(labels.training.examples.classes.tolist()) > {Detector.background}


def test_labelled_objects_of_crops_are_their_boxes():
    labels, _, _ = parted([list(range(8))] * 3)
    boxes, classes = labels.training.objects()
    assert (boxes.boxes == labels.training.boxes).all()
    assert boxes.frame.tolist() == labels.training.frames.tolist()
    assert (classes == labels.training.examples.classes).all()


def test_labelled_objects_of_frames_are_in_pixels():
    """A frame without objects has a row too, by which it is known to be labelled."""
    two = FrameObjects(
        np.array([[0.25, 0.5, 0.5, 1.0], [0.0, 0.0, 1.0, 0.5]], np.float32),
        np.array([1, 0]),
        np.array([[0.5, 0.5, 0.75, 0.75]], np.float32),
    )
    order = np.arange(3, dtype=np.int64)
    frames = LabelledFrames(
        np.zeros((3, 8, 8, 3), np.uint8), (two, NOTHING, two), ("car", "bus"), order, order
    )
    sizes = np.array([[0, 0, 100, 40], [0, 0, 100, 40], [0, 0, 200, 80]], np.float32)
    part = LabelledPart(frames, order + 7, sizes)
    boxes, classes = part.objects()
    assert boxes.frame.tolist() == [7, 7, 8, 9, 9]
    assert classes.tolist() == [1, 0, DOUBTFUL, 1, 0]
    assert boxes.boxes[:3].tolist() == [[25, 20, 50, 40], [0, 0, 100, 20], [0, 0, 0, 0]]
    assert boxes.boxes[3:] == pytest.approx(2 * boxes.boxes[:2])
    nothing, none = part.select_objects(order[:0]).objects()
    assert (nothing.boxes.shape, nothing.frame.shape, none.shape) == ((0, 4), (0,), (0,))

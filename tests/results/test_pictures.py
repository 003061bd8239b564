"""Pictures of a report: the frames that are chosen, and the boxes that are drawn into them."""

from dataclasses import replace

import cv2
import numpy as np
import pytest
from detecting_run import (
    BUS,
    CAR,
    FPS,
    FRAMES,
    LIVE,
    SAMPLED,
    STREET,
    WINDOW_S,
    answer,
    called_a_bus,
    car_at,
    draw_video,
    fleet_of,
    judged,
)

from ekya.core.areas import Areas
from ekya.core.configs import GOLDEN_RESOLUTION
from ekya.core.records import NO_LABELS, LabelledBoxes, PredictionColumns, ReferenceColumns
from ekya.results.boxed_picture import MOST_BYTES, WIDTH, BoxStyle, DrawnBox, draw_boxes
from ekya.results.pictures import SHOWN_FRAMES, StreamRecords, shown_frames, stream_pictures
from ekya.results.report.themes import DARK

CLASSES = ("car", "bus")
SECOND = FPS * WINDOW_S
"""First frame of window 1."""


def served_from(first: int, every: int = 1):
    """Answers of a run in which model 1 serves from a frame on, and every k-th frame is analysed."""
    rows = []
    for frame in range(FRAMES):
        by = frame - frame % every
        own = [car_at(frame)] if by == frame else []
        named = CAR if frame >= first else BUS
        skipped = None if by == frame else by
        rows.append(answer(frame, own, [named] * len(own), by=skipped, version=int(frame >= first)))
    return PredictionColumns.from_rows(rows)


def records(served=None, *, labelled=NO_LABELS, cars=range(FRAMES), referred=range(FRAMES)):
    base = PredictionColumns.from_rows([called_a_bus(frame) for frame in SAMPLED])
    reference = ReferenceColumns.from_rows([judged(frame, car=frame in cars) for frame in referred])
    return StreamRecords(base, served_from(SECOND) if served is None else served, reference, labelled)


def shown(of: StreamRecords) -> list[int]:
    return shown_frames(of, len(CLASSES))


def test_shown_frames_are_spread_over_the_last_window():
    assert shown(records()) == [24, 30, 36]


def test_shown_frames_are_of_the_newest_model():
    assert shown(records(served_from(33))) == [33, 36, 39]


def test_shown_frames_were_analysed_if_enough_were():
    assert shown(records(served_from(SECOND, every=2))) == [24, 30, 36]
    assert shown(records(served_from(SECOND, every=7))) == [24, 30, 36], "21 is the only one that was"
    assert shown(records(served_from(0, every=9), cars=range(SECOND))) == [0, 9, 18]


def test_shown_frames_show_objects_where_any_do():
    assert shown(records(cars=range(SECOND))) == [3, 9, 15]
    assert shown(records(cars=[27])) == [27]
    assert shown(records(cars=[])) == [24, 30, 36]


def test_shown_frames_have_a_reference_and_were_not_labelled():
    labelled = LabelledBoxes(np.array([24, 30, 36]), np.zeros((3, 4), np.float32))
    assert shown(records(labelled=labelled)) == [21, 33, 39]
    assert shown(records(referred=range(10))) == [0, 6, 9]
    assert shown(records(referred=[])) == []


@pytest.fixture(scope="module")
def street(tmp_path_factory):
    """The street's stream with its recording."""
    folder = tmp_path_factory.mktemp("street")
    draw_video(folder / f"{STREET}.avi")
    return fleet_of(STREET, folder=folder).stream(STREET)


def test_pictures_are_the_same_again(street):
    first, second = stream_pictures(street, CLASSES, records()), stream_pictures(street, CLASSES, records())
    assert len(first.rows) == SHOWN_FRAMES
    for one, other in zip(first.rows, second.rows, strict=True):
        assert [picture.jpeg for picture in one.pictures] == [picture.jpeg for picture in other.pictures]


def test_pictures_of_a_skipped_frame_say_so(street):
    made = stream_pictures(street, CLASSES, records(served_from(SECOND, every=7)))
    captions = [row.pictures[-1].caption for row in made.rows]
    assert all("answered by an earlier frame" in caption for caption in captions)


def test_pictures_say_that_boxes_were_followed_and_that_the_golden_detector_answered(street):
    rows = [
        replace(answer(frame, [car_at(frame)], [CAR]), resolution=GOLDEN_RESOLUTION, analysed=frame % 7 == 0)
        for frame in range(FRAMES)
    ]
    made = stream_pictures(street, CLASSES, records(PredictionColumns.from_rows(rows)))
    for row in made.rows:
        assert row.pictures[-1].caption.endswith("not analysed, boxes followed from an earlier frame")
        assert row.pictures[-1].caption.startswith("1 of 1 object found")
        assert row.pictures[-1].title == "Golden detector, which served"


def test_pictures_do_not_show_what_does_not_count(street):
    """A doubtful box is of the reference alone; in a mask it may be an object that does not count."""
    upper = ((0.0, 0.0), (1.0, 0.0), (1.0, 0.5), (0.0, 0.5))
    masked = street.model_copy(update={"mask": (upper,)})
    for stream, ends in ((street, ", 1 doubtful"), (masked, "1 object")):
        made = stream_pictures(stream, CLASSES, records())
        assert all(row.pictures[0].caption.endswith(ends) for row in made.rows)


def test_pictures_without_recording_reference_or_repetition_say_why(street, tmp_path):
    gone = fleet_of(STREET, folder=tmp_path).stream(STREET)
    live = fleet_of(LIVE, folder=tmp_path).stream(LIVE)
    notes = [
        stream_pictures(gone, CLASSES, records()),
        stream_pictures(live, CLASSES, records()),
        stream_pictures(street, CLASSES, records(referred=[])),
    ]
    assert not any(made.rows for made in notes)
    for made, words in zip(notes, ("could not be read again", "live camera", "has a reference"), strict=True):
        assert words in made.note


def decoded(jpeg: bytes):
    return cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)


def near(image, color: str):
    """Returns (H, W) bool: pixels that have about this colour."""
    red, green, blue = bytes.fromhex(color[1:])
    return np.abs(image.astype(int) - (blue, green, red)).sum(axis=2) < 60


@pytest.mark.parametrize("style", list(BoxStyle))
def test_drawn_box_has_the_colour_of_its_style_where_the_box_is(style):
    image = np.full((90, 160, 3), 128, np.uint8)
    drawn = decoded(draw_boxes(image, [DrawnBox(np.array([40, 30, 120, 60], np.float32), style)]))
    assert drawn.shape == (270, WIDTH, 3)
    assert np.all(image == 128)
    y, x = np.nonzero(np.abs(drawn.astype(int) - 128).sum(axis=2) > 60)
    found = np.array([x.min(), y.min(), x.max(), y.max()])
    assert np.abs(found - (120, 90, 360, 180)).max() <= 4
    edge = near(drawn, style.value.color)[87:94, 120:360].any(axis=0).mean()
    assert 0.3 < edge < 0.9 if style.value.dashed else edge > 0.95


def test_masks_are_dark_and_zones_outlined():
    image = np.full((90, 160, 3), 128, np.uint8)
    left = ((0.0, 0.0), (0.25, 0.0), (0.25, 1.0), (0.0, 1.0))
    middle = ((0.5, 0.0), (0.75, 0.0), (0.75, 1.0), (0.5, 1.0))
    drawn = decoded(draw_boxes(image, [], Areas((left,), (middle,))))[20:-20]
    dark = drawn.max(axis=2) < 70
    assert dark[:, 5:110].all()
    assert not dark[:, 130:].any()
    line = (np.abs(drawn.astype(int) - 128).sum(axis=2) > 40).all(axis=0)
    assert {round(at / 10) for at in np.flatnonzero(line).tolist() if at > 130} == {24, 36}


def test_drawn_labels_stay_in_the_picture():
    image = np.full((90, 160, 3), 128, np.uint8)
    box = np.array([150, 0, 160, 5], np.float32)
    plain = near(decoded(draw_boxes(image, [DrawnBox(box, BoxStyle.WRONG)])), DARK.streams[4])
    named = near(decoded(draw_boxes(image, [DrawnBox(box, BoxStyle.WRONG, "motorcycle?")])), DARK.streams[4])
    assert named.sum() > plain.sum() + 300


def test_pictures_with_much_detail_are_small_enough():
    noise = np.random.default_rng(0).integers(0, 256, (360, 640, 3), np.uint8)
    assert len(draw_boxes(noise, [])) <= MOST_BYTES
    tiny = np.zeros((30, 40, 3), np.uint8)
    assert decoded(draw_boxes(tiny, [])).shape == (360, WIDTH, 3)

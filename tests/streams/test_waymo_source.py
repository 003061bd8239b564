"""Tests of Waymo segments as a stream, in both versions: order, time, tracks, classes and counted damage."""

import logging
import re
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
import pytest
import waymo_sample
from pydantic import ValidationError
from torchvision.models import get_model_weights
from waymo_sample import FRAME_US, Segment

from ekya.config.shipped import shipped_path
from ekya.core.errors import UserError
from ekya.models.golden.class_map import class_of_each, coco_names
from ekya.streams.datasets.labelled import LabelledFrame, LabelledObject, LabelledSource, ShownFrame
from ekya.streams.datasets.waymo import WaymoSpec
from ekya.streams.datasets.waymo.catalogue import find_segments
from ekya.streams.datasets.waymo.records import FrameMessage
from ekya.streams.datasets.waymo.shots import CLASSES, WaymoCamera, number_classes

# The younger segment has the smaller name; they are a day apart.
YOUNGER = Segment("1000_0", first_us=1_560_000_086_400_000, frames=3, seed=1)
OLDER = Segment("2000_0", first_us=1_560_000_000_000_000, frames=4, seed=2)
ELSEWHERE = Segment("3000_0", location="location_phx", frames=2)
BOTH = (YOUNGER.name, OLDER.name)


@pytest.fixture(params=["v1", "v2"])
def write(request, tmp_path):
    """Returns a function that writes a segment of one version into the folder that ``spec`` reads."""
    of_version = {"v1": waymo_sample.write_v1, "v2": waymo_sample.write_v2}[request.param]
    return lambda segment: of_version(tmp_path, segment)


@pytest.fixture
def three(write):
    return [write(segment) for segment in (YOUNGER, OLDER, ELSEWHERE)]


def picture(segment):
    """Returns the first picture of the front camera."""
    return cv2.imdecode(np.frombuffer(segment.jpeg(WaymoCamera.FRONT, 0), np.uint8), cv2.IMREAD_COLOR)


def frames(spec, classes=CLASSES):
    source = spec.open(classes)
    return list(source.frames()), source.damaged


def test_waymo_segments_play_in_time_order_without_gaps(tmp_path, three):
    for spec in (
        WaymoSpec(root=tmp_path, segments=BOTH),
        WaymoSpec(root=tmp_path, segments=BOTH[::-1]),
        WaymoSpec(root=tmp_path, location="location_sf"),
    ):
        found, damaged = frames(spec)
        assert damaged == 0
        assert [frame.t_us for frame, _ in found] == [FRAME_US * at for at in range(7)]
        assert np.array_equal(found[0][0].image, picture(OLDER))
        assert np.array_equal(found[4][0].image, picture(YOUNGER))


def test_waymo_track_is_one_object_of_one_segment(tmp_path, three):
    found, _ = frames(WaymoSpec(root=tmp_path, segments=BOTH))
    for (_, truth), (_, later) in pairwise(found[:4]):
        one, other = (sorted(zip(of.tracks, of.classes, strict=True)) for of in (truth, later))
        assert one == other
    older, younger = (
        {track for _, truth in part for track in truth.tracks} for part in (found[:4], found[4:])
    )
    assert older == {0, 1, 2, 3} and younger == {4, 5, 6, 7}


def test_waymo_boxes_scale_with_the_picture(tmp_path, three):
    full, _ = frames(WaymoSpec(root=tmp_path, segments=(OLDER.name,), camera="SIDE_LEFT"))
    for side in (64, 48, 32):
        small, _ = frames(WaymoSpec(root=tmp_path, segments=(OLDER.name,), camera="SIDE_LEFT", max_side=side))
        for (large_frame, large), (frame, truth) in zip(full, small, strict=True):
            assert frame.image.shape[1] == side
            assert truth.boxes / side == pytest.approx(large.boxes / 96, abs=0.01)
            vehicle = truth.classes.tolist().index(0)
            x0, y0, x1, y1 = truth.boxes[vehicle].round().astype(int)
            inside = frame.image[y0 + 1 : y1 - 1, x0 + 2 : x1 - 2].reshape(-1, 3).mean(axis=0)
            assert inside == pytest.approx(np.array([170, 60, 40]), abs=25)
            assert large_frame.index == frame.index


def test_waymo_other_classes_are_left_out(tmp_path, three):
    found, _ = frames(WaymoSpec(root=tmp_path, segments=(OLDER.name,)), ("sign", "person", "background"))
    for frame, truth in found:
        assert sorted(truth.classes) == [0, 1]
        assert np.array_equal(frame.boxes, truth.boxes)


def test_waymo_number_classes_accepts_other_names():
    numbers = number_classes(("bicycle", "car", "background", "pedestrian"))
    assert numbers == {"cyclist": 0, "vehicle": 1, "pedestrian": 3}
    with pytest.raises(UserError, match="does not know 'truck'; its classes are vehicle, car, pedestrian"):
        number_classes(("car", "truck"))
    with pytest.raises(UserError, match="'vehicle' and 'car' are the same in the Waymo Open Dataset"):
        number_classes(("vehicle", "car"))


def test_waymo_damaged_frames_are_counted_and_logged_once(tmp_path, caplog):
    for segment in (OLDER, YOUNGER):
        file = waymo_sample.write_v1(tmp_path, segment)
        records = [waymo_sample.frame_record(segment, frame) for frame in range(segment.frames)]
        message = FrameMessage.FromString(records[1])
        message.images[0].image = b"no picture"
        broken = bytearray(waymo_sample.framed(records[2]))
        broken[-1] ^= 1
        whole = waymo_sample.framed(message.SerializeToString())
        file.write_bytes(waymo_sample.framed(records[0]) + whole + bytes(broken) + broken[:30])
    source = WaymoSpec(root=tmp_path, segments=BOTH).open(CLASSES)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert len(list(source.frames())) == 2
            assert source.damaged == 6
    folder = f"{tmp_path}/training"
    assert [record.getMessage() for record in caplog.records] == [
        f"{folder}/segment-{segment.name}_with_camera_labels.tfrecord: frame {segment.time(1)}: "
        "its image cannot be decoded; its frame is left out"
        for segment in (OLDER, YOUNGER)
    ]


@pytest.mark.parametrize("step", [0, -FRAME_US, 61_000_000, 2**62])
def test_waymo_time_that_does_not_follow_is_damaged(tmp_path, step):
    file = waymo_sample.write_v1(tmp_path, OLDER)
    records = [FrameMessage.FromString(waymo_sample.frame_record(OLDER, frame)) for frame in range(4)]
    records[1].timestamp_micros = OLDER.first_us + step
    file.write_bytes(b"".join(waymo_sample.framed(one.SerializeToString()) for one in records))
    found, damaged = frames(WaymoSpec(root=tmp_path, segments=(OLDER.name,)))
    assert [frame.t_us for frame, _ in found] == [0, 2 * FRAME_US, 3 * FRAME_US]
    assert damaged == 1


def test_waymo_segment_removed_after_open_is_skipped(tmp_path, three):
    source = WaymoSpec(root=tmp_path, segments=BOTH).open(CLASSES)
    three[1].unlink()
    assert [frame.t_us for frame, _ in source.frames()] == [0, FRAME_US, 2 * FRAME_US]
    assert source.damaged == 1


def test_waymo_location_skips_unusable_segments(tmp_path, write, caplog):
    for segment in (YOUNGER, OLDER):
        write(segment)
    write(Segment("4000_0", cameras=(WaymoCamera.FRONT_LEFT,)))
    broken = write(Segment("5000_0"))
    broken.write_bytes(broken.read_bytes()[:20])
    with caplog.at_level(logging.WARNING):
        found, damaged = frames(WaymoSpec(root=tmp_path, location="location_sf"))
    assert (len(found), damaged) == (7, 0)
    said = " ".join(record.getMessage() for record in caplog.records)
    assert "4000_0" in said and "has no images of camera FRONT" in said and str(broken) in said


def test_waymo_unknown_location_or_segment_is_user_error(tmp_path, three):
    with pytest.raises(
        UserError, match=r"no segment of location 'sf', .*; the locations are location_phx, l"
    ):
        WaymoSpec(root=tmp_path, location="sf").open(CLASSES)
    with pytest.raises(UserError, match=re.escape(f"{tmp_path}: has no segment 'none', named by the key")):
        WaymoSpec(root=tmp_path, segments=("none",)).open(CLASSES)
    with pytest.raises(
        UserError, match=r"no segment of location 'location_sf' can be used; the first: .*_LEFT"
    ):
        WaymoSpec(root=tmp_path, location="location_sf", camera="FRONT_LEFT").open(CLASSES)


def test_find_segments_prefers_labelled_and_version_2(tmp_path):
    labelled = waymo_sample.write_v1(tmp_path, OLDER)
    labelled.with_name(f"segment-{OLDER.name}.tfrecord").write_bytes(b"without labels")
    assert find_segments(tmp_path)[OLDER.name].images == labelled
    pictures = waymo_sample.write_v2(tmp_path, OLDER)
    assert find_segments(tmp_path)[OLDER.name].images == pictures
    assert len(find_segments(tmp_path)) == 1


def test_waymo_without_statistics_has_no_location(tmp_path):
    waymo_sample.write_v2(tmp_path, OLDER)
    (tmp_path / "training" / "stats" / f"{OLDER.name}.parquet").unlink()
    with pytest.raises(UserError, match="fetch the files of its folder 'stats'"):
        WaymoSpec(root=tmp_path, location="location_sf").open(CLASSES)
    assert len(frames(WaymoSpec(root=tmp_path, segments=(OLDER.name,)))[0]) == 4


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({}, "write either segments or location"),
        ({"segments": ["a"], "location": "b"}, "write either segments or location"),
        ({"segments": ["a", "a"]}, "a value stands there twice"),
        ({"segments": ["a"], "camera": "REAR"}, "'FRONT', 'FRONT_LEFT', 'FRONT_RIGHT'"),
    ],
)
def test_waymo_spec_needs_segments_or_location(tmp_path, keys, says):
    with pytest.raises(ValidationError, match=says):
        WaymoSpec(root=tmp_path, **keys)


def test_labelled_source_impossible_boxes_are_left_out():
    boxes = [(0, 0, 10, 10), (-50, -50, -10, -10), (np.nan, 0, 5, 5), (1e308, 0, np.inf, 5), (5, 5, 3, 3)]
    boxes += [(90, 60, 1e300, 1e300), (2, 2, 2.5, 9), (0, 0, 10, 10), (0, 0, 10, 10)]
    names = [*["vehicle"] * 7, "", "vehicle"]
    objects = tuple(LabelledObject(name, *box) for name, box in zip(names, boxes, strict=True))
    frame = LabelledFrame(0, objects, (96, 64), tracks=tuple("abcdefgha"))
    picture = np.zeros((64, 96, 3), np.uint8)
    source = LabelledSource(lambda: iter([ShownFrame(frame, 0, picture)]), 10.0, {"vehicle": 0}, 96)
    [(_, truth)] = source.frames()
    assert truth.tracks.tolist() == [0, 1]
    assert truth.boxes.tolist() == [[0, 0, 10, 10], [90, 60, 96, 64]]
    assert truth.boxes.dtype == np.float32


SAMPLE = Path(waymo_sample.__file__).with_name("sample")


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("location", ["location_sf", "location_phx"])
def test_waymo_sample_opens_in_both_versions(version, location):
    source = WaymoSpec(root=SAMPLE / version, location=location).open(("vehicle", "pedestrian"))
    assert [sorted(truth.classes) for _, truth in source.frames()] == [[0, 1]] * 3
    assert source.damaged == 0


def test_waymo_sample_is_what_its_script_draws(tmp_path):
    for segment in waymo_sample.sample_segments(2, 3, (96, 64)):
        drawn = waymo_sample.write_v1(tmp_path, segment)
        assert drawn.read_bytes() == (SAMPLE / "v1" / drawn.relative_to(tmp_path)).read_bytes()


@pytest.mark.parametrize(
    ("file", "names"),
    [
        ("imagenet_to_fleet.yaml", get_model_weights("resnext101_32x8d")["DEFAULT"].meta["categories"]),
        ("coco_to_fleet.yaml", coco_names()),
    ],
)
def test_waymo_class_maps_know_its_classes(file, names):
    found = class_of_each(CLASSES, tuple(names), shipped_path(f"golden_models/{file}"), "the golden model")
    assert set(found.tolist()) == {-1, *range(len(CLASSES))}


def test_waymo_sample_is_small():
    assert sum(file.stat().st_size for file in SAMPLE.rglob("*") if file.is_file()) < 100_000

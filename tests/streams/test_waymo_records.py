"""Tests of Waymo version 1: the intact parts of a damaged ``.tfrecord`` file are read."""

import io
import re
import struct
import tempfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from waymo_sample import Segment, frame_record, framed, write_v1

from ekya.core.errors import UserError
from ekya.streams.datasets.waymo.records import (
    FrameMessage,
    RecordsReader,
    masked_crc,
    parse_frame,
    read_records,
)
from ekya.streams.datasets.waymo.shots import LostShot, SegmentFiles, Shot, WaymoCamera

SEGMENT = Segment("1005081002024129653_5313_150_5333_150")


def of(file):
    return SegmentFiles(SEGMENT.name, 1, file)


def records_in(data):
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        return list(read_records(file))


def read(file, camera=WaymoCamera.FRONT):
    return list(RecordsReader(of(file)).read_shots(camera))


def whys(found):
    return [one.why for one in found if isinstance(one, LostShot)]


def test_masked_crc_is_that_of_tfrecords():
    # CRC-32C of "123456789" is the standard's check value, 0xE3069283.
    rotated = 0xE3069283 >> 15 | 0xE3069283 << 17
    assert masked_crc(b"123456789") == (rotated + 0xA282EAD8) % 2**32


def test_read_records_keeps_order():
    assert records_in(framed(b"one") + framed(b"") + framed(b"three")) == [b"one", b"", b"three"]
    assert records_in(b"") == []


def test_read_records_wrong_checksum_loses_one_record():
    bad = bytearray(framed(b"two"))
    bad[13] ^= 1
    found = records_in(framed(b"one") + bytes(bad) + framed(b"three"))
    assert found == [b"one", LostShot("record 1: its checksum is wrong"), b"three"]


def test_read_records_wrong_length_loses_the_rest():
    bad = bytearray(framed(b"two"))
    bad[0] ^= 1
    found = records_in(framed(b"one") + bytes(bad) + framed(b"three"))
    assert found == [b"one", LostShot("record 1 and all behind it: the checksum of its length is wrong")]


def test_read_records_length_beyond_file_is_lost():
    length = struct.pack("<Q", 2**63)
    found = records_in(framed(b"one") + length + struct.pack("<I", masked_crc(length)) + b"data")
    assert found == [b"one", LostShot("record 1 and all behind it: the file ends within the record")]


def test_read_records_huge_record_is_skipped(tmp_path):
    file = tmp_path / "sparse.tfrecord"
    size = 300 * 1024 * 1024
    length = struct.pack("<Q", size)
    with file.open("wb") as out:
        out.write(framed(b"one") + length + struct.pack("<I", masked_crc(length)))
        out.seek(size + 4, io.SEEK_CUR)
        out.write(framed(b"three"))
    with file.open("rb") as opened:
        found = list(read_records(opened))
    assert found == [b"one", LostShot(f"record 1: {size} bytes are too many for a frame"), b"three"]


@pytest.mark.parametrize("left", range(len(framed(b"two"))))
def test_read_records_cut_file_keeps_whole_records(left):
    found = records_in(framed(b"one") + framed(b"two")[:left])
    assert found[0] == b"one"
    assert len(found) == (1 if left == 0 else 2)
    assert all(re.match(r"record 1 and all behind it: the file ends within", why) for why in whys(found))


@given(st.binary(max_size=60))
def test_read_records_any_bytes_are_records_or_lost(data):
    for one in records_in(data):
        assert isinstance(one, bytes | LostShot)


@given(st.binary(max_size=60))
def test_parse_frame_any_bytes_is_frame_or_none(data):
    frame = parse_frame(data)
    if frame is not None:
        assert isinstance(frame.segment, str) and isinstance(frame.timestamp_us, int)
        assert isinstance(frame.image(WaymoCamera.FRONT), bytes)
        frame.labels(WaymoCamera.FRONT)


def test_parse_frame_reads_fields_by_number():
    # Encoded by hand like the data set: field number and wire type, length, content.
    context = b"\x0a\x03seg" + b"\x22\x09" + b"\x12\x03Day" + b"\x1a\x02SF"
    image = b"\x08\x01" + b"\x12\x04JPEG"
    numbers = {1: 10.0, 2: 20.0, 5: 4.0, 4: 2.0}
    box = b"".join(bytes([number << 3 | 1]) + struct.pack("<d", value) for number, value in numbers.items())
    label = b"\x0a" + bytes([len(box)]) + box + b"\x18\x04" + b"\x22\x02id"
    labels = b"\x08\x01" + b"\x12" + bytes([len(label)]) + label
    lasers_that_nobody_reads = b"\x2a\x03abc"
    frame = parse_frame(
        b"\x0a" + bytes([len(context)]) + context + b"\x10\x07" + b"\x22" + bytes([len(image)]) + image
        + lasers_that_nobody_reads + b"\x42" + bytes([len(labels)]) + labels
    )  # fmt: skip
    assert (frame.segment, frame.time_of_day, frame.location, frame.timestamp_us) == ("seg", "Day", "SF", 7)
    assert frame.image(WaymoCamera.FRONT) == b"JPEG" and frame.image(WaymoCamera.SIDE_LEFT) == b""
    drawn = frame.labels(WaymoCamera.FRONT)
    assert drawn.boxes.tolist() == [[8.0, 19.0, 12.0, 21.0]]
    assert (drawn.types.tolist(), drawn.objects) == ([4], ("id",))
    assert frame.labels(WaymoCamera.SIDE_LEFT) is None


def test_records_describe_reads_location_and_time(tmp_path):
    facts = RecordsReader(of(write_v1(tmp_path, SEGMENT))).read_facts()
    assert (facts.location, facts.time_of_day, facts.first_us) == ("location_sf", "Day", SEGMENT.first_us)


def test_records_shots_have_their_cameras_labels(tmp_path):
    found = read(write_v1(tmp_path, SEGMENT), WaymoCamera.SIDE_LEFT)
    for frame, shot in enumerate(found):
        assert isinstance(shot, Shot)
        assert shot.timestamp_us == SEGMENT.time(frame)
        assert shot.jpeg == SEGMENT.jpeg(WaymoCamera.SIDE_LEFT, frame)
        things = SEGMENT.things(WaymoCamera.SIDE_LEFT, frame)
        assert shot.labels.objects == tuple(thing.name for thing in things)
        assert shot.labels.boxes == pytest.approx(np.array([thing.box for thing in things]))


def changed(tmp_path, change):
    """Writes a file whose second frame is changed by ``change``, with correct checksums."""
    records = [frame_record(SEGMENT, frame) for frame in range(3)]
    message = FrameMessage.FromString(records[1])
    change(message)
    records[1] = message.SerializeToString()
    file = tmp_path / f"segment-{SEGMENT.name}.tfrecord"
    file.write_bytes(b"".join(map(framed, records)))
    return file


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda frame: frame.ClearField("images"), "record 1: has no image of camera FRONT"),
        (lambda frame: frame.ClearField("camera_labels"), "record 1: has no labels of camera FRONT"),
        (lambda frame: setattr(frame.context, "name", b"other"), "record 1: is of segment 'other'"),
    ],
)
def test_records_incomplete_frame_is_lost_alone(tmp_path, change, why):
    found = read(changed(tmp_path, change))
    assert [type(one) for one in found] == [Shot, LostShot, Shot]
    assert whys(found) == [why]


def test_records_other_record_is_lost_alone(tmp_path):
    file = tmp_path / "some.tfrecord"
    file.write_bytes(framed(b"\xff\xff") + framed(frame_record(SEGMENT, 0)))
    found = read(file)
    assert whys(found) == ["record 0: is no Frame message"]
    assert isinstance(found[1], Shot)
    assert RecordsReader(of(file)).read_facts().first_us == SEGMENT.first_us


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no frame can be read (it is empty); fetch the file again or leave it out"),
        (b"not a record at all", "no frame can be read (record 0 and all behind it"),
        (framed(frame_record(Segment("other"), 0)), "holds segment 'other' and not the one of its name"),
    ],
)
def test_records_file_of_other_segment_is_user_error(tmp_path, content, says):
    file = tmp_path / "some.tfrecord"
    file.write_bytes(content)
    with pytest.raises(UserError, match=re.escape(f"{file}: {says}")):
        RecordsReader(of(file)).read_facts()


def test_records_camera_without_labels_is_user_error(tmp_path):
    file = write_v1(tmp_path, SEGMENT)
    RecordsReader(of(file)).require_camera(WaymoCamera.FRONT)
    with pytest.raises(UserError, match="has no images of camera FRONT_LEFT; choose another"):
        RecordsReader(of(file)).require_camera(WaymoCamera.FRONT_LEFT)
    message = FrameMessage.FromString(frame_record(SEGMENT, 0))
    message.ClearField("camera_labels")
    file.write_bytes(framed(message.SerializeToString()))
    with pytest.raises(UserError, match=r"has no labels of camera FRONT; fetch .*_with_camera_labels"):
        RecordsReader(of(file)).require_camera(WaymoCamera.FRONT)

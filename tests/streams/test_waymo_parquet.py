"""Tests of Waymo version 2: rows are matched in any order, and broken ones are counted."""

import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from waymo_sample import FRAME_US, Segment, write_v2

from ekya.core.errors import UserError
from ekya.streams.datasets.waymo.parquet import ParquetReader
from ekya.streams.datasets.waymo.shots import LostShot, SegmentFiles, Shot, WaymoCamera

SEGMENT = Segment("1005081002024129653_5313_150_5333_150", frames=6)
TIME, CAMERA, IMAGE = "key.frame_timestamp_micros", "key.camera_name", "[CameraImageComponent].image"
LEFT = WaymoCamera.SIDE_LEFT


@pytest.fixture
def files(tmp_path):
    images = write_v2(tmp_path, SEGMENT)
    component = {name: images.parents[1] / name / images.name for name in ("camera_box", "stats")}
    return SegmentFiles(SEGMENT.name, 2, images, component["camera_box"], component["stats"])


def rewrite(file, change):
    """Rewrites the file with its table changed by ``change``."""
    pq.write_table(change(pq.read_table(file)), file, row_group_size=4)


def with_column(name, values):
    return lambda table: table.set_column(
        table.schema.get_field_index(name), name, pa.array(values(table[name].to_pylist()))
    )


def read(files, camera=LEFT):
    return list(ParquetReader(files).read_shots(camera))


def times(found):
    return [one.timestamp_us for one in found if isinstance(one, Shot)]


def whys(found):
    return [one.why for one in found if isinstance(one, LostShot)]


def test_parquet_shots_are_chronological_with_labels(files):
    rows = pq.read_table(files.images)[TIME].to_pylist()
    assert rows != sorted(rows)
    for frame, shot in enumerate(read(files)):
        assert shot.timestamp_us == SEGMENT.time(frame)
        assert shot.jpeg == SEGMENT.jpeg(LEFT, frame)
        things = sorted(SEGMENT.things(LEFT, frame), key=lambda thing: thing.name)
        assert shot.labels.objects == tuple(thing.name for thing in things)
        assert shot.labels.types.tolist() == [thing.kind for thing in things]
        assert shot.labels.boxes == pytest.approx(np.array([thing.box for thing in things]))
    assert frame == SEGMENT.frames - 1


def test_parquet_describe_reads_location_and_time(files):
    facts = ParquetReader(files).read_facts()
    assert (facts.location, facts.time_of_day) == ("location_sf", "Day")
    assert (facts.first_us, facts.frames) == (SEGMENT.first_us, SEGMENT.frames)
    unknown = ParquetReader(replace(files, stats=None)).read_facts()
    assert (unknown.location, unknown.first_us) == ("", SEGMENT.first_us)


def test_parquet_picture_without_boxes_has_no_labels(files):
    rewrite(files.boxes, lambda table: table.filter(pa.compute.field(TIME) != SEGMENT.time(2)))
    found = read(files)
    assert [len(shot.labels.objects) for shot in found] == [4, 4, 0, 4, 4, 4]


def test_parquet_frame_without_row_is_lost(files):
    gone = (pa.compute.field(TIME) == SEGMENT.time(2)) & (pa.compute.field(CAMERA) == LEFT.number)
    rewrite(files.images, lambda table: table.filter(~gone))
    found = read(files)
    assert [type(one) for one in found] == [Shot, Shot, LostShot, Shot, Shot, Shot]
    assert whys(found) == [f"frame {SEGMENT.time(2)}: has no image of camera SIDE_LEFT"]


@pytest.mark.parametrize("nothing", [None, b""])
def test_parquet_missing_image_is_lost(files, nothing):
    rewrite(files.images, with_column(IMAGE, lambda images: [nothing, *images[1:]]))
    both = [read(files, camera) for camera in (WaymoCamera.FRONT, LEFT)]
    assert sorted(len(whys(found)) for found in both) == [0, 1]
    assert sum(len(times(found)) for found in both) == 2 * SEGMENT.frames - 1


def test_parquet_rows_of_other_segments_are_ignored(files):
    other = with_column("key.segment_context_name", lambda names: ["other", *names[1:]])
    rewrite(files.images, other)
    assert (
        sum(len(times(read(files, camera))) for camera in (WaymoCamera.FRONT, LEFT)) == 2 * SEGMENT.frames - 1
    )


def test_parquet_implausible_time_is_counted(files):
    broken = with_column(TIME, lambda stamps: [2**62, -5, *stamps[2:]])
    rewrite(files.images, broken)
    found = [read(files, camera) for camera in (WaymoCamera.FRONT, LEFT)]
    strange = [one for camera in found for one in camera if isinstance(one, LostShot) and "time" in one.why]
    assert sum(one.frames for one in strange) == 2
    assert all(np.diff(times(camera)).max() <= 3 * FRAME_US for camera in found)


def test_parquet_damaged_row_group_loses_only_itself(files):
    group = pq.ParquetFile(files.images).metadata.row_group(1)
    column = next(at for at in range(group.num_columns) if group.column(at).path_in_schema == IMAGE)
    chunk = group.column(column)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data = bytearray(files.images.read_bytes())
    data[start : start + chunk.total_compressed_size] = bytes(chunk.total_compressed_size)
    files.images.write_bytes(bytes(data))
    both = [read(files, camera) for camera in (WaymoCamera.FRONT, LEFT)]
    lost = [why for found in both for why in whys(found)]
    assert len(lost) == 4
    assert all("row group 1 cannot be read" in why for why in lost)
    assert sum(len(times(found)) for found in both) == 2 * SEGMENT.frames - 4


def test_parquet_other_integer_types_are_read(files):
    def other_types(table):
        name, fields = "key.segment_context_name", list(table.schema)
        as_types = {
            name: pa.dictionary(pa.int32(), pa.string()),
            CAMERA: pa.int32(),
            IMAGE: pa.large_binary(),
        }
        return table.cast(pa.schema([pa.field(one.name, as_types.get(one.name, one.type)) for one in fields]))

    before = [(one.timestamp_us, one.jpeg) for one in read(files)]
    rewrite(files.images, other_types)
    assert [(one.timestamp_us, one.jpeg) for one in read(files)] == before


def test_parquet_missing_boxes_is_user_error(files):
    with pytest.raises(UserError, match=rf"camera_box/{SEGMENT.name}.parquet: there is no such file"):
        ParquetReader(replace(files, boxes=None)).require_camera(LEFT)


def test_parquet_camera_without_pictures_is_user_error(files):
    ParquetReader(files).require_camera(LEFT)
    with pytest.raises(UserError, match=re.escape(f"{files.images}: has no images of camera SIDE_RIGHT")):
        ParquetReader(files).require_camera(WaymoCamera.SIDE_RIGHT)


def test_parquet_missing_column_is_named(files):
    for file, column in ((files.images, IMAGE), (files.boxes, "[CameraBoxComponent].box.size.x")):
        before = file.read_bytes()
        rewrite(file, lambda table, column=column: table.drop_columns([column]))
        with pytest.raises(UserError, match=re.escape(f"{file}: has no column '{column}'")):
            ParquetReader(files).require_camera(LEFT)
        file.write_bytes(before)


def test_parquet_wrong_column_type_is_user_error(files):
    rewrite(files.boxes, with_column("[CameraBoxComponent].box.size.x", lambda rows: ["wide"] * len(rows)))
    with pytest.raises(UserError, match=re.escape(f"{files.boxes}: cannot be read as Parquet")):
        ParquetReader(files).require_camera(LEFT)


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.9, 0.99])
def test_parquet_cut_file_is_user_error(files, part):
    for file in (files.images, files.boxes):
        before = file.read_bytes()
        file.write_bytes(before[: int(part * len(before))])
        with pytest.raises(UserError, match=re.escape(f"{file}: cannot be read as Parquet")):
            ParquetReader(files).require_camera(LEFT)
        file.write_bytes(before)


def test_parquet_statistics_of_other_segment_are_refused(files):
    rewrite(files.stats, with_column("key.segment_context_name", lambda names: ["other"] * len(names)))
    with pytest.raises(UserError, match=re.escape(f"{files.stats}: has no rows of segment {SEGMENT.name}")):
        ParquetReader(files).read_facts()

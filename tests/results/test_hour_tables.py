"""Tests of predictions by hour, with clocks that are set by hand."""

import os
import shutil
import threading
from dataclasses import replace

import numpy as np
import pytest
from frame_rows import LEFT, seen
from hypothesis import given, settings
from hypothesis import strategies as st

from ekya.core.errors import UserError
from ekya.results.storage import hour_tables
from ekya.results.storage.hour_tables import (
    HourWriter,
    hours_of,
    newest_frame,
    newest_rows,
    next_rows,
    oldest_frame,
)
from ekya.results.storage.run_tables import read_predictions

TEN = 1_764_064_800.0
"""2025-11-25T10:00:00Z."""


class Clocks:
    """A wall clock and a steady one; ``set_back`` moves only the first."""

    def __init__(self, unix_s=TEN):
        self.unix, self.steady = unix_s, 500.0

    def unix_s(self):
        return self.unix

    def steady_s(self):
        return self.steady

    def pass_(self, seconds):
        self.unix += seconds
        self.steady += seconds


@pytest.fixture
def clocks():
    return Clocks()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "predictions" / "cam"


def writer_of(folder, clocks):
    return HourWriter(folder, clocks.unix_s, clocks.steady_s)


def row_of(frame):
    return seen(frame, [(LEFT, frame % 3, 0.5)] * (frame % 3))


def write(writer, frames, clocks, every_s=0.0):
    """Writes a part for each frame."""
    for frame in frames:
        writer.add_row(row_of(frame))
        writer.flush()
        clocks.pass_(every_s)


def frames_after(folder, frame):
    """Returns all frames that a reader finds after this one, in the order in which it finds them."""
    frames = []
    while (rows := next_rows(folder, frame)) is not None:
        frames += rows.frame.tolist()
        frame = frames[-1]
    return frames


def test_hours_rows_are_read_back_in_order_from_anywhere(folder, clocks):
    writer = writer_of(folder, clocks)
    assert (newest_frame(folder), next_rows(folder, -1)) == (None, None)
    write(writer, range(10), clocks, every_s=900)
    writer.close()
    assert hours_of(folder) == ["2025-11-25T10", "2025-11-25T11", "2025-11-25T12"]
    assert frames_after(folder, -1) == list(range(10))
    assert frames_after(folder, 4) == list(range(5, 10))
    assert frames_after(folder, 9) == []
    assert (oldest_frame(folder), newest_frame(folder)) == (0, 9)
    rows = next_rows(folder, 1)
    assert rows.frame[0] == 2
    assert np.diff(rows.offsets).tolist() == [frame % 3 for frame in rows.frame]
    assert len(rows.boxes) == len(rows.classes) == len(rows.confidence) == rows.offsets[-1]


def test_hours_that_are_over_are_one_file_each(folder, clocks, caplog):
    writer = writer_of(folder, clocks)
    write(writer, range(3), clocks, every_s=1)
    clocks.pass_(3600)
    write(writer, range(3, 5), clocks)
    writer.close()
    assert sorted(path.name for path in folder.iterdir()) == ["2025-11-25T10.parquet", "2025-11-25T11.parts"]
    assert read_predictions(folder / "2025-11-25T10.parquet").frame.tolist() == [0, 1, 2]
    assert caplog.text == ""
    assert frames_after(folder, 1) == [2, 3, 4]


def test_hour_has_few_parts_and_every_row_once(folder, clocks):
    writer = writer_of(folder, clocks)
    write(writer, range(130), clocks, every_s=1)
    parts = sorted(path.name for path in (folder / "2025-11-25T10.parts").iterdir())
    assert len(parts) == 2 + 10
    assert parts[0] == "000000000000-000000000059.parquet"
    assert frames_after(folder, -1) == list(range(130))
    assert frames_after(folder, 58) == list(range(59, 130))


def test_hour_never_goes_back_with_the_clock_and_still_ends(folder, clocks):
    writer = writer_of(folder, clocks)
    write(writer, range(2), clocks)
    clocks.unix -= 30 * 86400
    write(writer, range(2, 4), clocks)
    assert hours_of(folder) == ["2025-11-25T10"]
    again = writer_of(folder, clocks)
    write(again, range(4, 6), clocks)
    assert hours_of(folder) == ["2025-11-25T10"]
    clocks.pass_(7200)
    write(again, range(6, 8), clocks)
    assert hours_of(folder) == ["2025-11-25T10", "2025-11-25T11"]
    again.close()
    assert frames_after(folder, -1) == list(range(8))


def test_writer_goes_on_in_the_hour_and_merges_what_a_killed_one_left(folder, clocks):
    write(writer_of(folder, clocks), range(5), clocks)
    parts = folder / "2025-11-25T10.parts"
    (folder / ".2025-11-25T10.parquet.1-2.tmp").write_bytes(b"half")
    (parts / ".x.1-2.tmp").write_bytes(b"half")
    clocks.pass_(5 * 3600)
    again = writer_of(folder, clocks)
    assert again.next_frame() == 5
    write(again, range(5, 7), clocks)
    again.close()
    assert sorted(path.name for path in folder.iterdir()) == ["2025-11-25T10.parquet", "2025-11-25T15.parts"]
    assert frames_after(folder, -1) == list(range(7))
    assert writer_of(folder, clocks).next_frame() == 7


def test_next_frame_reads_the_newest_file_only(folder, clocks):
    writer = writer_of(folder, clocks)
    write(writer, range(6), clocks, every_s=1800)
    writer.close()
    for path in folder.glob("2025-11-25T10*"):
        for part in path.iterdir() if path.is_dir() else [path]:
            part.write_bytes(b"damaged")
    assert writer_of(folder, clocks).next_frame() == 6


def test_fold_that_was_cut_off_shows_no_row_twice(folder, clocks):
    writer = writer_of(folder, clocks)
    write(writer, range(59), clocks)
    parts = folder / "2025-11-25T10.parts"
    small = {path.name: path.read_bytes() for path in parts.iterdir()}
    write(writer, range(59, 62), clocks)
    for name, content in small.items():
        (parts / name).write_bytes(content)
    assert frames_after(folder, -1) == list(range(62))
    assert frames_after(folder, 30) == list(range(31, 62))
    clocks.pass_(3600)
    write(writer, range(62, 63), clocks)
    writer.close()
    assert frames_after(folder, -1) == list(range(63))


def test_reader_finds_the_row_groups_of_an_hour(folder, clocks, monkeypatch):
    monkeypatch.setattr(hour_tables, "_ROWS_A_GROUP", 4)
    writer = writer_of(folder, clocks)
    for frame in range(10):
        writer.add_row(row_of(frame))
    writer.flush()
    clocks.pass_(3600)
    writer.flush()
    writer.close()
    assert next_rows(folder, -1).frame.tolist() == [0, 1, 2, 3]
    assert next_rows(folder, 5).frame.tolist() == [6, 7]
    assert next_rows(folder, 7).frame.tolist() == [8, 9]
    assert [rows.frame.tolist() for rows in newest_rows(folder)] == [[8, 9], [4, 5, 6, 7], [0, 1, 2, 3]]


def test_reader_beside_the_writer_sees_every_row_once_through_folds_and_merges(folder, clocks, caplog):
    writer, done = writer_of(folder, clocks), threading.Event()

    def work():
        write(writer, range(240), clocks, every_s=45)
        writer.close()
        done.set()

    worker = threading.Thread(target=work)
    worker.start()
    read = []
    while not (done.is_set() and len(read) == 240):
        read += frames_after(folder, read[-1] if read else -1)
        assert len(read) <= 240
    worker.join()
    assert read == list(range(240))
    assert len(hours_of(folder)) == 3
    assert caplog.text == ""


def test_reader_goes_on_when_the_parts_of_an_hour_go_away_while_it_looks(folder, clocks, monkeypatch):
    writer = writer_of(folder, clocks)
    write(writer, range(4), clocks, every_s=1)
    listed = os.listdir

    def vanishing(path):
        if str(path).endswith(".parts"):
            shutil.rmtree(path)
        return listed(path)

    monkeypatch.setattr(os, "listdir", vanishing)
    assert frames_after(folder, -1) == []
    writer.close()


def test_reader_goes_on_when_hours_are_removed(folder, clocks):
    writer = writer_of(folder, clocks)
    write(writer, range(8), clocks, every_s=1800)
    writer.close()
    for path in sorted(folder.iterdir())[:2]:
        if path.is_dir():
            for part in path.iterdir():
                part.unlink()
            path.rmdir()
        else:
            path.unlink()
    assert oldest_frame(folder) == 4
    assert frames_after(folder, 1) == [4, 5, 6, 7]


@pytest.mark.parametrize("damage", ["cut off", "a sector of zeros"])
def test_damaged_part_is_set_aside_and_its_rows_alone_are_lost(folder, clocks, caplog, damage):
    write(writer_of(folder, clocks), range(4), clocks)
    part = folder / "2025-11-25T10.parts" / "000000000001-000000000001.parquet"
    whole = part.read_bytes()
    part.write_bytes(whole[:16] if damage == "cut off" else whole[:8] + bytes(512) + whole[520:])
    assert frames_after(folder, -1) == [0, 2, 3]
    assert part.with_suffix(".damaged").exists()
    assert "is damaged and is set aside" in caplog.text


def test_full_disk_loses_nothing_that_fits_in_memory(folder, clocks, monkeypatch, caplog):
    monkeypatch.setattr(hour_tables, "_MOST_WAITING", 3)
    writer = writer_of(folder, clocks)
    write(writer, range(2), clocks)

    def full(*_args):
        raise UserError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(hour_tables, "write_table", full)
        write(writer, range(2, 4), clocks)
        assert caplog.text.count("the disk is full") == 1
    write(writer, [4], clocks)
    assert frames_after(folder, -1) == [0, 1, 2, 3, 4]
    with monkeypatch.context() as patch:
        patch.setattr(hour_tables, "write_table", full)
        write(writer, range(5, 12), clocks)
    write(writer, [12], clocks)
    assert frames_after(folder, 4) == [9, 10, 11, 12]


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(-5000, 5000), st.booleans(), st.booleans()), max_size=12
    )
)
def test_reader_sees_every_row_once_whatever_the_clock_does(tmp_path_factory, steps):
    folder, clocks = tmp_path_factory.mktemp("hours") / "cam", Clocks()
    writer, wrote, read = writer_of(folder, clocks), 0, []
    for rows, jump_s, restarts, reads in steps:
        for frame in range(wrote, wrote + rows):
            writer.add_row(row_of(frame))
        wrote += rows
        writer.flush()
        clocks.unix += jump_s
        clocks.steady += abs(jump_s)
        if restarts:
            writer.close()
            writer = writer_of(folder, clocks)
            assert writer.next_frame() == wrote
        if reads:
            read += frames_after(folder, read[-1] if read else -1)
    writer.close()
    read += frames_after(folder, read[-1] if read else -1)
    assert read == list(range(wrote))
    assert hours_of(folder) == sorted(hours_of(folder))


def test_columns_after_keep_objects_with_their_frames(folder, clocks):
    writer = writer_of(folder, clocks)
    rows = [replace(row_of(frame), boxes=np.full((frame % 3, 4), frame, np.float32)) for frame in range(9)]
    for row in rows:
        writer.add_row(row)
    writer.flush()
    later = next_rows(folder, 3)
    for place, frame in enumerate(range(4, 9)):
        objects = slice(later.offsets[place], later.offsets[place + 1])
        np.testing.assert_array_equal(later.boxes[objects], rows[frame].boxes)
        np.testing.assert_array_equal(later.classes[objects], rows[frame].classes)
    assert len(later.rows_after(8).frame) == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_writer_in_a_folder_without_permission_says_so(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="no permission"):
        HourWriter(tmp_path / "cam")

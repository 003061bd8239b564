"""Files of JSON lines: what was appended is read back, wherever a crash or a full disk cut it off."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekya.core.errors import FullDiskError, UserError
from ekya.system import json_lines
from ekya.system.json_lines import JsonLines, read_json_lines

RECORDS = [{"n": 0}, {"n": 1, "text": "Fußgänger\n\u2028\x85"}, {"n": 2, "inner": [1, None, {"a": "\r"}]}]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "lines.jsonl"


def append(path, *records, **options):
    lines = JsonLines(path, **options)
    lines.append_records(*records)
    lines.close()


def read(path, from_byte=0):
    records = []
    read_json_lines(path, records.append, from_byte)
    return records


@pytest.mark.parametrize("ascii_only", [True, False])
def test_objects_are_read_back_in_order(path, ascii_only):
    append(path, *RECORDS[:2], ascii_only=ascii_only)
    append(path, RECORDS[2], ascii_only=ascii_only)
    assert read(path) == RECORDS
    assert path.read_bytes().isascii() == ascii_only
    first = path.read_bytes().index(b"\n") + 1
    assert read(path, first) == RECORDS[1:]


def test_text_that_utf_8_cannot_hold_is_written(path):
    append(path, {"name": os.fsdecode(b"\xff")})
    assert read(path) == [{"name": os.fsdecode(b"\xff")}]


@given(part=st.floats(0, 1), block=st.integers(1, 80))
def test_wherever_a_file_is_cut_whole_lines_are_kept(tmp_path_factory, part, block):
    path = tmp_path_factory.getbasetemp() / "cut.jsonl"
    path.unlink(missing_ok=True)
    append(path, *RECORDS)
    whole = path.read_bytes()
    cut = round(part * len(whole))
    path.write_bytes(whole[:cut])
    ends = [at + 1 for at, byte in enumerate(whole) if byte == ord("\n")]
    kept = sum(end <= cut for end in ends)
    # A line is complete even without its line break.
    assert read(path) == RECORDS[: sum(end - 1 <= cut for end in ends)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_lines, "_BLOCK_BYTES", block)
        append(path, {"n": 3})
    assert path.read_bytes().startswith(whole[: [0, *ends][kept]])
    assert read(path) == [*RECORDS[:kept], {"n": 3}]


@pytest.mark.parametrize("bad", [b'{"n": 0, "te', b"", b"now", b"7", b'"\xff"', b'{"n": "bad"}', b"{}"])
def test_a_damaged_line_before_the_last_is_told_with_file_and_line(path, bad):
    append(path, *RECORDS)
    first, second, third = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + second + bad + b"\n" + third)
    numbers = []
    for from_byte in (0, len(first)):
        with pytest.raises(UserError, match=r"lines\.jsonl: line 3 is damaged"):
            read_json_lines(path, lambda record: numbers.append(int(record["n"])), from_byte)
    assert numbers == [0, 1, 1]


def test_a_damaged_last_line_is_passed_over_only_where_it_was_cut_off(path):
    append(path, RECORDS[0])
    with path.open("ab") as file:
        file.write(b'{"n": ')
    assert read(path) == RECORDS[:1]
    with path.open("ab") as file:
        file.write(b"\n")
    with pytest.raises(UserError, match="line 2 is damaged"):
        read(path)
    path.write_bytes(b'{"n": 0}\n{"n"\r: }\n{"n": 1}\n')
    with pytest.raises(UserError, match="line 2 is damaged"):
        read(path)


def test_a_file_that_is_not_there_cannot_be_read(path):
    with pytest.raises(FileNotFoundError):
        read(path)
    append(path)
    assert read(path) == []
    with pytest.raises(UserError, match="the folder does not exist"):
        JsonLines(path.parent / "no" / "lines.jsonl")


def test_objects_are_on_disk_before_anyone_can_act_on_them(path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda _file: synced.append(path.read_bytes().count(b"\n")))
    lines = JsonLines(path)
    lines.append_records(RECORDS[0], durable=False)
    assert (synced, read(path)) == ([], RECORDS[:1])
    lines.append_records(RECORDS[1])
    assert synced == [2]
    lines.append_records(RECORDS[2], durable=False)
    lines.sync_file()
    assert synced == [2, 3]
    assert lines.size_bytes == path.stat().st_size
    lines.close()


def test_an_object_that_a_full_disk_refused_leaves_no_part_of_it(path, monkeypatch):
    append(path, RECORDS[0])
    lines = JsonLines(path)
    with monkeypatch.context() as patch:

        def refuse(_file):
            raise OSError(28, os.strerror(28))

        patch.setattr(os, "fsync", refuse)
        with pytest.raises(FullDiskError, match=r"lines\.jsonl: the disk is full"):
            lines.append_records(RECORDS[1])
    assert read(path) == RECORDS[:1]
    lines.append_records(RECORDS[2])
    lines.close()
    assert read(path) == [RECORDS[0], RECORDS[2]]
    assert [json.loads(line) for line in path.read_text().splitlines()] == [RECORDS[0], RECORDS[2]]

from pathlib import Path

import pytest

from ekya.core.errors import UserError
from ekya.results.storage import wall_clock
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.wall_clock import WallClock, record_start

S = 1_000_000


@pytest.fixture
def folder(tmp_path):
    return RunFolder.create_numbered(tmp_path, "run")


def test_wall_clock_leaves_out_the_time_between_runs(folder):
    record_start(folder, 0, 1000 * S)
    record_start(folder, 60 * S, 5000 * S)
    clock = WallClock.from_folder(folder)
    assert clock.unix_us(0) == 1000 * S
    assert clock.unix_us(59 * S) == 1059 * S
    assert clock.unix_us(60 * S) == 5000 * S
    assert clock.unix_us(61 * S) == 5001 * S
    assert folder.starts.read_text().count("\n") == 2


def test_wall_clock_of_a_clock_that_was_set_back(folder):
    record_start(folder, 0, 1000 * S)
    record_start(folder, 10 * S, 500 * S)
    assert [WallClock.from_folder(folder).unix_us(t * S) for t in (9, 10)] == [1009 * S, 500 * S]


def test_wall_clock_of_a_start_before_the_last_known_time(folder):
    record_start(folder, 0, 1000 * S)
    record_start(folder, 50 * S, 2000 * S)
    record_start(folder, 40 * S, 3000 * S)
    assert [WallClock.from_folder(folder).unix_us(t * S) for t in (39, 40, 55)] == [
        1039 * S,
        3000 * S,
        3015 * S,
    ]


def test_wall_clock_forgets_the_oldest_of_very_many_starts(folder, monkeypatch):
    monkeypatch.setattr(wall_clock, "_MOST_STARTS", 3)
    for start in range(5):
        record_start(folder, start * S, (100 + start) * S)
    clock = WallClock.from_folder(folder)
    assert [run_us for run_us, _ in clock.starts] == [2 * S, 3 * S, 4 * S]
    assert clock.unix_us(0) == 100 * S


def test_wall_clock_leaves_out_damaged_lines(folder, caplog):
    record_start(folder, 0, 1000 * S)
    with folder.starts.open("ab") as file:
        file.write(b'{"run_us": 1, "unix\n{}\n3\n{"run_us": "now", "unix_us": null}\n\xff\xfe\n')
    record_start(folder, 60 * S, 5000 * S)
    for _ in range(3):
        clock = WallClock.from_folder(folder)
        assert [clock.unix_us(t * S) for t in (59, 60)] == [1059 * S, 5000 * S]
    assert [caplog.text.count(f"line {number} is damaged") for number in range(1, 8)] == [0, 1, 1, 1, 1, 1, 0]


def test_wall_clock_that_has_not_changed_is_not_read_again(folder, monkeypatch):
    for start in range(3):
        record_start(folder, start * S, 1000 * S)
    read, files = Path.read_bytes, []
    monkeypatch.setattr(Path, "read_bytes", lambda path: files.append(path) or read(path))
    assert {WallClock.from_folder(folder).starts[-1] for _ in range(5)} == {(2 * S, 1000 * S)}
    assert files == [folder.starts]
    record_start(folder, 3 * S, 1000 * S)
    assert {WallClock.from_folder(folder).starts[-1] for _ in range(5)} == {(3 * S, 1000 * S)}


@pytest.mark.parametrize(
    ("text", "words"), [(None, "does not exist"), ("", "has no start"), ("{}\nno\n3\n", "has no start")]
)
def test_wall_clock_without_starts_says_so(folder, text, words):
    if text is not None:
        folder.starts.write_text(text)
    with pytest.raises(UserError, match=words):
        WallClock.from_folder(folder)

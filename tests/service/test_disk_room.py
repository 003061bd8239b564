"""A service's loop is held while its disk is full."""

import pytest

from ekya.service.retention import RESERVE_BYTES, DiskRoom


class Disk:
    """A disk and a clock; counts how often room was to be made."""

    def __init__(self, tmp_path):
        self.free, self.now_s, self.asked = 1 << 30, 0.0, 0
        self.room = DiskRoom(tmp_path, self.ask, self.look, lambda: self.now_s)

    def look(self, _folder):
        return self.free

    def ask(self):
        self.asked += 1

    def after(self, seconds):
        self.now_s += seconds
        return self.room()


@pytest.fixture
def disk(tmp_path):
    return Disk(tmp_path)


def test_disk_that_fills_at_once_is_noticed_by_the_next_step(disk):
    assert disk.after(1)
    disk.free = 0
    assert not disk.after(0)


def test_full_disk_holds_the_loop_until_there_is_room_and_is_said_once(disk, caplog):
    assert disk.after(1)
    disk.free = RESERVE_BYTES - 1
    assert [disk.after(1) for _ in range(3)] == [False] * 3
    assert caplog.text.count("the disk is full") == 1
    disk.free = RESERVE_BYTES
    assert disk.after(1)
    assert "has room again" in caplog.text


def test_room_is_to_be_made_once_a_minute_while_the_disk_is_full(disk):
    assert disk.after(1)
    disk.free = 0
    for _ in range(130):
        disk.after(1)
    assert disk.asked == 3

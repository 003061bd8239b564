"""Tests of dividing the cost of a call for several streams by their analysed pictures."""

import pytest

from ekya.gpu.backends.backend import Measured
from ekya.runtime.shares.job_share import SharedUse


class Handle:
    """Handle that reports a given use once."""

    def __init__(self):
        self.used_us = self.wall_us = 0

    def measured(self):
        measured = Measured(self.used_us, self.wall_us)
        self.used_us = self.wall_us = 0
        return measured


@pytest.fixture
def handle():
    return Handle()


@pytest.fixture
def use(handle):
    made = SharedUse(handle)
    made.add_owner("a")
    made.add_owner("b")
    return made


def pass_time(handle, wall_us, used_us):
    handle.wall_us += wall_us
    handle.used_us += used_us


def test_use_of_a_single_owner_is_charged_to_it(handle):
    use = SharedUse(handle)
    pass_time(handle, 500, 400)
    use.add_owner("a")
    use.count_pictures("a", 6)
    pass_time(handle, 1000, 300)
    assert use.measure_owner("a") == Measured(700, 1000), "what was used before it came is nobody else's"
    pass_time(handle, 1000, 0)
    assert use.measure_owner("a") == Measured(0, 1000)


def test_use_is_divided_by_pictures(handle, use):
    use.count_pictures("a", 9)
    use.count_pictures("b", 3)
    pass_time(handle, 1000, 400)
    assert use.measure_owner("a") == Measured(300, 1000)
    use.count_pictures("b", 5)
    pass_time(handle, 1000, 200)
    assert use.measure_owner("b") == Measured(300, 2000)
    assert use.measure_owner("a") == Measured(0, 1000)


def test_use_is_divided_by_parts_of_pictures(handle, use):
    """Boxes that are followed into a frame cost less than a picture."""
    use.count_pictures("a", 0.25)
    use.count_pictures("b", 1)
    pass_time(handle, 1000, 500)
    assert [use.measure_owner(owner).used_us for owner in "ab"] == [100, 400]


def test_use_measured_late_is_charged_to_the_next_pictures(handle, use):
    """Use without pictures since the last report is charged to the next stream that counts some."""
    use.count_pictures("a", 4)
    assert use.measure_owner("a").used_us == 0
    pass_time(handle, 1000, 80)
    assert use.measure_owner("a").used_us == 0
    use.count_pictures("b", 4)
    assert use.measure_owner("b").used_us == 80


def test_owner_is_charged_only_between_enter_and_leave(handle, use):
    use.count_pictures("a", 5)
    use.remove_owner("a")
    use.count_pictures("a", 5)
    use.count_pictures("b", 5)
    pass_time(handle, 1000, 100)
    use.add_owner("c")
    use.count_pictures("c", 5)
    pass_time(handle, 500, 60)
    assert use.measure_owner("c") == Measured(60, 500)
    assert use.measure_owner("b") == Measured(100, 1500)

import pytest
from fake_gpu import FakeDriver

from ekya.gpu.green.levels import LevelPool
from ekya.gpu.green.sm_driver import SmDriverError
from ekya.gpu.green.sm_layout import SmLayout


def test_the_device_is_split_once_and_levels_are_made_once():
    driver = FakeDriver()
    pool = LevelPool(driver)
    assert pool.layout == SmLayout(8, 16, 4)
    first = pool.level(0, 4)
    assert pool.level(0, 4) == first
    pool.level(4, 8)
    assert driver.calls.count("split") == 1
    assert driver.calls.count("make_context") == 2
    assert driver.groups_on(first.stream) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("sms", "step", "groups", "rest"), [(108, 2, 54, 0), (108, 4, 27, 0), (142, 4, 35, 2)]
)
def test_steps_are_the_drivers(sms, step, groups, rest):
    assert LevelPool(FakeDriver(sms, step)).layout == SmLayout(step, groups, rest)


def test_what_is_left_over_goes_with_the_last_group():
    pool = LevelPool(FakeDriver())
    assert pool.level(12, 4).sms == 36
    assert pool.level(0, 16).sms == 132
    assert pool.level(0, 12).sms == 96


def test_where_the_driver_does_not_join_what_is_left_over_the_level_says_so():
    pool = LevelPool(FakeDriver(joins_rest=False))
    assert pool.level(12, 4).sms == 32


def test_a_level_says_what_was_granted_and_not_what_was_asked():
    pool = LevelPool(FakeDriver(granted=lambda sms: sms - 2))
    assert pool.level(0, 4).sms == 30


def test_jobs_have_streams_of_their_own_on_one_context():
    driver = FakeDriver()
    pool = LevelPool(driver)
    lanes = pool.take_lane(), pool.take_lane()
    one, other = (pool.level(0, 4, lane) for lane in lanes)
    assert one.stream != other.stream
    assert driver.calls.count("make_context") == 1
    pool.give_lane_back(lanes[0])
    assert pool.take_lane() == lanes[0]


@pytest.mark.parametrize("name", ["make_context", "context_sms", "make_stream", "is_on"])
def test_a_call_that_fails_leaves_nothing_behind_and_can_be_tried_again(name):
    driver = FakeDriver()
    pool = LevelPool(driver)
    pool.level(0, 1)
    driver.fails.add(name)
    with pytest.raises(SmDriverError, match=name):
        pool.level(2, 4)
    assert len(driver.streams) == 1
    driver.fails.clear()
    assert pool.level(2, 4).sms == 32
    pool.close()
    assert driver.streams == driver.contexts == {}


@pytest.mark.parametrize("name", ["whole", "split"])
def test_a_gpu_that_cannot_be_split_is_said_at_once(name):
    driver = FakeDriver()
    driver.fails.add(name)
    with pytest.raises(SmDriverError, match=name):
        LevelPool(driver)
    with pytest.raises(SmDriverError, match="no groups"):
        LevelPool(FakeDriver(sms=4))


def test_a_stream_of_another_context_is_not_used(monkeypatch):
    driver = FakeDriver()
    monkeypatch.setattr(driver, "is_on", lambda stream, context: False)
    with pytest.raises(SmDriverError, match="outside"):
        LevelPool(driver).level(0, 1)
    assert driver.streams == {}


def test_the_end_waits_for_work_and_destroys_streams_first():
    driver = FakeDriver()
    pool = LevelPool(driver)
    streams = {pool.level(0, 4).stream, pool.level(4, 4).stream, pool.level(4, 4, 1).stream}
    pool.close()
    assert driver.synchronised == streams
    assert driver.closed
    assert driver.calls.index("destroy_context") > driver.calls.index("destroy_stream")


@pytest.mark.parametrize("span", [(-1, 2), (0, 0), (0, 17), (16, 1)])
def test_a_span_that_is_not_there_is_refused(span):
    with pytest.raises(ValueError, match="no such span"):
        LevelPool(FakeDriver()).level(*span)

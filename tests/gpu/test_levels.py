import pytest
from fake_gpu import FakeDriver

from ekya.gpu.green.levels import LevelPool
from ekya.gpu.green.sm_driver import SmDriverError, SmLayout


def test_levels_are_made_once_on_one_split():
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
def test_levels_use_the_step_of_the_driver(sms, step, groups, rest):
    assert LevelPool(FakeDriver(sms, step)).layout == SmLayout(step, groups, rest)


def test_levels_remainder_joins_the_last_group():
    pool = LevelPool(FakeDriver())
    assert pool.level(12, 4).sms == 36
    assert pool.level(0, 16).sms == 132
    assert pool.level(0, 12).sms == 96


def test_levels_without_remainder_report_fewer_sms():
    pool = LevelPool(FakeDriver(joins_rest=False))
    assert pool.level(12, 4).sms == 32


def test_levels_report_granted_not_requested_sms():
    pool = LevelPool(FakeDriver(granted=lambda sms: sms - 2))
    assert pool.level(0, 4).sms == 30


def test_levels_jobs_have_own_streams_on_one_context():
    driver = FakeDriver()
    pool = LevelPool(driver)
    lanes = pool.take_lane(), pool.take_lane()
    one, other = (pool.level(0, 4, lane) for lane in lanes)
    assert one.stream != other.stream
    assert driver.calls.count("make_context") == 1
    pool.give_lane_back(lanes[0])
    assert pool.take_lane() == lanes[0]


@pytest.mark.parametrize("name", ["make_context", "context_sms", "make_stream", "is_on"])
def test_levels_failed_call_cleans_up_and_can_be_retried(name):
    driver = FakeDriver()
    pool = LevelPool(driver)
    pool.level(0, 1)
    driver.fails.add(name)
    with pytest.raises(SmDriverError, match=name):
        pool.level(2, 4)
    assert len(driver.streams) == 1
    driver.fails.clear()
    assert pool.level(2, 4).sms == 32
    assert len(driver.streams) == len(driver.contexts) == 2


@pytest.mark.parametrize("name", ["whole", "split"])
def test_levels_gpu_that_cannot_be_split_raises(name):
    driver = FakeDriver()
    driver.fails.add(name)
    with pytest.raises(SmDriverError, match=name):
        LevelPool(driver)
    with pytest.raises(SmDriverError, match="no groups"):
        LevelPool(FakeDriver(sms=4))


def test_levels_stream_of_another_context_is_not_used(monkeypatch):
    driver = FakeDriver()
    monkeypatch.setattr(driver, "is_on", lambda stream, context: False)
    with pytest.raises(SmDriverError, match="outside"):
        LevelPool(driver).level(0, 1)
    assert driver.streams == {}


@pytest.mark.parametrize("span", [(-1, 2), (0, 0), (0, 17), (16, 1)])
def test_levels_unknown_span_raises(span):
    with pytest.raises(ValueError, match="no such span"):
        LevelPool(FakeDriver()).level(*span)

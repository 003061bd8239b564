"""The executor of one of several servers, around one that does what a test says."""

import pytest

from ekya.control.protocols import Batch
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.configs import RetrainConfig
from ekya.core.elsewhere import Elsewhere
from ekya.core.ids import JobId, StreamId
from ekya.fleet.run.lending import LendingExecutor, Lent

S = 1_000_000
CAM, JOB = StreamId("cam"), JobId(3)
START = cmd.StartRetraining(CAM, JOB, 1, RetrainConfig(4, 16, 0, 1, 1.0), 0, 0.9, 5.0, Elsewhere(40 * S))
STOP = cmd.StopRetraining(CAM, JOB)


class Inner:
    """Time passes as it is asked to; weights that are started elsewhere are here at once."""

    def __init__(self):
        self.now_us, self.told, self.executed = 0, [], []

    def wait(self, until_us):
        self.now_us = max(self.now_us, until_us)
        told, self.told = tuple(self.told), []
        return Batch(self.now_us, told)

    def execute(self, commands):
        self.executed += commands
        self.told += [
            ev.RetrainFinished(self.now_us, command.stream, command.job, 0.0)
            for command in commands
            if isinstance(command, cmd.StartRetraining)
        ]


@pytest.fixture
def given_up():
    return []


@pytest.fixture
def server(given_up):
    inner = Inner()
    return LendingExecutor(inner, lambda stream, now_us: given_up.append((stream, now_us))), inner


def test_shares_of_guests_are_told_when_they_come_and_when_they_go(server) -> None:
    executor, _ = server
    executor.lend(Lent(300, 10 * S, 30 * S))
    executor.lend(Lent(200, 20 * S, 30 * S))
    assert executor.lent_milli == 500
    assert [executor.wait(60 * S) for _ in range(4)] == [
        Batch(10 * S, (ev.CapacityLent(10 * S, 300),)),
        Batch(20 * S, (ev.CapacityLent(20 * S, 500),)),
        Batch(30 * S, (ev.CapacityLent(30 * S, 0),)),
        Batch(60 * S, ()),
    ]
    assert executor.lent_milli == 0


def test_a_guest_that_leaves_early_gives_its_share_back_at_once(server) -> None:
    executor, _ = server
    lent = Lent(300, 0, 30 * S)
    executor.lend(lent)
    assert executor.wait(10 * S) == Batch(0, (ev.CapacityLent(0, 300),))
    executor.wait(10 * S)
    lent.to_us = 10 * S
    assert executor.wait(60 * S).events == (ev.CapacityLent(10 * S, 0),)


def test_a_retraining_elsewhere_begins_here_when_its_weights_are_back(server, given_up) -> None:
    executor, inner = server
    executor.expect(CAM, 40 * S)
    executor.execute([START])
    assert inner.executed == []
    assert executor.wait(60 * S) == Batch(40 * S, (ev.RetrainFinished(40 * S, CAM, JOB, 0.0),))
    assert [command.elsewhere for command in inner.executed] == [Elsewhere(40 * S)]
    assert given_up == [(CAM, 40 * S)]


def test_it_may_come_later_or_never(server) -> None:
    executor, inner = server
    executor.expect(CAM, 40 * S)
    executor.execute([START])
    executor.wait(30 * S)
    executor.postpone(CAM, 50 * S)
    assert executor.wait(45 * S).events == ()
    executor.fail(CAM, "its server died", 46 * S)
    assert executor.wait(60 * S) == Batch(46 * S, (ev.RetrainFailed(46 * S, CAM, JOB, "its server died"),))
    assert inner.executed == []


def test_who_is_stopped_is_waited_for_no_more(server, given_up) -> None:
    executor, inner = server
    executor.expect(CAM, 40 * S)
    executor.execute([START])
    executor.wait(30 * S)
    executor.execute([STOP])
    assert given_up == [(CAM, 30 * S)]
    assert (executor.wait(60 * S).events, inner.executed) == ((), [])


def test_what_is_trained_here_is_nobody_elses_matter(server) -> None:
    executor, inner = server
    executor.execute([START, STOP])
    assert inner.executed == [START, STOP]


def test_a_loop_can_be_asked_to_plan_again(server) -> None:
    executor, _ = server
    executor.lend(Lent(300, 0, 30 * S))
    executor.wait(0)
    executor.wait(10 * S)
    executor.ask_again()
    assert executor.wait(60 * S) == Batch(10 * S, (ev.CapacityLent(10 * S, 300),))


def test_nobody_goes_past_what_happens_to_the_fleet(server) -> None:
    executor, _ = server
    executor.not_beyond(25 * S)
    assert [executor.wait(60 * S).now_us for _ in range(2)] == [25 * S, 60 * S]

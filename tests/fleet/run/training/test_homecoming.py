"""Checkpoints come home one at a time; over a slow link older ones are skipped, except the best."""

import itertools
import threading

import pytest
from waiting import HANG_GUARD_S, wait_until

from ekya.fleet.policy.places import SiteName
from ekya.fleet.run.calls import CallError
from ekya.fleet.run.training.homecoming import ALWAYS, Homecoming, RemoteEpochCheckpoint


class Link:
    """Transfers a checkpoint immediately, or when the test releases it if ``slow``."""

    def __init__(self, slow=False, lost=()):
        self.slow, self.lost, self.sent = slow, set(lost), []
        self.lets, self.asked = threading.Semaphore(0), threading.Semaphore(0)

    def there(self, epochs, accuracy):
        def fetch():
            self.asked.release()
            if self.slow:
                assert self.lets.acquire(timeout=HANG_GUARD_S)
            if epochs in self.lost:
                raise CallError("the node is gone")
            self.sent.append(epochs)
            return bytes([epochs])

        return RemoteEpochCheckpoint(SiteName("east"), epochs, accuracy, fetch)


@pytest.fixture
def home():
    arrived = []
    coming = Homecoming(lambda there, count: arrived.append((there.epochs, count)))
    return coming, arrived


def test_all_come_where_the_link_takes_them_and_the_last_of_equals_is_best(home) -> None:
    coming, arrived = home
    link = Link()
    for epochs, accuracy in enumerate((0.5, 0.7, 0.7, 0.6), 1):
        coming.add_checkpoint(link.there(epochs, accuracy))
        coming.wait_home()
    assert (coming.newest.epochs, coming.best.epochs, coming.best.data) == (4, 3, b"\3")
    assert arrived == [(1, 1), (2, 1), (3, 1), (4, 1)]


def test_a_slow_link_leaves_some_behind_and_holds_nobody_up(home) -> None:
    coming, _ = home
    link = Link(slow=True)
    coming.add_checkpoint(link.there(1, 0.5))
    assert link.asked.acquire(timeout=HANG_GUARD_S)
    for epochs, accuracy in ((2, 0.9), (3, 0.6), (4, 0.7)):
        coming.add_checkpoint(link.there(epochs, accuracy))
    assert (coming.newest, coming.best) == (None, None)
    for _ in range(3):
        link.lets.release()
    coming.wait_home()
    assert link.sent == [1, 2, 4]
    assert (coming.newest.epochs, coming.best.epochs) == (4, 2)


def test_one_that_is_lost_is_nobody_elses_matter(home) -> None:
    coming, arrived = home
    link = Link(lost=[2, 3])
    for epochs, accuracy in ((1, 0.5), (2, 0.6), (3, 0.9)):
        coming.add_checkpoint(link.there(epochs, accuracy))
        coming.wait_home()
    assert (coming.newest.epochs, coming.best.epochs, arrived) == (1, 1, [(1, 1)])
    # The epoch is trained again, and its new result counts.
    coming.add_checkpoint(Link().there(2, 0.4))
    coming.wait_home()
    assert (coming.newest.epochs, coming.best.epochs) == (2, 1)


def test_nothing_comes_of_nothing(home) -> None:
    coming, arrived = home
    coming.wait_home()
    assert (coming.newest, coming.best, arrived) == (None, None, [])


@pytest.fixture
def dear():
    """Rests ten times as long as a transfer took; each reading of its clock is ``HANG_GUARD_S`` later."""
    ticks = itertools.count(0, HANG_GUARD_S)
    return Homecoming(lambda there, count: None, 1 / 11, lambda: next(ticks)), Link()


def first_is_home(coming, link):
    """Returns when one has come whose accuracy is 0.5, and the next may not set out yet."""
    coming.add_checkpoint(link.there(1, 0.5))
    wait_until(lambda: coming.wanted_above == 0.5)


def test_where_each_is_dear_the_newest_comes_after_a_rest_or_when_somebody_waits(dear) -> None:
    coming, link = dear
    first_is_home(coming, link)
    coming.add_checkpoint(link.there(2, 0.6))
    coming.add_checkpoint(link.there(3, 0.7))
    assert link.sent == [1]
    coming.wait_home()
    assert (link.sent, coming.newest.epochs) == ([1, 3], 3)


def test_of_a_training_that_is_stopped_nothing_sets_out_unless_somebody_waits(dear) -> None:
    coming, link = dear
    first_is_home(coming, link)
    coming.add_checkpoint(link.there(2, 0.6))
    coming.stop_transfers()
    wait_until(lambda: all(thread.name != "checkpoints" for thread in threading.enumerate()))
    assert link.sent == [1]
    coming.wait_home()
    assert (link.sent, coming.best.epochs) == ([1, 2], 2)


def test_a_rest_is_as_long_as_what_was_on_its_way_says() -> None:
    link, ticks = Link(), itertools.count(0, 0.001)
    coming = Homecoming(lambda there, count: None, 1 / 11, lambda: next(ticks))
    coming.add_checkpoint(link.there(1, 0.5))
    wait_until(lambda: link.sent == [1])
    coming.add_checkpoint(link.there(2, 0.5))
    wait_until(lambda: link.sent == [1, 2])


def test_while_none_may_set_out_only_what_is_better_is_wanted(dear) -> None:
    coming, link = dear
    assert coming.wanted_above == ALWAYS
    first_is_home(coming, link)
    coming.add_checkpoint(link.there(2, 0.6))
    assert coming.wanted_above == 0.6
    coming.wait_home()
    assert coming.wanted_above == ALWAYS

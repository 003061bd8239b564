"""Retrainings that other servers do for this one, with a scripted trainer."""

from dataclasses import replace

import pytest
from by_hand import Trainings

from ekya.core.commands import StartRetraining
from ekya.core.configs import RetrainConfig
from ekya.core.units import JobId, StreamId
from ekya.core.weights import Elsewhere
from ekya.fleet.policy.loans import Loan
from ekya.fleet.policy.offers import TrainingOffer
from ekya.fleet.policy.places import SiteName
from ekya.fleet.run.elsewhere import Came, Interrupted
from ekya.fleet.run.live import trained_elsewhere
from ekya.fleet.run.live.trained_elsewhere import MOVED_WITHIN_US, TrainedElsewhere
from ekya.fleet.run.training.bundle_file import TrainingBundle
from ekya.fleet.run.training.protocol import Host
from ekya.models.training.trainer import EpochResult

S = 1_000_000
MB = 1_000_000
CAM, JOB = StreamId("cam"), JobId(3)
HOME, EAST, WEST = map(SiteName, ("home", "east", "west"))
CONFIG = RetrainConfig(4, 16, 0, 1, 1.0)
START = StartRetraining(CAM, JOB, 1, CONFIG, 0, 0.9, 5.0, Elsewhere(40 * S))
OFFER = TrainingOffer(HOME, CAM, CONFIG, 4, 10.0, 0.1, 0.0, 0, 100 * S, 1.0, 45.0, 45.0)


def loan(host, epochs=4):
    return Loan(replace(OFFER, epochs=epochs), host, 300, 5 * S, 30 * S, 40 * S, "it fits")


def sends(handle, origin, target, size_mb):
    before = handle.now.sent.get((origin, target), 0)
    handle.now = replace(handle.now, sent={**handle.now.sent, (origin, target): before + size_mb * MB})


def ends_epoch(handle, accuracy=0.5, home=True):
    epochs = (*handle.now.epochs, EpochResult(len(handle.now.epochs) + 1, accuracy, 0.5))
    came = len(epochs) if home else handle.now.epochs_home
    handle.now = replace(handle.now, epochs=epochs, epochs_home=came)


def ends(handle):
    handle.now = replace(handle.now, state="done", epochs_home=len(handle.now.epochs))


class Exchange:
    """Exchange of one stream, which records what is brought home."""

    def __init__(self):
        self.brought = []

    def gather(self, command):
        return lambda: TrainingBundle(command.config, b"", None)

    def bring(self, command, accuracies, best, over):
        made = best()
        self.brought.append((command.job, accuracies, (made.weights, made.accuracy, made.epoch), over))


class Lender:
    """A server that trains, which nobody calls."""

    def loan_id(self, number):
        return f"home-{number}"


class Town:
    """A server's retrainings elsewhere (``awaits``), with fakes around them."""

    def __init__(self, trainings):
        self.exchange, self.lost = Exchange(), []
        self.trainings, self.lenders = trainings, {site: Lender() for site in (EAST, WEST)}
        self.awaits = TrainedElsewhere(
            HOME,
            self.lenders,
            self.exchange.gather,
            self.exchange.bring,
            self.lost.append,
        )

    def begun(self, agreed):
        self.awaits.begin_training(START, agreed)
        return self.trainings[0]


@pytest.fixture
def town(monkeypatch):
    made = Trainings()
    monkeypatch.setattr(trained_elsewhere, "RemoteTraining", made)
    return Town(made)


def test_it_trains_where_the_loan_says_at_its_share(town) -> None:
    handle = town.begun(loan(EAST))
    assert (handle.hosts, handle.home) == ([Host(EAST, "home--1", 300, town.lenders[EAST])], HOME)


def test_its_epochs_are_brought_once_as_they_come_and_with_the_last_it_is_over(town) -> None:
    handle = town.begun(loan(EAST))
    assert town.awaits.take_home(10 * S) == []
    ends_epoch(handle, 0.6)
    assert town.awaits.take_home(11 * S) == [Came(START, False, "", {})]
    assert town.awaits.take_home(12 * S) == []
    ends_epoch(handle, 0.5)
    ends_epoch(handle, 0.5)
    assert town.awaits.take_home(13 * S) == [Came(START, False, "", {})]
    ends_epoch(handle, 0.7, home=False)
    assert town.awaits.take_home(14 * S) == []
    ends(handle)
    assert town.awaits.take_home(15 * S) == [Came(START, True, "", {})]
    first = (b"weights 1", 0.6, 1)
    assert town.exchange.brought == [
        (JOB, [0.6], first, False),
        (JOB, [0.6, 0.5, 0.5], first, False),
        (JOB, [0.6, 0.5, 0.5, 0.7], (b"weights 4", 0.7, 4), True),
    ]
    assert town.awaits.take_home(16 * S) == []


def test_a_quick_training_is_told_of_when_it_is_over_and_not_before(town) -> None:
    handle = town.begun(loan(EAST))
    for at_us in (S // 2, S, 3 * S // 2):
        ends_epoch(handle, 0.6)
        assert town.awaits.take_home(at_us) == []
    ends_epoch(handle, 0.7)
    ends(handle)
    assert town.awaits.take_home(7 * S // 4) == [Came(START, True, "", {})]
    assert [told for _, told, _, _ in town.exchange.brought] == [[0.6, 0.6, 0.6, 0.7]]


def test_every_megabyte_between_sites_is_told(town) -> None:
    handle = town.begun(loan(EAST))
    assert town.awaits.take_home(10 * S) == []
    sends(handle, HOME, EAST, 46)
    sends(handle, EAST, HOME, 45)
    for _ in range(CONFIG.epochs):
        ends_epoch(handle)
    ends(handle)
    (ended,) = town.awaits.take_home(20 * S)
    assert (ended.command, ended.over, ended.failed) == (START, True, "")
    assert ended.moved_mb == {(HOME, EAST): 46.0, (EAST, HOME): 45.0}
    assert town.awaits.take_home(21 * S) == []


def test_a_training_that_ends_early_has_failed_in_its_own_words_with_what_is_here(town) -> None:
    handle = town.begun(loan(EAST))
    ends_epoch(handle)
    town.awaits.take_home(19 * S)
    handle.now = replace(handle.now, state="failed", reason="it did not fit")
    (ended,) = town.awaits.take_home(20 * S)
    assert (ended.over, ended.failed) == (True, "it did not fit")
    assert [(told, over) for _, told, _, over in town.exchange.brought] == [([0.5], False), ([0.5], True)]


def test_a_training_without_weights_brings_none(town) -> None:
    handle = town.begun(loan(EAST))
    handle.now = replace(handle.now, state="failed", reason="it did not fit")
    (ended,) = town.awaits.take_home(20 * S)
    assert (ended.failed, town.exchange.brought) == ("it did not fit", [])


def test_a_host_that_dies_breaks_the_count_in_two_and_no_megabyte_is_in_both(town) -> None:
    handle = town.begun(loan(EAST))
    sends(handle, HOME, EAST, 46)
    ends_epoch(handle)
    assert town.awaits.training_so_far(CAM, 20 * S) == Interrupted(3, {(HOME, EAST): 46.0})
    town.awaits.continue_training(CAM, loan(WEST, epochs=3))
    assert handle.hosts[-1].site == WEST
    sends(handle, HOME, WEST, 44)
    for _ in range(3):
        ends_epoch(handle)
    ends(handle)
    (ended,) = town.awaits.take_home(40 * S)
    assert ended.moved_mb == {(HOME, EAST): 0.0, (HOME, WEST): 44.0}


def test_who_asks_of_what_is_over_hears_nothing_that_breaks_anything(town) -> None:
    assert town.awaits.training_so_far(CAM, S) == Interrupted(1, {})
    town.awaits.continue_training(CAM, loan(WEST))
    town.awaits.fail_training(CAM, "nobody", S)
    assert town.awaits.take_home(S) == []


def test_nobody_else_has_room_and_it_is_stopped_with_what_is_here(town) -> None:
    handle = town.begun(loan(EAST))
    ends_epoch(handle)
    town.awaits.fail_training(CAM, "no server has room", 20 * S)
    (ended,) = town.awaits.take_home(20 * S)
    assert ended.failed == "no server has room"
    assert town.exchange.brought == [(JOB, [0.5], (b"weights 1", 0.5, 1), True)]
    assert handle.stopped.is_set()


def test_who_is_given_up_is_stopped_and_its_host_is_told_before_the_end(town) -> None:
    handle, waited = town.begun(loan(EAST)), []
    sends(handle, HOME, EAST, 46)
    handle.steps_on = lambda: waited.append(handle)
    assert town.awaits.stop_training(CAM, 20 * S) == {(HOME, EAST): 46.0}
    assert handle.stopped.is_set()
    town.awaits.close()
    assert waited == [handle]


def test_one_that_has_lost_all_nodes_and_is_moved_nowhere_ends_in_time_with_what_is_here(town) -> None:
    handle = town.begun(loan(EAST))
    ends_epoch(handle)
    training, stranded = handle.now, replace(handle.now, state="stranded", reason="no node is left")
    handle.now = stranded
    town.awaits.take_home(20 * S)
    town.awaits.take_home(20 * S + MOVED_WITHIN_US - 1)
    assert not handle.stopped.is_set()
    handle.now = training  # the training was moved
    town.awaits.take_home(20 * S + MOVED_WITHIN_US)
    handle.now = stranded
    town.awaits.take_home(60 * S)
    assert not handle.stopped.is_set()
    town.awaits.take_home(60 * S + MOVED_WITHIN_US)
    assert handle.stopped.is_set()
    handle.now = replace(stranded, state="stopped")
    (ended,) = town.awaits.take_home(61 * S + MOVED_WITHIN_US)
    assert ended.failed == "no node is left"
    assert town.exchange.brought[-1][1:] == ([0.5], (b"weights 1", 0.5, 1), True)

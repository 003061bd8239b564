"""What a server learns from its loop's states: gains of borrowed retrainings, and numbers of exemplars."""

from dataclasses import replace

import pytest
from byhand import LAMBDAS, A, B, S

from ekya.core import events as ev
from ekya.core.configs import RetrainConfig
from ekya.core.effects import apply_event
from ekya.core.state import FleetState, RetrainJob, StreamState
from ekya.core.units import JobId, StreamId
from ekya.fleet.policy.loans import Loan
from ekya.fleet.policy.offers import TrainingOffer
from ekya.fleet.policy.places import SiteName
from ekya.fleet.run.server import Gains, Remembered

HERE, THERE = SiteName("here"), SiteName("there")
GAMMA = RetrainConfig(4, 16, 0, 1, 1.0)
OFFER = TrainingOffer(HERE, A, GAMMA, 4, 10.0, 0.6, 0.0, 110 * S, 200 * S, 1.0, 45.0, 45.0, per_accuracy=2.0)
LOAN = Loan(OFFER, THERE, 300, 112 * S, 138 * S, 140 * S, "it fits", number=7)
IDLE = StreamState(A, LAMBDAS, accuracy=0.5)
JOB = RetrainJob(JobId(3), GAMMA, 1, 300, 0.8, 0.8, 10.0)


def training(accuracy=0.5, version=0, *accuracies):
    return replace(IDLE, accuracy=accuracy, version=version, job=replace(JOB, accuracies=accuracies))


def over(accuracy, version, *accuracies):
    return replace(training(accuracy, version), job=None, finished=replace(JOB, accuracies=accuracies))


class Followed:
    """Gains of server ``HERE``, and what they reported: loan number, gain and time until weights served."""

    def __init__(self, loan=LOAN):
        self.told = []
        self.gains = Gains(lambda loan, *came: self.told.append((loan.number, *came)))
        self.at(110, IDLE)
        self.at(111, training(), loan)

    def at(self, t_s, state, loan=None):
        streams = (state, StreamState(B, LAMBDAS, accuracy=0.5))
        fleet = FleetState(streams=tuple(one for one in streams if one is not None), window=1)
        self.gains.follow_state(fleet, [] if loan is None else [loan], t_s * S)


def test_weights_bring_their_gain_from_when_they_serve_until_the_window_ends() -> None:
    followed = Followed()
    # The loop counts on the weights when they have arrived; they serve two seconds later.
    followed.at(140, over(0.8, 0, 0.6, 0.8))
    assert followed.told == []
    followed.at(142, over(0.8, 1, 0.6, 0.8))
    assert followed.told == [(7, pytest.approx(2.0 * 0.3 * 58), 2 * S)]
    followed.at(150, over(0.9, 2, 0.6, 0.8))
    assert len(followed.told) == 1


def test_a_snapshot_counts_from_when_it_serves_also_if_nothing_better_follows() -> None:
    followed = Followed()
    followed.at(120, training(0.7, 1, 0.7), LOAN)
    followed.at(140, over(0.7, 1, 0.7, 0.65))
    assert followed.told == [(7, pytest.approx(2.0 * 0.2 * 80), None)]


def test_a_snapshot_that_serves_after_the_end_is_not_taken_for_the_best_weights() -> None:
    followed = Followed()
    followed.at(139, training(0.5, 0, 0.6), LOAN)
    followed.at(140, over(0.8, 0, 0.6, 0.8))
    followed.at(141, over(0.6, 1, 0.6, 0.8))
    assert followed.told == []
    followed.at(143, over(0.8, 2, 0.6, 0.8))
    assert followed.told == [(7, pytest.approx(2.0 * (0.1 * 59 + 0.2 * 57)), 3 * S)]


@pytest.mark.parametrize(
    ("t_s", "then"),
    [
        (150, IDLE),
        (150, replace(IDLE, job=replace(JOB, job=JobId(4)), version=1, accuracy=0.9)),
        (150, None),
        (140, over(0.6, 0, 0.55)),
        (200, over(0.51, 0, 0.51)),
    ],
    ids=["given up", "trained again", "its stream is gone", "worse than what serves", "the gate refuses"],
)
def test_of_what_never_serves_nothing_comes(t_s, then) -> None:
    followed = Followed()
    if t_s == 140:
        followed.at(139, training(0.6, 0), LOAN)  # newer labels measure the serving model
    elif t_s == 200:
        followed.at(140, then)
        assert followed.told == []
    followed.at(t_s, then)
    assert followed.told == [(7, 0.0, None)]


def test_new_labels_tell_from_which_accuracy_the_gain_counts() -> None:
    followed = Followed()
    followed.at(120, training(0.75), LOAN)
    followed.at(140, over(0.8, 1, 0.8))
    assert followed.told == [(7, pytest.approx(2.0 * 0.05 * 60), 0)]


def test_weights_that_serve_when_the_window_has_ended_bring_nothing() -> None:
    followed = Followed()
    followed.at(199, over(0.8, 0, 0.8))
    followed.at(201, over(0.8, 1, 0.8))
    assert followed.told == [(7, 0.0, 2 * S)]


def test_what_has_moved_is_told_of_the_last_loan_with_all_that_it_brought() -> None:
    followed, moved = Followed(), replace(LOAN, number=9)
    followed.at(120, training(0.7, 1, 0.7), LOAN)
    followed.at(130, training(0.7, 1, 0.7), moved)
    followed.at(160, over(0.8, 2, 0.7, 0.8))
    assert followed.told == [(9, pytest.approx(2.0 * (0.2 * 80 + 0.1 * 40)), 0)]


CAM = StreamId("cam")


class Loop:
    """State of one stream's loop, advanced by events; tests start its jobs."""

    def __init__(self, most=120):
        self.remembered = Remembered(most)
        self.state = FleetState(streams=(StreamState(CAM, ()),))
        self.window, self.job = -1, -1

    def turn(self, *events):
        before = self.state
        for event in events:
            self.state = apply_event(self.state, event)
        self.remembered.follow_state(before, self.state)

    def labelled(self, crops):
        self.window += 1
        self.turn(ev.WindowOpened(self.window * 100, self.window, self.window * 100 + 100))
        self.turn(ev.LabelsReady(1, CAM, self.window, crops, 9, 0.5, False, 1.0))

    def begins(self):
        self.job += 1
        job = RetrainJob(JobId(self.job), GAMMA, self.window, 100, 0.9, 0.9, 5.0)
        self.state = self.state.with_stream(replace(self.state.stream(CAM), job=job))

    def epoch(self):
        return ev.RetrainProgress(2, CAM, JobId(self.job), 1, 0.7, 1.0)

    def finished(self):
        return ev.RetrainFinished(3, CAM, JobId(self.job), 2.0)

    def failed(self):
        return ev.RetrainFailed(3, CAM, JobId(self.job), "broken")

    @property
    def exemplars(self):
        return self.remembered.most_exemplars(CAM)


def test_nothing_is_remembered_before_the_first_retraining_has_ended() -> None:
    loop = Loop()
    assert loop.exemplars == 0
    loop.labelled(60)
    loop.begins()
    loop.turn(loop.epoch())
    assert loop.exemplars == 0
    loop.turn(loop.finished())
    assert loop.exemplars == 60


def test_what_comes_with_all_its_epochs_at_once_counts_and_no_window_counts_twice() -> None:
    loop = Loop()
    loop.labelled(40)
    for _ in range(2):
        loop.begins()
        loop.turn(loop.epoch(), loop.finished())
    assert loop.exemplars == 40
    loop.labelled(30)
    loop.begins()
    loop.turn(loop.epoch(), loop.finished())
    assert loop.exemplars == 70


def test_a_retraining_that_the_end_of_its_window_stops_has_chosen_exemplars_if_it_had_an_epoch() -> None:
    loop = Loop()
    loop.labelled(40)
    loop.begins()
    loop.turn(loop.epoch())
    loop.labelled(50)
    assert loop.exemplars == 40
    loop.begins()
    loop.labelled(60)
    assert loop.exemplars == 40


@pytest.mark.parametrize(("epochs", "remembers"), [(0, 0), (1, 40)])
def test_one_that_failed_has_chosen_exemplars_if_it_had_an_epoch(epochs, remembers) -> None:
    loop = Loop()
    loop.labelled(40)
    loop.begins()
    for _ in range(epochs):
        loop.turn(loop.epoch())
    loop.turn(loop.failed())
    assert loop.exemplars == remembers


def test_there_are_never_more_than_the_budget_allows() -> None:
    loop = Loop(most=50)
    loop.labelled(60)
    loop.begins()
    loop.turn(loop.epoch(), loop.finished())
    assert loop.exemplars == 50

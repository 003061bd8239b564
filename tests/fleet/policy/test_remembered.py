"""Exemplars as a loop counts them: crops of windows with a retraining, up to the budget."""

from dataclasses import replace

import pytest

from ekya.core import events as ev
from ekya.core.configs import RetrainConfig
from ekya.core.effects import apply_event
from ekya.core.state import FleetState, RetrainJob, StreamState
from ekya.core.units import JobId, StreamId
from ekya.fleet.run.server import Remembered

CAM = StreamId("cam")
GAMMA = RetrainConfig(2, 16, 0, 1, 1.0)


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

"""Tests that a run that is ended early does not wait for its next event."""

import threading

import pytest

from ekya.control.protocols import Batch
from ekya.core import events as ev
from ekya.runtime.executor_layers import Stoppable, StoppedEarlyError

S = 1_000_000
LOST = ev.StreamLost(7 * S, "cam", "no frames")


class World:
    """World whose time advances by waiting; ``events`` come at their time."""

    def __init__(self, events=(), then=None):
        self.now_us, self.events, self.then, self.waits = 0, list(events), then, 0

    def wait(self, until_us):
        self.waits += 1
        if self.then is not None and self.waits == 5:
            self.then()
        come = [event for event in self.events if event.t_us <= until_us]
        self.now_us = max(self.now_us, come[0].t_us if come else until_us)
        self.events = [event for event in self.events if event not in come]
        return Batch(self.now_us, tuple(come))


def test_it_waits_as_the_world_does_in_many_small_steps():
    world = World([LOST])
    stoppable = Stoppable(world, threading.Event())
    assert stoppable.wait(10 * S) == Batch(7 * S, (LOST,))
    assert world.waits > 20
    assert stoppable.wait(10 * S) == Batch(10 * S, ())
    assert stoppable.wait(9 * S) == Batch(10 * S, ()), "what is past is not waited for"


def test_it_ends_while_it_waits_and_before_it_waits_again():
    stop = threading.Event()
    world = World(then=stop.set)
    stoppable = Stoppable(world, stop)
    with pytest.raises(StoppedEarlyError):
        stoppable.wait(10 * S)
    assert (world.waits, world.now_us < 2 * S) == (5, True)
    with pytest.raises(StoppedEarlyError):
        stoppable.wait(0)
    assert world.waits == 5

"""The state of a site's machine, read while its server runs."""

import itertools
import threading
from contextlib import closing

from waiting import HANG_GUARD_S

from ekya.fleet.policy.places import NodeState
from ekya.fleet.run.deep_edge.states import MachineState


def test_the_state_is_that_without_trainings_of_others() -> None:
    numbers, lends, read = itertools.count(), threading.Event(), threading.Semaphore(0)

    def use():
        read.release()
        # 0.5 until it lends, and a full processor from then on.
        next(numbers)
        return (1.0 if lends.is_set() else 0.5), 0.25

    with closing(MachineState("nano", lends.is_set, use, every_s=0.005)) as state:
        for _ in range(5):
            assert read.acquire(timeout=HANG_GUARD_S)
        assert state() == ("nano", NodeState(0.5, 0.0, 0.25))
        lends.set()
        for _ in range(5):
            assert read.acquire(timeout=HANG_GUARD_S)
        assert state() == ("nano", NodeState(0.5, 0.0, 0.25))


def test_before_the_first_reading_nothing_is_known() -> None:
    with closing(MachineState("nano", lambda: False, lambda: (0.1, 0.1), every_s=HANG_GUARD_S)) as state:
        assert state() is None

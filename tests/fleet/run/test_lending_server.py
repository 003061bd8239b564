"""Spare capacity of a server with several GPUs: at most that of one GPU."""

from dataclasses import replace

import pytest
from byhand import LAMBDAS, OPTIONS, A, B, S
from trace_servers import SIZES

from ekya.control.loop_state import LoopState
from ekya.control.options import StreamHome
from ekya.control.protocols import Batch
from ekya.control.views import window_view
from ekya.core.configs import RetrainConfig
from ekya.core.state import (
    FleetState,
    RetrainJob,
    RunningPreparation,
    StreamState,
    WindowLabels,
    WindowProfiles,
)
from ekya.core.units import JobId
from ekya.core.view import RetrainOption
from ekya.core.weights import Elsewhere
from ekya.fleet.policy.brokering import Agreed
from ekya.fleet.policy.names import SiteName
from ekya.fleet.run.elsewhere import AsForeseen
from ekya.fleet.run.lending import Lent
from ekya.fleet.run.server import LendingServer, ServerTerms
from ekya.planning.schedulers.registry import make_scheduler

MOVING = replace(OPTIONS, quantum_milli=50, preparation_share_milli=300)
AT_HOME = replace(MOVING, homes=(StreamHome(A, 0), StreamHome(B, 1)))


class Idle:
    """An executor in which nothing happens."""

    def wait(self, until_us):
        return Batch(until_us, ())

    def execute(self, commands):
        pass


class Tier:
    """Counts reports of more spare capacity, and has none to lend."""

    def __init__(self):
        self.heard = 0

    def agree(self, now_us, offered):
        return Agreed(None, {offer.stream: "no server has room" for offer in offered if offer.stream == A})

    def more_room(self, site):
        self.heard += 1


def server(options, lent_milli=0, tier=None):
    """A server with two streams that serve in window 1; ``lent_milli`` is lent by its loop's state."""
    terms = ServerTerms(SiteName("here"), crops_may_leave=False)
    idle = Idle()
    made = LendingServer(terms, make_scheduler("thief"), options, SIZES, tier, idle, AsForeseen(idle))
    streams = tuple(StreamState(stream, LAMBDAS, accuracy=0.5) for stream in (A, B))
    fleet = FleetState(streams, window=1, window_end_us=200 * S, lent_milli=lent_milli)
    made.follow(LoopState(fleet, {}))
    return made


def units(made):
    room = made.room(120 * S, 201 * S)
    return 0 if room is None else len(room.loss)


@pytest.mark.parametrize(("options", "all_of_it"), [(MOVING, (10, 10, 2)), (AT_HOME, (8, 4, 0))])
def test_what_is_promised_comes_off_what_it_can_lend(options, all_of_it) -> None:
    made = server(options)
    can_lend = [units(made)]
    for number, share_milli in enumerate((500, 900)):
        made.lend(number, Lent(share_milli, 130 * S, 190 * S))
        can_lend.append(units(made))
    assert tuple(can_lend) == all_of_it


def test_what_its_loop_knows_of_already_is_not_taken_off_twice() -> None:
    made = server(AT_HOME, lent_milli=500)
    made.lend(0, Lent(500, 110 * S, 190 * S))
    assert units(made) == 4


def test_whoever_has_more_to_lend_says_so_once() -> None:
    tier = Tier()
    made = server(MOVING, tier=tier)
    (first, second) = FleetState(tuple(StreamState(stream, LAMBDAS) for stream in (A, B))).streams
    config = RetrainConfig(4, 16, 0, 1, 1.0)
    job = RetrainJob(JobId(1), config, 1, 300, 0.8, 0.8, 10.0)
    away = replace(job, elsewhere=Elsewhere(190 * S))

    def heard(**changes):
        told = {"streams": (first, second), "window": 1, "window_end_us": 200 * S} | changes
        before = tier.heard
        made.follow(LoopState(FleetState(**told), {}))
        return tier.heard - before

    assert heard() == 0
    assert heard(preparation=RunningPreparation(100 * S, 300)) == 0
    assert heard(lent_milli=300) == 1  # the preparation has ended
    assert heard(lent_milli=500) == 0
    assert heard(lent_milli=300) == 1  # a guest has left
    assert heard(lent_milli=300, streams=(replace(first, job=job), replace(second, job=away))) == 0
    assert heard(lent_milli=300, streams=(replace(first, job=job), second)) == 0
    assert heard(lent_milli=300) == 1  # one of its own retrainings has ended
    assert heard(preparation=RunningPreparation(100 * S, 300)) == 0


def test_a_plan_says_why_nobody_else_retrains_what_is_not_retrained_here() -> None:
    """A tenth of a GPU is left beside inference, so a retraining of a minute takes ten."""
    options, scheduler, idle = replace(OPTIONS, capacity_milli=700), make_scheduler("thief"), Idle()
    terms = ServerTerms(SiteName("here"), crops_may_leave=True)
    made = LendingServer(terms, scheduler, options, SIZES, Tier(), idle, AsForeseen(idle))
    long = RetrainOption(RetrainConfig(4, 16, 0, 1, 1.0), 0.9, 60.0)
    streams = tuple(
        StreamState(
            one, LAMBDAS, accuracy=0.5, labels=WindowLabels(80, 20), profiles=WindowProfiles(options=(long,))
        )
        for one in (A, B)
    )
    fleet = FleetState(streams, window=1, window_open_us=100 * S, window_end_us=200 * S)
    made.follow(LoopState(fleet, {}))
    view = window_view(fleet, 110 * S, options, scheduler.needs, {})
    first, second = made.plan(view, scheduler.plan).phases[0].assignments
    assert (first.retrain, second.retrain) == (None, None)
    assert first.reason.endswith("; not elsewhere either: no server has room")
    assert "elsewhere" not in second.reason

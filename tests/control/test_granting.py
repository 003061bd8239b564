"""Shares that a plan gets: minimum shares, and guests' on a server of several GPUs."""

from dataclasses import replace

import pytest
from byhand import LAMBDAS, LONG, NEEDS, OPTIONS, A, B, Hand, S, Wish, labels, started
from hypothesis import given, settings
from hypothesis import strategies as st

from ekya.control.options import StreamHome
from ekya.control.views import free_milli_at_home, lendable_milli
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.state import FleetState, RetrainJob, StreamState
from ekya.core.stream_faults import Faults, Status
from ekya.core.units import StreamId
from ekya.planning.placement.homes import PREPARATION_GPU, assign_home_gpus, guests_gpu
from ekya.planning.placement.pack import Packing, free_milli_by_gpu

# Minimum shares


C = StreamId("c")
AGED = tuple(replace(option, age_us=option.config.every * 500_000) for option in LAMBDAS)
FREE = replace(NEEDS, fixed_shares=False, fixed_gamma=False)


def granted(hand, gpus=(None, None, None)):
    hand.wishes = {A: Wish(1000), B: Wish(0), C: Wish(0)}
    added = [ev.StreamAdded(0, stream, AGED, gpu) for stream, gpu in zip((A, B, C), gpus, strict=True)]
    turn = hand.give(0, *added, ev.WindowOpened(0, 0, 100 * S))
    return {one.stream: one.share_milli for one in turn.commands if isinstance(one, cmd.SetInference)}


@pytest.mark.parametrize("homes", [(), (0, 1, 1), (1, 0, 0), (0, 0, 0)])
def test_step_keeps_floors_under_any_plan(homes):
    at_home = tuple(StreamHome(stream, gpu) for stream, gpu in zip((A, B, C), homes, strict=False))
    capacity_milli = 2000 if homes else 1000
    options = replace(OPTIONS, quantum_milli=50, capacity_milli=capacity_milli, homes=at_home)
    shares = granted(Hand(options=options, needs=FREE))
    # Unclaimed capacity is given out afterwards, where it helps.
    assert min(shares[B], shares[C]) >= 150
    assert sum(shares.values()) <= capacity_milli
    if len(set(homes)) <= 1:
        assert shares[A] == 700


def test_step_keeps_floors_of_streams_that_are_added_on_a_gpu():
    options = replace(OPTIONS, quantum_milli=50, capacity_milli=2000, homes=(StreamHome(A, 0),))
    shares = granted(Hand(options=options, needs=FREE), (None, 0, 0))
    assert min(shares[B], shares[C]) >= 150
    assert sum(shares.values()) <= 1000


def test_step_leaves_fixed_shares_below_floors():
    shares = granted(Hand(needs=NEEDS))
    assert shares[A] == 1000
    assert shares.get(B, 0) == shares.get(C, 0) == 0


# Guests


STREAMS = tuple(StreamId(f"cam-{number}") for number in range(7))
TWO_GPUS = replace(OPTIONS, preparation_share_milli=300)
APART = replace(TWO_GPUS, homes=(StreamHome(A, 0), StreamHome(B, 1)))


def serving(lent_milli=0, **changes):
    streams = tuple(StreamState(stream, LAMBDAS, accuracy=0.5) for stream in (A, B))
    return FleetState(streams, window=1, window_end_us=200 * S, lent_milli=lent_milli, **changes)


WINDOW_END_US = serving().window_end_us
LATER_US = WINDOW_END_US + 1


def test_lendable_in_a_pool_keeps_preparation_and_quanta():
    assert lendable_milli(serving(), TWO_GPUS, LATER_US) == 2000 - 300 - 2 * 100
    assert lendable_milli(serving(lent_milli=700), TWO_GPUS, LATER_US) == 800


def test_lendable_before_preparation_includes_its_share():
    assert lendable_milli(serving(), TWO_GPUS, WINDOW_END_US) == 2000 - 2 * 100
    at_home = replace(APART, capacity_milli=1500)
    assert lendable_milli(serving(), at_home, WINDOW_END_US) == 1000 - 100


def test_lendable_with_homes_is_of_one_gpu():
    assert lendable_milli(serving(), APART, LATER_US) == 1000 - 100
    assert lendable_milli(serving(lent_milli=700), APART, LATER_US) == 200
    assert lendable_milli(serving(lent_milli=950), APART, LATER_US) == -50


def test_lendable_on_partial_gpu_keeps_preparation():
    assert lendable_milli(serving(), replace(APART, capacity_milli=1500), LATER_US) == 1000 - 100 - 300


@pytest.mark.parametrize("homes", [(), (StreamHome(A, 0), StreamHome(B, 0))])
@pytest.mark.parametrize(("capacity", "lent"), [(1000, 0), (1000, 400), (600, 200)])
def test_lendable_on_one_gpu_ignores_homes(homes, capacity, lent):
    options = replace(TWO_GPUS, capacity_milli=capacity, homes=homes)
    assert lendable_milli(serving(lent_milli=lent), options, LATER_US) == capacity - lent - 300 - 200


def test_lendable_excludes_share_of_lost_camera():
    state = serving()
    job = RetrainJob(1, LONG, 1, 250, 0.9, 0.9, 10.0)
    gone = replace(state.stream(B), job=job, faults=Faults(lost="no signal"))
    assert lendable_milli(state.with_stream(gone), APART, LATER_US) == 1000 - 250


def test_capacity_of_a_node_that_is_gone_leaves_the_plan_and_its_streams_are_elsewhere():
    homes = (StreamHome(A, 0), StreamHome(B, 2))
    hand = started(options=replace(OPTIONS, capacity_milli=3000, homes=homes, pools_milli=(2000, 1000)))
    assert hand.views[-1].capacity_milli == 3000
    hand.give(S, *(ev.WorkerDied(S, B, role, "its node is gone") for role in ev.Role))
    hand.give(2 * S, *(ev.WorkerBack(2 * S, B, role, 1, 2) for role in ev.Role))
    assert hand.views[-1].capacity_milli == 2000
    assert [stream.stream for stream in hand.views[-1].streams] == [A, B]
    assert free_milli_at_home(hand.state.fleet, hand.options) == (2000, 0)


class Town:
    """A server whose streams stay on their GPUs, and which lends all the spare capacity that it reports.

    With ``cores`` these are cores, of which each node has as many.
    """

    def __init__(self, gpus_milli, streams, packing, wishes, cores=1):
        self.streams, places = STREAMS[:streams], assign_home_gpus(streams, gpus_milli)
        by_place = free_milli_by_gpu(gpus_milli, ())
        self.pools = tuple(sum(by_place[at : at + cores]) for at in range(0, len(by_place), cores))
        self.homes = [place // cores for place in places]
        self.guests = guests_gpu(gpus_milli) if cores == 1 else 0
        options = replace(
            OPTIONS,
            windows=None,
            capacity_milli=gpus_milli,
            quantum_milli=40,
            preparation_share_milli=300,
            packing=packing,
            homes=tuple(
                StreamHome(stream, place) for stream, place in zip(self.streams, places, strict=True)
            ),
            pools_milli=self.pools if cores > 1 else (),
        )
        wished = {
            stream: Wish(inference, retrain=LONG, retrain_milli=retrain)
            for stream, (inference, retrain) in zip(self.streams, wishes, strict=False)
        }
        self.hand = Hand(wished, options)
        added = [ev.StreamAdded(0, stream, LAMBDAS) for stream in self.streams]
        self.window, self.now_us, self.gone = 0, 0, None
        self.lent, self.lent_for_this_window = [], []
        self.give(*added, ev.WindowOpened(0, 0, 100 * S))

    def give(self, *events):
        self.hand.give(self.now_us, *events)
        self.look()

    def look(self):
        """Asserts that no GPU gives more than it has to jobs here, the preparation and guests together."""
        fleet = self.hand.state.fleet
        held = [0] * len(self.pools)
        held[self.guests] += sum((*self.lent, *self.lent_for_this_window))
        held[PREPARATION_GPU] += fleet.preparation.share_milli if fleet.preparation is not None else 0
        of_plan = {one.stream: one for one in self.hand.state.phases[0].assignments}
        for stream, gpu in zip(self.streams, self.homes, strict=True):
            state = fleet.stream(stream)
            if state.status is Status.SERVING:
                held[gpu] += of_plan[stream].retrain_share_milli + of_plan[stream].inference_share_milli
            elif state.job is not None:
                held[gpu] += state.job.share_milli
        for gpu, room in enumerate(self.pools):
            assert held[gpu] <= room

    def open_window(self):
        self.now_us = (self.window + 1) * 100 * S
        self.window += 1
        end_us = self.now_us + 100 * S
        self.lent_for_this_window = []
        self.give(
            ev.CapacityLent(self.now_us, sum(self.lent)),
            ev.WindowClosed(self.now_us, self.window - 1),
            ev.WindowOpened(self.now_us, self.window, end_us),
        )

    def end_preparation(self):
        if not self.hand.state.fleet.preparing:
            return
        self.now_us += S
        known = [labels(self.now_us, stream, self.window) for stream in self.streams]
        self.give(*known, ev.PreparationEnded(self.now_us, self.window))

    def lend(self, asked_milli, lent, beyond_window_us):
        fleet = self.hand.state.fleet
        if not fleet.preparing:
            until_us = fleet.window_end_us + beyond_window_us
            can_milli = max(lendable_milli(fleet, self.hand.options, until_us), 0)
            lent.append(min(asked_milli, can_milli) // 100 * 100)
            self.tell_lent()

    def lend_beyond_this_window(self, asked_milli):
        self.lend(asked_milli, self.lent, 1)

    def lend_for_this_window(self, asked_milli):
        self.lend(asked_milli, self.lent_for_this_window, 0)

    def lose_node(self):
        """Moves the streams of the last node to the first."""
        if self.guests > 0 or len(self.pools) < 2 or self.gone is not None:
            return
        self.gone = len(self.pools) - 1
        self.pools = (*self.pools[:-1], 0)
        moved = [stream for stream, home in zip(self.streams, self.homes, strict=True) if home == self.gone]
        if not moved:
            return
        self.homes = [0 if home == self.gone else home for home in self.homes]
        left = self.hand.options.pool_by_place.index(self.gone)
        self.now_us += S
        for stream in moved:
            died = (ev.WorkerDied(self.now_us, stream, role, "its node is gone") for role in ev.Role)
            self.hand.give(self.now_us, *died)
        self.give(
            *(ev.WorkerBack(self.now_us, stream, ev.Role.INFERENCE, 0, left) for stream in moved),
        )

    def take_back(self, which):
        if self.lent:
            self.lent.pop(which % len(self.lent))
            self.tell_lent()

    def tell_lent(self):
        self.now_us += S
        self.give(ev.CapacityLent(self.now_us, sum((*self.lent, *self.lent_for_this_window))))

    def lose_camera(self, which):
        self.now_us += S
        stream = self.streams[which % len(self.streams)]
        lost = self.hand.stream(stream).status is Status.LOST
        self.give(
            ev.StreamBack(self.now_us, stream) if lost else ev.StreamLost(self.now_us, stream, "no signal")
        )


STEPS = st.one_of(
    st.tuples(st.just("lend_beyond_this_window"), st.sampled_from([100, 300, 600, 1000])),
    st.tuples(st.just("lend_for_this_window"), st.sampled_from([100, 300, 600, 1000])),
    st.tuples(st.just("take_back"), st.integers(0, 3)),
    st.tuples(st.just("lose_camera"), st.integers(0, 6)),
    st.tuples(st.just("lose_node")),
    st.tuples(st.just("open_window")),
    st.tuples(st.just("end_preparation")),
)


@pytest.mark.parametrize("packing", list(Packing))
@settings(max_examples=40)
@given(
    gpus_milli=st.sampled_from([1000, 1500, 2000, 2600, 3000]),
    streams=st.integers(1, 7),
    wishes=st.lists(st.tuples(st.integers(0, 900), st.integers(0, 900)), min_size=7, max_size=7),
    steps=st.lists(STEPS, min_size=4, max_size=12),
    cores=st.integers(1, 2),
)
def test_step_never_overfills_gpu_or_node_with_guests(packing, gpus_milli, streams, wishes, steps, cores):
    town = Town(gpus_milli, streams, packing, wishes, cores)
    town.open_window()
    town.end_preparation()
    for name, *arguments in steps:
        getattr(town, name)(*arguments)

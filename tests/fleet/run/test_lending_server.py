"""A server of a fleet: spare capacity that it states, offers that it makes, and loans that it takes."""

from dataclasses import replace

import pytest
from byhand import LAMBDAS, OPTIONS, A, B, S
from trace_servers import SIZES

from ekya.control.loop_state import LoopState
from ekya.control.options import StreamHome
from ekya.control.protocols import Batch
from ekya.control.views import window_view
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.configs import RetrainConfig
from ekya.core.state import (
    FleetState,
    RetrainJob,
    RunningPreparation,
    StreamState,
    WindowLabels,
    WindowProfiles,
)
from ekya.core.stream_faults import Faults
from ekya.core.units import JobId
from ekya.core.view import RetrainOption
from ekya.core.weights import Elsewhere
from ekya.fleet.policy.loans import Loan
from ekya.fleet.policy.offers import TrainingOffer
from ekya.fleet.policy.places import SiteName
from ekya.fleet.run.elsewhere import AsForeseen, Interrupted
from ekya.fleet.run.lending import GIVEN_UP, Answer, Lent
from ekya.fleet.run.server import LendingServer, ServerTerms
from ekya.planning.schedulers.registry import make_scheduler

HERE = SiteName("here")
GAMMA = RetrainConfig(4, 16, 0, 1, 1.0)
MOVING = replace(OPTIONS, quantum_milli=50, preparation_share_milli=300)
AT_HOME = replace(MOVING, homes=(StreamHome(A, 0), StreamHome(B, 1)))


class Idle:
    """An executor in which nothing happens."""

    def wait(self, until_us):
        return Batch(until_us, ())

    def execute_commands(self, commands):
        pass


class Above:
    """Coordinator that records what a server tells it, and refuses offers of stream ``refuses``."""

    def __init__(self, refuses=(A, B)):
        self.refuses, self.heard, self.asked, self.withdrawn, self.ended = refuses, 0, [], [], []
        self.gained = []

    def answer_offers(self, site, now_us, offers):
        self.asked.append([offer.stream for offer in offers])
        return Answer(
            None, {offer.stream: "no server has room" for offer in offers if offer.stream in self.refuses}
        )

    def withdraw_offers(self, site, streams):
        self.withdrawn.append((site, set(streams)))

    def end_loan(self, site, stream, now_us, outcome, moved_mb):
        self.ended.append((site, stream, now_us, outcome, dict(moved_mb)))

    def record_gain(self, loan, came, serves_after_us):
        self.gained.append((loan.number, came, serves_after_us))

    def more_room(self, site, now_us):
        self.heard += 1


class Counting:
    """A scheduler that counts its plans."""

    def __init__(self):
        self.inner, self.plans = make_scheduler("thief"), 0
        self.needs = self.inner.needs

    def plan(self, view):
        self.plans += 1
        return self.inner.plan(view)


def server(options, lent_milli=0, above=None, scheduler=None):
    """A server with two streams that serve in window 1; ``lent_milli`` is lent by its loop's state."""
    terms = ServerTerms(HERE, samples_may_leave="no")
    idle, scheduler = Idle(), scheduler or make_scheduler("thief")
    made = LendingServer(terms, scheduler, options, SIZES, above, idle, AsForeseen(idle))
    made.follow_state(serving(lent_milli=lent_milli))
    return made


def serving(epoch=0, **changes):
    streams = tuple(StreamState(stream, LAMBDAS, accuracy=0.5) for stream in (A, B))
    told = {"streams": streams, "window": 1, "window_end_us": 200 * S} | changes
    return LoopState(FleetState(**told), {}, epoch=epoch)


def units(made):
    room = made.spare_room(120 * S, 201 * S)
    return 0 if room is None else len(room.loss)


@pytest.mark.parametrize(("options", "all_of_it"), [(MOVING, 10), (AT_HOME, 8)])
def test_it_states_all_that_it_could_lend_and_whatever_it_lends_already_is_a_part_of_it(
    options, all_of_it
) -> None:
    """Of several GPUs, a server lends at most one."""
    made = server(options)
    can_lend = [units(made)]
    for number, share_milli in enumerate((500, 900)):
        made.executor.lend_share(number, Lent(share_milli, 130 * S, 190 * S))
        can_lend.append(units(made))
    for epoch, lent_milli in enumerate((500, 1400), 1):
        made.follow_state(serving(epoch, lent_milli=lent_milli))
        can_lend.append(units(made))
    assert can_lend == [all_of_it] * 5


def test_what_lending_would_cost_it_is_the_same_whatever_it_lends_already() -> None:
    dear = replace(MOVING, capacity_milli=1000)
    rooms = [server(dear, lent_milli).spare_room(120 * S, 200 * S) for lent_milli in (0, 200)]
    assert rooms[0] == rooms[1]
    assert rooms[0].loss[-1] > 0.0


def test_its_room_is_priced_once_until_its_plan_or_the_time_limit_changes() -> None:
    scheduler = Counting()
    made = server(MOVING, scheduler=scheduler)

    def priced(until_us=201 * S):
        before = scheduler.plans
        made.spare_room(120 * S, until_us)
        return scheduler.plans > before

    assert [priced(), priced(), priced(190 * S), priced(190 * S)] == [True, False, True, False]
    made.follow_state(serving(epoch=1))
    assert [priced(190 * S), priced(190 * S)] == [True, False]
    made.follow_state(serving(epoch=1, preparation=RunningPreparation(100 * S, 300)))
    assert made.spare_room(120 * S, 190 * S) is None, "it labels"


@pytest.mark.parametrize(
    ("takes_guests", "changes"), [(False, {}), (True, {"window": -1}), (True, {"streams": ()})]
)
def test_who_takes_no_guests_or_serves_nothing_yet_has_no_room(takes_guests, changes) -> None:
    idle, terms = Idle(), ServerTerms(HERE, samples_may_leave="crops", takes_guests=takes_guests)
    made = LendingServer(terms, make_scheduler("thief"), MOVING, SIZES, None, idle, AsForeseen(idle))
    assert made.spare_room(120 * S, 200 * S) is None
    made.follow_state(serving(**changes))
    assert made.spare_room(120 * S, 200 * S) is None


def test_whoever_has_more_to_lend_says_so_once() -> None:
    above = Above()
    made = server(MOVING, above=above)
    (first, second) = FleetState(tuple(StreamState(stream, LAMBDAS) for stream in (A, B))).streams
    config = RetrainConfig(4, 16, 0, 1, 1.0)
    job = RetrainJob(JobId(1), config, 1, 300, 0.8, 0.8, 10.0)
    away = replace(job, elsewhere=Elsewhere(190 * S))

    def heard(**changes):
        told = {"streams": (first, second), "window": 1, "window_end_us": 200 * S} | changes
        before = above.heard
        made.follow_state(LoopState(FleetState(**told), {}))
        return above.heard - before

    assert heard() == 0
    assert heard(preparation=RunningPreparation(100 * S, 300)) == 0
    assert heard(lent_milli=300) == 1  # the preparation has ended
    assert heard(lent_milli=500) == 0
    assert heard(lent_milli=300) == 1  # a guest has left
    assert heard(lent_milli=300, streams=(replace(first, job=job), replace(second, job=away))) == 0
    assert heard(lent_milli=300, streams=(replace(first, job=job), second)) == 0
    assert heard(lent_milli=300) == 1  # one of its own retrainings has ended
    assert heard(preparation=RunningPreparation(100 * S, 300)) == 0


class Wanting:
    """A server of which both streams want a retraining of ``gpu_s`` on a whole GPU, in window 1 from 100 s.

    A tenth of a GPU is left beside inference where ``capacity_milli`` is 700, so a minute takes ten there.
    """

    def __init__(self, capacity_milli=700, refuses=(A, B), samples_may_leave="crops", gpu_s=60.0):
        self.options, self.gpu_s = replace(OPTIONS, capacity_milli=capacity_milli), gpu_s
        self.scheduler, self.above, self.idle = make_scheduler("thief"), Above(refuses), Idle()
        terms, self.awaited = ServerTerms(HERE, samples_may_leave), AsForeseen(self.idle)
        self.server = LendingServer(
            terms,
            self.scheduler,
            self.options,
            SIZES,
            self.above,
            self.idle,
            self.awaited,
        )

    def plan(self, **of_a):
        """Plans at 110 s, with changes to stream ``a``; returns the assignments by stream."""
        streams = {
            stream: StreamState(
                stream,
                LAMBDAS,
                accuracy=0.5,
                labels=WindowLabels(80, 20),
                profiles=WindowProfiles(options=(RetrainOption(GAMMA, 0.9, self.gpu_s),)),
            )
            for stream in (A, B)
        }
        streams[A] = replace(streams[A], **of_a)
        fleet = FleetState(tuple(streams.values()), window=1, window_open_us=100 * S, window_end_us=200 * S)
        self.server.follow_state(LoopState(fleet, {}))
        view = window_view(fleet, 110 * S, self.options, self.scheduler.needs, {})
        made = self.server.plan_window(view, self.scheduler.plan)
        return {one.stream: one for one in made.phases[0].assignments}


def loan_to(stream, number=5, host="there"):
    offer = TrainingOffer(HERE, stream, GAMMA, 4, 60.0, 0.1, 0.0, 100 * S, 200 * S, 1.0, 45.0, 45.0)
    return Loan(offer, SiteName(host), 600, 120 * S, 180 * S, 184 * S, "it fits", number=number)


def test_a_plan_says_why_nobody_else_retrains_what_is_not_retrained_here() -> None:
    first, second = Wanting(refuses=(A,)).plan().values()
    assert (first.retrain, second.retrain) == (None, None)
    assert first.reason.endswith("; not elsewhere either: no server has room")
    assert "elsewhere" not in second.reason


def test_what_begins_at_home_is_not_offered_to_others_any_more() -> None:
    roomy, narrow = Wanting(2000, gpu_s=10.0), Wanting()
    assert {one.retrain for one in roomy.plan().values()} == {GAMMA}
    assert roomy.above.withdrawn == [(HERE, {A, B})]
    assert {one.retrain for one in narrow.plan().values()} == {None}
    assert set().union(*(streams for _, streams in narrow.above.withdrawn)) == set()


def test_who_could_ask_nobody_has_nothing_to_withdraw() -> None:
    made = Wanting(2000, refuses=(), gpu_s=10.0)
    made.plan()
    assert (made.above.asked, made.above.withdrawn) == ([[A, B]], [])


def test_whose_crops_may_not_leave_offers_nothing() -> None:
    made = Wanting(samples_may_leave="no")
    made.plan()
    assert (made.above.asked, made.above.withdrawn) == ([], [])


def test_the_last_word_of_a_server_closes_the_offers_that_it_has_no_more() -> None:
    made = Wanting()
    made.plan()
    made.plan(labels=WindowLabels())
    assert made.above.asked == [[A, B], [B]]


def test_a_granted_loan_makes_its_server_plan_again_and_begins_in_that_plan() -> None:
    made, loan = Wanting(), loan_to(A)
    made.server.executor.wait(100 * S)
    made.server.executor.grant_loan(loan)
    assert made.server.executor.wait(300 * S) == Batch(100 * S, (ev.CapacityLent(100 * S, 0),))
    first, second = made.plan().values()
    assert (first.retrain, first.elsewhere) == (GAMMA, Elsewhere(184 * S))
    assert first.reason == "retrains on 60% of a GPU of there: it fits"
    assert (second.retrain, second.elsewhere) == (None, None)
    assert made.above.asked == [[B]], "it is not offered again"
    assert list(made.server.executor.borrowed_loans()) == [loan]
    start = cmd.StartRetraining(A, JobId(1), 1, GAMMA, 0, 0.5, 60.0, Elsewhere(184 * S))
    made.server.executor.execute_commands([start])
    assert made.awaited.next_us() == loan.next_home(0)[0]
    assert list(made.server.executor.borrowed_loans()) == [loan]
    assert made.above.ended == []


def test_several_granted_loans_begin_in_one_plan() -> None:
    made = Wanting()
    for number, stream in enumerate((B, A)):
        made.server.executor.grant_loan(loan_to(stream, number))
    assert {one.elsewhere for one in made.plan().values()} == {Elsewhere(184 * S)}
    assert made.above.asked == [[]]


@pytest.mark.parametrize(
    "now_is",
    [
        {"job": RetrainJob(JobId(1), GAMMA, 1, 300, 0.8, 0.8, 10.0)},
        {"profiles": WindowProfiles(options=(RetrainOption(RetrainConfig(8, 16, 0, 1, 1.0), 0.9, 60.0),))},
        {"labels": WindowLabels()},
        {"faults": Faults(ended=True)},
    ],
    ids=["trains at home", "another γ is offered", "there are no crops", "its stream has ended"],
)
def test_a_granted_loan_that_cannot_begin_any_more_is_given_up(now_is) -> None:
    made = Wanting()
    made.server.executor.grant_loan(loan_to(A))
    planned = made.plan(**now_is)
    assert made.above.ended == [(HERE, A, 110 * S, GIVEN_UP, {})]
    assert {one.elsewhere for one in planned.values()} == {None}
    assert list(made.server.executor.borrowed_loans()) == []
    made.plan()
    assert len(made.above.ended) == 1


def test_a_granted_loan_of_which_no_plan_has_heard_is_given_up_when_the_run_ends() -> None:
    made = Wanting()
    made.server.executor.grant_loan(loan_to(A))
    made.server.executor.give_up_all()
    made.server.executor.give_up_all()
    assert made.above.ended == [(HERE, A, 0, GIVEN_UP, {})]
    assert list(made.server.executor.borrowed_loans()) == []


def test_a_host_that_dies_between_the_grant_and_the_plan_is_not_begun_on() -> None:
    made, other = Wanting(), loan_to(A, 6, "west")
    made.server.executor.grant_loan(loan_to(A))
    assert made.server.executor.training_so_far(A, 110 * S) == Interrupted(4, {})
    made.server.executor.continue_training(A, other)
    assert made.plan()[A].reason == "retrains on 60% of a GPU of west: it fits"
    assert made.above.ended == []


def test_a_granted_loan_that_fails_before_the_plan_never_begins() -> None:
    made = Wanting()
    made.server.executor.grant_loan(loan_to(A))
    made.server.executor.fail_training(A, "there died, and no other server has room", 110 * S)
    assert list(made.server.executor.borrowed_loans()) == []
    assert made.plan()[A].elsewhere is None
    assert made.above.ended == [], "the coordinator knows"

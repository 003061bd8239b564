"""Tests of share changes as calls of actors: order of calls, events, and ended actors."""

from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
from ray.exceptions import RayActorError, RayTaskError

from ekya.control.options import LoopOptions, StreamHome
from ekya.control.resizing import ShareLedger
from ekya.core import events as ev
from ekya.core.configs import InferenceConfig
from ekya.core.shares import Work, inference_holder, preparation_holder, retraining_holder
from ekya.core.units import JobId, StreamId
from ekya.gpu.backends.backend import Resized
from ekya.runtime import share_changes
from ekya.runtime.actor_processes import SHARES
from ekya.runtime.share_changes import PATIENCE, ShareChanges, ledger_for, patience

A, B = StreamId("a"), StreamId("b")
JOB = JobId(1)
S = 1_000_000
EVERY, SECOND = InferenceConfig(1, 32), InferenceConfig(2, 32)


@dataclass(eq=False)
class Call:
    """Pending call; ``answer`` is its reply, or the error that it raises."""

    actor: str
    method: str
    arguments: tuple
    group: str | None
    answer: object = None


class Actor:
    """Fake actor that records its calls."""

    def __init__(self, name, calls):
        self._name, self._calls = name, calls

    def __getattr__(self, method):
        def in_group(concurrency_group=None):
            def remote(*arguments):
                self._calls.append(Call(self._name, method, arguments, concurrency_group))
                return self._calls[-1]

            return SimpleNamespace(remote=remote, options=in_group)

        return in_group()


@dataclass
class Fleet:
    """Two streams on a pool of 1000 thousandths, with a clock that is set by hand."""

    now: int = 0
    calls: list[Call] = field(default_factory=list)
    told: list[ev.Event] = field(default_factory=list)
    ended: list = field(default_factory=list)

    def __post_init__(self):
        streams = {
            stream: SimpleNamespace(
                inference=Actor(f"inference/{stream}", self.calls),
                retraining=Actor(f"retraining/{stream}", self.calls),
            )
            for stream in (A, B)
        }
        actors = SimpleNamespace(streams=streams, preparation=Actor("micro-profiler", self.calls))
        ledger = ShareLedger((1000,), lambda holder: 0, PATIENCE)
        self.changes = ShareChanges(actors, ledger, self, self.told.append, self.ended.append)

    def now_us(self):
        return self.now

    def new_calls(self):
        """Returns the calls since the last time: actor, method and arguments."""
        calls, self.calls[:] = list(self.calls), []
        return [(call.actor, call.method, *call.arguments) for call in calls]

    def begin(self, name):
        """Returns the call that begins a job."""
        return Actor(name, self.calls).start.remote


@pytest.fixture
def fleet(monkeypatch):
    def get(call):
        if isinstance(call.answer, Exception):
            raise call.answer
        return call.answer

    monkeypatch.setattr(share_changes.ray, "get", get)
    return Fleet()


def answer(fleet, call, answered):
    call.answer = answered
    assert fleet.changes.hear(call)


def serving(fleet, **shares_milli):
    for name, share_milli in shares_milli.items():
        fleet.changes.configure(StreamId(name), EVERY, share_milli, 1)
    for call in fleet.changes.references:
        answer(fleet, call, Resized(call.arguments[2], 5))
    fleet.calls.clear()
    fleet.told.clear()


def test_a_job_begins_when_an_inference_has_let_go(fleet):
    serving(fleet, a=800, b=200)
    fleet.changes.configure(A, SECOND, 300, 2)
    fleet.changes.begin(retraining_holder(B, JOB), 500, 2, fleet.begin("retraining/b"))
    (shrink,) = fleet.calls
    assert shrink.group == SHARES, "it does not wait behind what else the actor is asked"
    assert fleet.new_calls() == [("inference/a", "configure", A, SECOND, 300, 3)]
    fleet.now = 70_000
    answer(fleet, shrink, Resized(300, 60_000))
    assert fleet.told == [ev.ShareResized(70_000, inference_holder(A), 2, 300, 60_000)]
    assert fleet.new_calls() == [("retraining/b", "start", 500, 4)]


def test_what_is_told_is_what_the_handle_says(fleet):
    serving(fleet, a=100)
    fleet.changes.configure(A, EVERY, 400, 2)
    (grow,) = fleet.changes.references
    answer(fleet, grow, Resized(280, 9, "others have the rest"))
    assert fleet.told == [ev.ShareResized(0, inference_holder(A), 2, 280, 9, "others have the rest")]


def test_another_lambda_at_the_same_share_is_no_share_change(fleet):
    serving(fleet, a=100)
    fleet.changes.configure(A, SECOND, 100, 2)
    (call,) = fleet.changes.references
    assert fleet.new_calls() == [("inference/a", "configure", A, SECOND, 100, 2)]
    answer(fleet, call, Resized(100, 1))
    assert fleet.told == []


def test_a_retraining_is_resized_paused_and_ended(fleet):
    holder = retraining_holder(A, JOB)
    fleet.changes.begin(holder, 500, 1, fleet.begin("retraining/a"))
    fleet.changes.resize(holder, 300, 2)
    fleet.changes.resize(holder, 0, 3)
    fleet.changes.leave(holder)
    assert fleet.new_calls() == [
        ("retraining/a", "start", 500, 1),
        ("retraining/a", "resize", A, JOB, 300, 2),
        ("retraining/a", "resize", A, JOB, 0, 3),
        ("retraining/a", "stop", A, JOB),
    ]


def test_a_preparation_is_begun_resized_and_ended(fleet):
    holder = preparation_holder(4)
    fleet.changes.begin(holder, 500, 1, fleet.begin("micro-profiler"))
    fleet.changes.resize(holder, 600, 2)
    fleet.changes.leave(holder)
    assert fleet.new_calls() == [
        ("micro-profiler", "start", 500, 1),
        ("micro-profiler", "resize", 4, 600, 2),
        ("micro-profiler", "end", 4),
    ]


def test_a_job_that_ends_before_its_share_was_free_is_never_begun(fleet):
    serving(fleet, a=1000)
    fleet.changes.configure(A, EVERY, 200, 2)
    (shrink,) = fleet.changes.references
    fleet.changes.begin(retraining_holder(B, JOB), 800, 2, fleet.begin("retraining/b"))
    fleet.changes.leave(retraining_holder(B, JOB))
    fleet.new_calls()
    answer(fleet, shrink, Resized(200, 5))
    assert fleet.new_calls() == []


def test_a_lost_stream_gives_its_share_to_who_waits_for_it(fleet):
    serving(fleet, a=800, b=200)
    fleet.changes.silence(A)
    (silence,) = fleet.changes.references
    fleet.changes.configure(B, EVERY, 1000, 2)
    assert fleet.new_calls() == [("inference/a", "configure", A, EVERY, 0, 3)]
    answer(fleet, silence, Resized(0, 5))
    assert fleet.new_calls() == [("inference/b", "configure", B, EVERY, 1000, 4)]


def test_a_stream_that_was_never_served_has_nothing_to_give(fleet):
    fleet.changes.silence(A)
    assert fleet.calls == []


def test_who_keeps_its_share_is_told_of_and_ended_and_its_share_is_free_when_it_is_dead(fleet):
    serving(fleet, a=800, b=200)
    fleet.changes.configure(A, EVERY, 100, 2)
    fleet.changes.configure(B, EVERY, 900, 2)
    limit_us = PATIENCE.limits_us[Work.INFERENCE]
    fleet.now = PATIENCE.growers_us
    fleet.changes.pass_time()
    assert fleet.changes.left_us() == limit_us - fleet.now
    fleet.now = limit_us
    fleet.new_calls()
    fleet.changes.pass_time()
    assert fleet.told == [ev.ShareOverdue(limit_us, inference_holder(A), 2, limit_us)]
    assert fleet.ended == [inference_holder(A)]
    assert fleet.new_calls() == []
    fleet.changes.died(Work.INFERENCE, A)
    assert fleet.new_calls() == [("inference/b", "configure", B, EVERY, 900, 4)]
    assert fleet.changes.left_us() is None


def test_the_death_of_a_worker_takes_all_its_jobs_and_no_others(fleet):
    fleet.changes.begin(retraining_holder(A, JOB), 400, 1, fleet.begin("retraining/a"))
    fleet.changes.begin(retraining_holder(A, JobId(2)), 400, 1, fleet.begin("retraining/a"))
    fleet.changes.configure(A, EVERY, 200, 1)
    fleet.changes.configure(B, EVERY, 500, 1)
    fleet.new_calls()
    fleet.changes.died(Work.RETRAINING, A)
    assert fleet.new_calls() == [("inference/b", "configure", B, EVERY, 500, 4)]


@pytest.mark.parametrize(
    "error",
    [RayActorError(), RayTaskError("resize", "a trace", ValueError("broken"))],
    ids=["dead", "broken"],
)
def test_an_order_that_fails_is_no_answer(fleet, error):
    serving(fleet, a=1000)
    fleet.changes.configure(A, EVERY, 100, 2)
    (shrink,) = fleet.changes.references
    answer(fleet, shrink, error)
    fleet.changes.configure(B, EVERY, 900, 2)
    assert fleet.told == []
    assert fleet.changes.left_us() == PATIENCE.growers_us


def test_a_reference_of_something_else_is_left_to_others(fleet):
    assert not fleet.changes.hear(Call("inference/a", "poll", (), None))


def options(**changes):
    return replace(LoopOptions(S, 1, 2000, 100, 100, 0.0, 500, S, S, (), (), ()), **changes)


def test_cores_are_one_pool():
    ledger = ledger_for(options())
    assert ledger.aim(inference_holder(A), 1500, 1, 0)[0].share_milli == 1500


def test_every_gpu_is_a_pool_and_the_last_may_be_a_part_of_one():
    homes = (StreamHome(A, 0), StreamHome(B, 1))
    ledger = ledger_for(options(capacity_milli=1400, homes=homes))
    assert (ledger.free_milli(0), ledger.free_milli(1)) == (1000, 400)
    for holder in (inference_holder(A), retraining_holder(A, JOB), preparation_holder(1)):
        ledger.aim(holder, 300, 1, 0)
    ledger.aim(inference_holder(B), 100, 1, 0)
    assert (ledger.free_milli(0), ledger.free_milli(1)) == (100, 300)


def test_a_machine_whose_batches_take_long_is_given_more_time_to_let_go():
    slow = patience(0.5)
    assert patience(0.0) == PATIENCE
    assert slow.growers_us == PATIENCE.growers_us
    for work, limit_us in PATIENCE.limits_us.items():
        assert slow.limits_us[work] == limit_us + 50_000_000

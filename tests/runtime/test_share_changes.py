"""Tests of share changes as calls of actors: order of calls, events, and ended actors."""

from dataclasses import replace

import pytest
from fake_actors import FakeActors
from ray.exceptions import RayActorError, RayTaskError

from ekya.control.options import LoopOptions, StreamHome
from ekya.control.share_ledger import ShareLedger
from ekya.core import events as ev
from ekya.core.configs import InferenceConfig
from ekya.core.shares import Work, inference_holder, preparation_holder, retraining_holder
from ekya.core.units import JobId, StreamId
from ekya.gpu.backends.backend import Resized
from ekya.runtime.driver.actor_processes import SHARES, RemoteCalls
from ekya.runtime.shares.share_changes import TIMEOUTS, ShareChanges, ledger_for, release_timeouts

A, B = StreamId("a"), StreamId("b")
JOB = JobId(1)
S = 1_000_000
EVERY, SECOND = InferenceConfig(1, 32), InferenceConfig(2, 32)


class Fleet(FakeActors):
    """Two streams on a pool of 1000 thousandths."""

    def __post_init__(self):
        super().__post_init__()
        self.in_flight, self.emitted, self.ended = RemoteCalls(), [], []
        ledger = ShareLedger((1000,), lambda holder: 0, TIMEOUTS)
        self.changes = ShareChanges(self, ledger, self.clock, self.in_flight, self.emitted.append)

    def reply(self, call, share_milli, took_us=5, note=""):
        """Replies to a share order."""
        call.reply(Resized(share_milli, took_us, note))
        self.in_flight.wait_replies(0)

    def serve(self, **shares_milli):
        """Has streams serve at these shares."""
        for name, share_milli in shares_milli.items():
            self.changes.set_inference(StreamId(name), EVERY, share_milli, 1)
            self.reply(self.record[-1], share_milli)
        self.take()
        self.emitted.clear()

    def begin(self, holder, share_milli, name):
        """Begins a job on an actor of this name."""
        self.changes.start_job(holder, share_milli, 1, self.actor(name).start.remote)


@pytest.fixture
def fleet(monkeypatch):
    return Fleet(names=(A, B)).install(monkeypatch)


def test_job_begins_when_an_inference_has_released_its_share(fleet):
    fleet.serve(a=800, b=200)
    fleet.changes.set_inference(A, SECOND, 300, 2)
    fleet.begin(retraining_holder(B, JOB), 500, "retraining/b")
    (shrink,) = fleet.record
    assert shrink.group == SHARES, "it does not wait behind other calls of the actor"
    assert fleet.take() == [("inference/a", "set_inference", A, SECOND, 300, 3)]
    fleet.clock.now = 70_000
    fleet.reply(shrink, 300, 60_000)
    assert fleet.emitted == [ev.ShareResized(70_000, inference_holder(A), 2, 300, 60_000)]
    assert fleet.take() == [("retraining/b", "start", 500, 4)]


def test_event_has_the_share_that_the_handle_reports(fleet):
    fleet.serve(a=100)
    fleet.changes.set_inference(A, EVERY, 400, 2)
    fleet.reply(fleet.record[-1], 280, 9, "others have the rest")
    assert fleet.emitted == [ev.ShareResized(0, inference_holder(A), 2, 280, 9, "others have the rest")]


def test_other_lambda_at_the_same_share_is_no_share_change(fleet):
    fleet.serve(a=100)
    fleet.changes.set_inference(A, SECOND, 100, 2)
    (call,) = fleet.record
    assert fleet.take() == [("inference/a", "set_inference", A, SECOND, 100, 2)]
    fleet.reply(call, 100)
    assert fleet.emitted == []


def test_retraining_is_resized_paused_and_ended(fleet):
    holder = retraining_holder(A, JOB)
    fleet.begin(holder, 500, "retraining/a")
    fleet.changes.resize_job(holder, 300, 2)
    fleet.changes.resize_job(holder, 0, 3)
    fleet.changes.end_job(holder)
    assert fleet.take() == [
        ("retraining/a", "start", 500, 1),
        ("retraining/a", "resize_retraining", A, JOB, 300, 2),
        ("retraining/a", "resize_retraining", A, JOB, 0, 3),
        ("retraining/a", "stop_retraining", A, JOB),
    ]


def test_preparation_is_begun_resized_and_ended(fleet):
    holder = preparation_holder(4)
    fleet.begin(holder, 500, "micro-profiler")
    fleet.changes.resize_job(holder, 600, 2)
    fleet.changes.end_job(holder)
    assert fleet.take() == [
        ("micro-profiler", "start", 500, 1),
        ("micro-profiler", "resize_preparation", 4, 600, 2),
        ("micro-profiler", "end_preparation", 4),
    ]


def test_job_that_ends_before_its_share_is_free_never_begins(fleet):
    fleet.serve(a=1000)
    fleet.changes.set_inference(A, EVERY, 200, 2)
    (shrink,) = fleet.record
    fleet.begin(retraining_holder(B, JOB), 800, "retraining/b")
    fleet.changes.end_job(retraining_holder(B, JOB))
    fleet.take()
    fleet.reply(shrink, 200)
    assert fleet.take() == []


def test_share_of_a_lost_stream_goes_to_a_waiting_one(fleet):
    fleet.serve(a=800, b=200)
    fleet.changes.release_inference(A)
    (release,) = fleet.record
    fleet.changes.set_inference(B, EVERY, 1000, 2)
    assert fleet.take() == [("inference/a", "set_inference", A, EVERY, 0, 3)]
    fleet.reply(release, 0)
    assert fleet.take() == [("inference/b", "set_inference", B, EVERY, 1000, 4)]


def test_stream_that_never_served_releases_nothing(fleet):
    fleet.changes.release_inference(A)
    assert fleet.record == []


def test_overdue_holder_is_ended_and_its_share_free_after_its_death(fleet):
    fleet.serve(a=800, b=200)
    fleet.changes.set_inference(A, EVERY, 100, 2)
    fleet.changes.set_inference(B, EVERY, 900, 2)
    limit_us = TIMEOUTS.limits_us[Work.INFERENCE]
    fleet.clock.now = TIMEOUTS.growers_us
    fleet.changes.pass_time(fleet.ended.append)
    assert fleet.changes.left_s() == (limit_us - fleet.clock.now) / S
    fleet.clock.now = limit_us
    fleet.take()
    fleet.changes.pass_time(fleet.ended.append)
    assert fleet.emitted == [ev.ShareOverdue(limit_us, inference_holder(A), 2, limit_us)]
    assert fleet.ended == [inference_holder(A)]
    assert fleet.take() == []
    fleet.changes.release_worker(Work.INFERENCE, A)
    assert fleet.take() == [("inference/b", "set_inference", B, EVERY, 900, 4)]
    assert fleet.changes.left_s() == float("inf")


def test_death_of_a_worker_removes_all_its_jobs_and_no_others(fleet):
    fleet.begin(retraining_holder(A, JOB), 400, "retraining/a")
    fleet.begin(retraining_holder(A, JobId(2)), 400, "retraining/a")
    fleet.changes.set_inference(A, EVERY, 200, 1)
    fleet.changes.set_inference(B, EVERY, 500, 1)
    fleet.take()
    fleet.changes.release_worker(Work.RETRAINING, A)
    assert fleet.take() == [("inference/b", "set_inference", B, EVERY, 500, 4)]


@pytest.mark.parametrize(
    ("error", "logged"),
    [(RayActorError(), 0), (RayTaskError("resize", "a trace", ValueError("broken")), 1)],
    ids=["dead", "broken"],
)
def test_failed_order_does_not_confirm_a_share(fleet, caplog, error, logged):
    fleet.serve(a=1000)
    fleet.changes.set_inference(A, EVERY, 100, 2)
    fleet.record[-1].fail(error)
    fleet.in_flight.wait_replies(0)
    fleet.changes.set_inference(B, EVERY, 900, 2)
    assert fleet.emitted == []
    assert fleet.changes.left_s() == TIMEOUTS.growers_us / S
    assert len(caplog.records) == logged


def test_retraining_that_could_not_be_sent_has_failed_and_frees_its_share(fleet):
    fleet.begin(retraining_holder(A, JOB), 1000, "retraining/a")
    fleet.record[-1].fail(RayTaskError("start", "a trace", ValueError("its weights are lost")))
    fleet.take()
    fleet.in_flight.wait_replies(0)
    (failed,) = fleet.emitted
    assert (type(failed), failed.stream, failed.job) == (ev.RetrainFailed, A, JOB)
    assert "its weights are lost" in failed.reason
    (stop,) = fleet.record
    assert fleet.take() == [("retraining/a", "stop_retraining", A, JOB)]
    fleet.reply(stop, 0)
    fleet.begin(retraining_holder(B, JobId(2)), 1000, "retraining/b")
    assert fleet.take() == [("retraining/b", "start", 1000, 3)]


def options(**changes):
    return replace(LoopOptions(S, 1, 2000, 100, 100, 0.0, 500, S, S, (), (), ()), **changes)


def test_ledger_of_cores_has_one_pool():
    ledger = ledger_for(options(), {}.__getitem__)
    assert ledger.set_target(inference_holder(A), 1500, 1, 0)[0].share_milli == 1500


def test_ledger_of_gpus_has_a_pool_for_each():
    homes = (StreamHome(A, 0),)
    ledger = ledger_for(options(capacity_milli=1400, homes=homes), {A: 0, B: 1}.__getitem__)
    assert (ledger.free_milli(0), ledger.free_milli(1)) == (1000, 400)
    for holder in (inference_holder(A), retraining_holder(A, JOB), preparation_holder(1)):
        ledger.set_target(holder, 300, 1, 0)
    ledger.set_target(inference_holder(B), 100, 1, 0)
    assert (ledger.free_milli(0), ledger.free_milli(1)) == (100, 300)


def test_ledger_of_nodes_has_the_cores_of_each_in_a_pool():
    homes, pools = (StreamHome(A, 1), StreamHome(B, 2)), (2000, 400)
    nodes = options(capacity_milli=2400, homes=homes, pools_milli=pools)
    ledger = ledger_for(nodes, {A: 1, B: 2}.__getitem__)
    ledger.set_target(inference_holder(A), 900, 1, 0)
    ledger.set_target(retraining_holder(A, JOB), 700, 1, 0)
    ledger.set_target(inference_holder(B), 300, 1, 0)
    assert (ledger.free_milli(0), ledger.free_milli(1)) == (400, 100)


def test_timeouts_grow_with_the_length_of_a_batch():
    slow = release_timeouts(0.5)
    assert release_timeouts(0.0) == TIMEOUTS
    assert slow.growers_us == TIMEOUTS.growers_us
    for work, limit_us in TIMEOUTS.limits_us.items():
        assert slow.limits_us[work] == limit_us + 50_000_000

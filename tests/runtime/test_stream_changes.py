"""Tests of streams that are added to a live run, join later, are paused and removed, with fake actors."""

import pytest
from fake_actors import SETTINGS, FakeActors, events_of, make_executor, swapped
from operated import COSTS, shipped_fleet
from ray.exceptions import RayActorError, RayError

from ekya.control.share_ledger import ShareLedger
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core import requests as rq
from ekya.core.configs import InferenceConfig
from ekya.core.errors import UserError
from ekya.core.units import StreamId
from ekya.gpu.backends.backend import Resized
from ekya.runtime.actors.actor_kinds import Ready
from ekya.runtime.driver.stream_changes import LateStreams
from ekya.runtime.shares.share_changes import TIMEOUTS

CAM, OTHER, NEW = "cam", "other", "new"
INFERENCE, RETRAINING = ev.Role.INFERENCE, ev.Role.RETRAINING
READY = Ready(SETTINGS)


class Run:
    """Executor of two streams with an inference share of 400 each, to which a third can be added."""

    def __init__(self, actors):
        self.actors = actors
        actors.fleet = shipped_fleet(*actors.names)
        self.ledger = ShareLedger((1000,), lambda _holder: 0, TIMEOUTS, 1)
        self.executor = make_executor(actors, ledger=self.ledger)
        self.changes = self.executor.changes
        self.execute(*(cmd.SetInference(one, InferenceConfig(1, 32), 400, 1) for one in actors.streams))
        self.reply("set_inference")
        self.events()

    @property
    def profiler(self):
        return self.actors.preparation

    def execute(self, *commands):
        self.executor.execute_commands(commands)

    def add(self, stream=NEW):
        """Begins to add a stream; returns the call that opens it, and why it failed once it did."""
        others = [one for one in self.actors.streams if one != stream]
        told = []
        self.changes.add_stream(shipped_fleet(*others, stream), stream, COSTS, told.append)
        return self.actors.calls("admit_stream", self.actors.streams[stream].inference)[-1], told

    def added(self, stream=NEW):
        """Adds a stream; returns the events that follow."""
        call, told = self.add(stream)
        call.reply(READY)
        events = self.events()
        assert told == [None]
        return events

    def reply(self, method):
        """Replies to all calls of a method."""
        for call in self.actors.calls(method):
            if not call.references[0].done:
                call.reply()

    def emit(self, stream, *events):
        """Emits events of a stream's inference, and returns those that reach the loop."""
        self.actors.emit(self.actors.streams[stream].inference, *events)
        return self.events()

    def kill(self, *actors):
        """Ends processes, and returns the events that reach the loop."""
        for actor in actors:
            self.actors.kill(actor)
        return self.events()

    def workers(self, stream):
        return [self.actors.streams[stream].worker(role) for role in ev.Role]

    def remove(self, stream):
        """Removes a stream whose processes end; returns its events."""
        workers = self.workers(stream)
        self.changes.remove_stream(stream)
        return self.kill(*workers)

    def events(self):
        """Returns the events that follow from all replies given so far."""
        events = list(events_of(self.executor, self.actors))
        while more := events_of(self.executor, self.actors):
            events += more
        return events


def kinds(events):
    return [(type(event), event.stream) for event in events]


def lost(stream=NEW):
    return ev.StreamLost(0, stream, "no frames")


def died(stream, role=INFERENCE):
    return ev.WorkerDied(0, stream, role, "killed")


@pytest.fixture
def run(monkeypatch):
    return Run(FakeActors((CAM, OTHER)).install(monkeypatch))


@pytest.fixture
def shared(monkeypatch):
    """The same with all inference in one process."""
    return Run(FakeActors((CAM, OTHER), shared=True).install(monkeypatch))


# Adding


def test_events_of_a_stream_that_is_being_added_follow_its_addition(run):
    call, told = run.add()
    run.actors.clock.now = 1000
    assert run.emit(NEW, lost(), ev.ShareMeasured(0, NEW, INFERENCE, 0)) == []
    assert run.kill(run.actors.streams[NEW].retraining) == []
    assert kinds(run.emit(CAM, lost(CAM))) == [(ev.StreamLost, CAM)], "others do not wait"
    assert told == []
    call.reply(READY)
    events = run.events()
    assert kinds(events) == [(ev.StreamAdded, NEW), (ev.StreamLost, NEW), (ev.WorkerDied, NEW)]
    assert ev.in_order(events)[0] == events[0], "the loop does not sort them before it"
    assert told == [None]
    assert run.emit(NEW, ev.StreamBack(0, NEW)) == [ev.StreamBack(0, NEW)]


def test_added_stream_is_known_to_the_micro_profiler_before_it_is_prepared(run):
    run.added()
    methods = [call.method for call in run.actors.record if NEW in call.arguments]
    assert methods.index("admit_stream") < methods.index("load_model")
    known = run.actors.arguments("load_model", run.profiler)[-1]
    assert known == (NEW, SETTINGS, 0, "base")


@pytest.mark.parametrize("fails", ["error", "decoder", "process"])
def test_stream_that_does_not_open_is_forgotten_with_its_events(run, fails):
    call, told = run.add()
    inference, retraining = run.workers(NEW)
    run.emit(NEW, lost())
    match fails:
        case "error":
            call.fail(RayError("no such address"))
        case "decoder":
            call.reply(Ready(SETTINGS, "killed by SIGABRT"))
        case "process":
            call.fail(RayActorError())
            run.actors.kill(inference)
    assert run.events() == []
    (reason,) = told
    assert reason
    assert retraining in run.actors.killed
    assert run.changes.is_leaving(NEW), "its processes have not ended"
    left = [retraining] if fails == "process" else [inference, retraining]
    assert run.kill(*left) == []
    assert not run.changes.is_leaving(NEW)
    assert NEW not in run.actors.streams
    assert kinds(run.added()) == [(ev.StreamAdded, NEW)], "it can be tried again"


def test_stream_whose_terms_no_inference_keeps_is_refused_and_the_others_go_on(run, monkeypatch):
    def refuse(*_):
        raise UserError("key 'streams.new.max_age_s': 0.1 is too little")

    call, told = run.add()
    monkeypatch.setattr("ekya.runtime.driver.stream_changes.first_inference_options", refuse)
    call.reply(READY)
    assert run.events() == []
    assert told == ["key 'streams.new.max_age_s': 0.1 is too little"]
    assert run.changes.is_leaving(NEW)


def test_stream_that_does_not_open_leaves_a_process_of_others(shared):
    call, _ = shared.add()
    call.fail(RayError("no such address"))
    shared.events()
    process = shared.actors.streams[CAM].inference
    assert process not in shared.actors.killed
    assert shared.emit(CAM, lost(NEW), lost(CAM)) == [lost(CAM)]
    assert shared.actors.arguments("remove_stream", process) == [(NEW,)]
    shared.reply("remove_stream")
    shared.kill(shared.actors.streams[NEW].retraining)
    assert NEW not in shared.actors.streams


def test_micro_profiler_that_dies_while_a_stream_is_added_knows_it_later(run):
    call, told = run.add()
    assert [type(event) for event in run.kill(run.profiler)] == [ev.ProfilerDown]
    assert run.profiler.name == "micro-profiler again"
    known = run.actors.calls("load_model", run.profiler)
    assert [one.arguments[0] for one in known] == [CAM, OTHER]
    run.reply("start_run")
    run.reply("load_model")
    assert [type(event) for event in run.events()] == [ev.ProfilerBack]
    call.reply(READY)
    assert kinds(run.events()) == [(ev.StreamAdded, NEW)]
    assert told == [None]
    assert run.actors.arguments("load_model", run.profiler)[-1][0] == NEW


def test_audits_pass_by_a_stream_that_is_being_added(monkeypatch):
    run = Run(FakeActors((CAM, OTHER), audits=True).install(monkeypatch))
    run.add()
    run.execute(cmd.BeginPreparation(1, 200, (cmd.PrepareStream(CAM, (), ()),)))
    assert run.actors.arguments("drain_audit_frames") == [(CAM,), (OTHER,)]


# Pausing


def test_paused_stream_releases_its_share(run):
    own = run.actors.streams[CAM]
    run.changes.pause_stream(CAM, True)
    assert run.actors.arguments("set_paused", own.inference) == [(CAM, True)]
    assert own.paused
    _, _, share_milli, _ = run.actors.arguments("set_inference", own.inference)[-1]
    assert share_milli == 0
    assert kinds(run.events()) == [(rq.StreamPaused, CAM)]
    assert run.ledger.free_milli(0) == 200, "until the batch in flight is over"
    run.actors.calls("set_inference", own.inference)[-1].reply(Resized(0, 5))
    run.events()
    assert run.ledger.free_milli(0) == 600


def test_paused_stream_goes_on(run):
    run.changes.pause_stream(CAM, True)
    run.changes.pause_stream(CAM, False)
    assert run.actors.arguments("set_paused") == [(CAM, True), (CAM, False)]
    assert [event.paused for event in run.events()] == [True, False]


def test_stream_without_a_share_is_paused(run):
    run.added()
    run.changes.pause_stream(NEW, True)
    assert kinds(run.events()) == [(rq.StreamPaused, NEW)]
    assert run.actors.calls("set_inference", run.actors.streams[NEW].inference) == []


# Removing


def test_removed_stream_is_forgotten_by_the_micro_profiler(run):
    run.changes.remove_stream(CAM)
    assert run.actors.arguments("forget_stream", run.profiler) == []
    run.kill(*run.workers(CAM))
    assert run.actors.arguments("forget_stream", run.profiler) == [(CAM,)]


def test_removed_stream_is_forgotten_when_its_workers_have_ended(run):
    inference, retraining = run.workers(CAM)
    run.changes.remove_stream(CAM)
    assert run.actors.killed == [inference, retraining]
    assert kinds(run.events()) == [(rq.StreamRemoved, CAM)]
    assert run.kill(inference) == []
    assert (run.changes.is_leaving(CAM), CAM in run.actors.streams) == (True, True)
    assert run.ledger.free_milli(0) == 600
    assert run.kill(retraining) == []
    assert (run.changes.is_leaving(CAM), CAM in run.actors.streams) == (False, False)


def test_events_of_a_removed_stream_are_dropped(shared):
    shared.changes.remove_stream(CAM)
    shared.events()
    for late in (swapped(1, CAM), died(CAM), lost(CAM), ev.ShareMeasured(0, CAM, INFERENCE, 5)):
        assert shared.emit(OTHER, late, lost(OTHER)) == [lost(OTHER)]
    shared.reply("remove_stream")
    shared.kill(shared.actors.streams[CAM].retraining)
    assert CAM not in shared.actors.streams
    assert shared.emit(OTHER, swapped(1, CAM), died(CAM)) == []


# Streams that join later


A, B, S = StreamId("a"), StreamId("b"), 1_000_000
NOW, LATER = ev.StreamAdded(0, A, ()), ev.StreamAdded(5 * S, B, ())


def test_join_returns_each_stream_at_its_time():
    late = LateStreams([LATER, NOW])
    assert late.next_us == 0
    assert late.join_due(0) == [NOW]
    assert late.next_us == 5 * S
    assert late.join_due(5 * S - 1) == []
    assert late.join_due(6 * S) == [LATER]
    assert late.next_us is None


def test_events_before_joining_are_held_back_or_dropped():
    late = LateStreams([NOW, LATER])
    late.join_due(0)
    died = ev.WorkerDied(2 * S, B, ev.Role.INFERENCE, "killed")
    assert late.let_through(died) == []
    assert late.let_through(ev.ShareMeasured(3 * S, B, ev.Role.INFERENCE, 0)) == []
    assert late.let_through(ev.NeedMeasured(3 * S, B, InferenceConfig(1, 32), 120)) == []
    assert late.let_through(ev.ShareMeasured(3 * S, A, ev.Role.INFERENCE, 0)) != []
    assert late.let_through(ev.PreparationEnded(3 * S, 1)) != []
    assert late.join_due(5 * S) == [LATER, ev.WorkerDied(5 * S, B, ev.Role.INFERENCE, "killed")]
    assert late.let_through(died) == [died]

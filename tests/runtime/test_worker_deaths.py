"""Tests of workers that die, hang and start again, of two streams whose inference shares a process."""

from types import SimpleNamespace

import pytest
from fake_actors import FakeActors, events_of, make_executor, start_retraining
from ray.exceptions import RayActorError

from ekya.control.share_ledger import ShareLedger
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.areas import Areas
from ekya.core.configs import InferenceConfig
from ekya.core.units import US_PER_S, JobId
from ekya.runtime.driver import worker_lifecycle
from ekya.runtime.driver.worker_lifecycle import HUNG_US, LOADING_US, HungActors
from ekya.runtime.shares.share_changes import TIMEOUTS

CAM, OTHER = "cam", "other"
DIED, BACK = ev.WorkerDied, ev.WorkerBack


class Run:
    """Executor of two streams with a share of 400 each."""

    def __init__(self, actors):
        self.actors = actors
        self.ledger = ShareLedger((1000,), lambda _holder: 0, TIMEOUTS, 1)
        self.executor = make_executor(actors, ledger=self.ledger)
        for stream in actors.streams:
            self.executor.execute_commands([cmd.SetInference(stream, InferenceConfig(1, 32), 400, 1)])

    @property
    def process(self):
        """The process of the first stream's inference."""
        return self.actors.streams[CAM].inference

    def events(self):
        """Returns kind and stream of the new events."""
        return [(type(event), event.stream) for event in events_of(self.executor, self.actors)]

    def kill(self, actor):
        self.actors.kill(actor)
        return self.events()

    def restart(self, stream):
        """Begins to restart a stream's inference; returns the call."""
        self.executor.execute_commands([cmd.RestartWorker(stream, ev.Role.INFERENCE)])
        return self.actors.calls("rejoin_stream")[-1]

    def reply(self, call, error=None):
        if error is None:
            call.reply()
        else:
            call.fail(error)
        return self.events()


@pytest.fixture
def run(monkeypatch):
    return Run(FakeActors((CAM, OTHER), shared=True).install(monkeypatch))


def test_shared_process_is_polled_once(run):
    assert len(run.actors.calls("poll")) == 4, "inference, two retrainings, the micro-profiler"


def test_shared_process_that_dies_is_restarted_once_with_its_streams(run):
    assert run.ledger.free_milli(0) == 200
    first = run.process
    assert run.kill(first) == [(DIED, CAM), (DIED, OTHER)]
    assert run.ledger.free_milli(0) == 1000
    joins = [run.restart(stream) for stream in (CAM, OTHER)]
    assert run.process is not first
    assert run.actors.arguments("rejoin_stream", run.process) == [(CAM,), (OTHER,)]
    assert [run.reply(join) for join in joins] == [[(BACK, CAM)], [(BACK, OTHER)]]
    assert run.kill(run.process) == [(DIED, CAM), (DIED, OTHER)]


def test_worker_that_is_back_on_another_node_says_so(run):
    run.kill(run.process)
    join, own = run.restart(CAM), run.actors.streams[CAM]
    own.config, own.left_gpu = SimpleNamespace(gpu=0), 3
    join.reply()
    (back,) = events_of(run.executor, run.actors)
    assert (back.stream, back.gpu, back.left_gpu) == (CAM, 0, 3)


def test_death_is_charged_to_the_streams_that_were_answered(run):
    run.actors.answering = frozenset({OTHER})
    run.actors.kill(run.process)
    charged = {event.stream: event.charged for event in events_of(run.executor, run.actors)}
    assert charged == {CAM: False, OTHER: True}
    join = run.restart(CAM)
    join.fail(RayActorError())
    (died,) = events_of(run.executor, run.actors)
    assert (type(died), died.stream, died.charged) == (DIED, CAM, False)


def test_process_that_dies_while_streams_join_counts_once_for_each(run):
    run.kill(run.process)
    here, not_yet = run.restart(CAM), run.restart(OTHER)
    run.reply(here)
    second = run.process
    assert run.reply(not_yet, RayActorError()) == [(DIED, OTHER)]
    third = run.restart(OTHER)
    assert run.process is not second
    assert run.kill(second) == [(DIED, CAM)]
    assert run.reply(third) == [(BACK, OTHER)]
    assert run.reply(run.restart(CAM)) == [(BACK, CAM)]


def test_stream_that_joins_a_dead_process_is_not_back(run):
    run.kill(run.process)
    join = run.restart(CAM)
    assert run.kill(run.process) == []
    assert run.reply(join) == [(DIED, CAM)]


def test_stream_that_fails_alone_joins_its_process_again(run):
    process = run.process
    run.actors.emit(process, ev.WorkerDied(0, CAM, ev.Role.INFERENCE, "ValueError: a frame"))
    assert run.events() == [(DIED, CAM)]
    assert run.ledger.free_milli(0) == 600, "its share is free, that of the other is not"
    join = run.restart(CAM)
    assert run.process is process
    assert run.kill(process) == [(DIED, OTHER)], "the death of the joining one follows from its call"
    assert run.reply(join, RayActorError()) == [(DIED, CAM)]


@pytest.mark.parametrize("paused", [True, False])
def test_camera_of_a_paused_stream_is_closed_again_once_it_has_joined(run, paused):
    run.executor.changes.pause_stream(CAM, True)
    run.events()
    run.kill(run.process)
    join = run.restart(CAM)
    if not paused:
        run.executor.changes.pause_stream(CAM, False)  # does nothing there: it has not joined yet
        run.events()
    before = len(run.actors.arguments("set_paused", run.process))
    assert run.reply(join) == [(BACK, CAM)]
    assert run.actors.arguments("set_paused", run.process)[before:] == ([(CAM, True)] if paused else [])


def test_areas_for_an_inference_that_joins_are_sent_when_it_has_joined(run):
    areas = Areas(mask=(((0.0, 0.0), (1.0, 0.0), (1.0, 0.5)),))
    run.kill(run.process)
    join = run.restart(CAM)
    run.executor.execute_commands([cmd.SetAreas(CAM, areas)])
    assert run.actors.arguments("change_areas") == [(CAM, areas)], "the next one begins with them"
    assert run.actors.calls("set_areas") == []
    assert run.reply(join) == [(BACK, CAM)]
    assert run.actors.arguments("set_areas", run.process) == [(CAM, areas)]


def test_weights_for_an_inference_that_joins_are_sent_when_it_has_joined(run):
    """Before, the process would ignore them."""
    run.executor.execute_commands([start_retraining(CAM, 1), start_retraining(OTHER, 2)])
    run.kill(run.process)
    first = run.restart(CAM)
    run.executor.execute_commands([cmd.ServeModel(CAM, JobId(1), 4), cmd.RollBack(CAM, "worse")])
    assert run.actors.calls("receive_checkpoint") == []
    assert run.reply(first, RayActorError()) == [(DIED, CAM)]
    again = run.restart(CAM)
    assert run.actors.calls("receive_checkpoint") == []
    assert run.reply(again) == [(BACK, CAM)]
    assert run.actors.arguments("receive_checkpoint", run.process)[0][-2:] == (1, JobId(1))


def test_weights_for_a_stream_that_is_set_aside_while_it_joins_are_dropped(run):
    run.executor.execute_commands([start_retraining(CAM, 1)])
    run.kill(run.process)
    join = run.restart(CAM)
    run.executor.execute_commands([cmd.ServeModel(CAM, JobId(1), 4), cmd.SetAside(CAM, "it keeps dying")])
    run.reply(join)
    assert run.actors.calls("receive_checkpoint") == []


def test_stream_that_dies_while_it_is_prepared_is_started_again(run):
    asked = tuple(cmd.PrepareStream(one, (), ()) for one in (CAM, OTHER))
    run.executor.execute_commands([cmd.BeginPreparation(1, 200, asked)])
    assert run.kill(run.process) == [(DIED, CAM), (DIED, OTHER)]
    assert [run.reply(run.restart(one)) for one in (CAM, OTHER)] == [[(BACK, CAM)], [(BACK, OTHER)]]


def test_stream_set_aside_leaves_and_the_last_one_ends_the_process(run):
    run.executor.execute_commands([cmd.SetAside(CAM, "it died too often")])
    (leave,) = run.actors.calls("remove_stream", run.process)
    assert leave.arguments == (CAM,)
    assert run.actors.killed == [run.actors.streams[CAM].retraining]
    assert run.ledger.free_milli(0) == 200, "its share is used until it has left"
    assert run.reply(leave) == []
    assert run.ledger.free_milli(0) == 600
    assert run.kill(run.process) == [(DIED, OTHER)]
    run.restart(OTHER)
    assert run.actors.arguments("rejoin_stream") == [(OTHER,)]
    run.executor.execute_commands([cmd.SetAside(OTHER, "it died too often")])
    assert run.actors.killed[1:] == [run.process, run.actors.streams[OTHER].retraining]


def test_stream_set_aside_is_started_again_when_it_is_readmitted(run):
    run.executor.execute_commands([cmd.SetAside(CAM, "it died too often")])
    (leave,) = run.actors.calls("remove_stream", run.process)
    assert run.reply(leave) == []
    join = run.restart(CAM)
    assert run.reply(join) == [(BACK, CAM)]
    assert run.kill(run.process) == [(DIED, CAM), (DIED, OTHER)], "its deaths count again"


def set_aside_and_readmitted(run, *streams):
    """Sets streams aside; returns the calls by which they start again at once."""
    run.executor.execute_commands([cmd.SetAside(stream, "it died too often") for stream in streams])
    return [run.restart(stream) for stream in streams]


def test_late_leave_of_a_stream_that_is_readmitted_at_once_ends_nothing(run):
    (join,) = set_aside_and_readmitted(run, CAM)
    (leave,) = run.actors.calls("remove_stream", run.process)
    assert run.reply(join) == [(BACK, CAM)]
    assert run.reply(leave) == []
    assert run.ledger.free_milli(0) == 200, "its share is in use"
    assert run.kill(run.process) == [(DIED, CAM), (DIED, OTHER)]


def test_late_death_of_a_process_is_not_that_of_streams_that_are_readmitted(run):
    first = run.process
    run.actors.dead.append(first)
    joins = set_aside_and_readmitted(run, CAM, OTHER)
    assert run.process is not first
    assert [run.reply(join) for join in joins] == [[(BACK, CAM)], [(BACK, OTHER)]]
    assert run.kill(first) == []
    assert run.ledger.free_milli(0) == 200


def test_share_of_a_retraining_that_was_sent_to_a_worker_that_never_came_is_free(run):
    retraining = run.actors.streams[CAM].retraining
    run.actors.kill(retraining)
    assert run.events() == [(DIED, CAM)]
    run.executor.execute_commands([cmd.RestartWorker(CAM, ev.Role.RETRAINING)])
    begin = run.actors.calls("rejoin_stream")[-1]
    run.executor.execute_commands([start_retraining(CAM, share_milli=100)])
    assert run.ledger.free_milli(0) == 100
    assert run.reply(begin, RayActorError()) == [(DIED, CAM)]
    assert run.ledger.free_milli(0) == 200


def test_retraining_waits_until_the_trainer_to_which_it_moves_has_its_stream(run):
    old, free = run.actors.streams[CAM].retraining, run.actors.actor("free")
    run.actors.free_trainer = free
    run.executor.execute_commands([start_retraining(CAM, share_milli=100)])
    (admit,) = run.actors.calls("admit_stream", free)
    assert run.actors.arguments("start_retraining", free)[0][-1] is admit.references[0]
    assert run.reply(admit) == []
    assert run.kill(old) == [], "no retraining is there any more"
    assert run.kill(free) == [(DIED, CAM)]
    assert run.ledger.free_milli(0) == 200


def test_retraining_whose_new_trainer_dies_meanwhile_has_died(run):
    run.actors.free_trainer = run.actors.actor("free")
    run.executor.execute_commands([start_retraining(CAM, share_milli=100)])
    (admit,) = run.actors.calls("admit_stream", run.actors.free_trainer)
    assert run.reply(admit, RayActorError()) == [(DIED, CAM)]
    assert run.ledger.free_milli(0) == 200


def test_worker_that_keeps_its_share_is_killed_and_dies_with_the_reason(run):
    run.executor.execute_commands([cmd.SetInference(CAM, InferenceConfig(1, 32), 100, 2)])
    (overdue,) = run.executor.wait(60_000_000).events
    assert isinstance(overdue, ev.ShareOverdue)
    assert run.actors.killed == [run.process]
    run.actors.kill(run.process)
    died, other = events_of(run.executor, run.actors)
    assert died.reason == "it did not release its share in time" != other.reason
    assert (died.charged, other.charged) == (True, False)


def pass_s(run, seconds, *alive):
    """Lets time pass, in which these actors reply to their polls."""
    events = []
    for _ in range(seconds):
        for actor in alive:
            run.actors.emit(actor)
        events += run.executor.wait(run.actors.clock.now + 1_000_000).events
    return [(type(event), event.stream) for event in events]


def test_process_that_hangs_is_killed(run):
    run.actors.emit(run.process)
    others = [run.actors.preparation, *(own.retraining for own in run.actors.streams.values())]
    assert pass_s(run, 58, *others) == []
    assert run.actors.killed == []
    pass_s(run, 5, *others)
    assert run.actors.killed == [run.process]
    assert run.kill(run.process) == [(DIED, CAM), (DIED, OTHER)]


def test_process_that_loads_has_longer(run):
    pass_s(run, 100)
    assert run.actors.killed == []
    loading = [run.actors.preparation, *(own.retraining for own in run.actors.streams.values())]
    pass_s(run, 520, *loading)
    assert run.actors.killed == [run.process]


def test_spares_are_made_in_every_wait_but_while_a_worker_starts_again(run, monkeypatch):
    monkeypatch.setattr(worker_lifecycle, "_SPARES_S", 0.0)
    monkeypatch.setattr(worker_lifecycle, "_FIRST_SPARES_US", 0)

    def looks():
        before = run.actors.spares_made
        run.executor.wait(run.actors.clock.now)
        return run.actors.spares_made - before

    assert looks() == 1
    run.kill(run.process)
    joins = [run.restart(stream) for stream in (CAM, OTHER)]
    assert looks() == 0
    for join in joins:
        run.reply(join)
    assert looks() == 1


# Actors that hang


def looked_at(hung, from_s, to_s):
    """Looks once a second, and returns what hangs."""
    return [actor for at_s in range(from_s, to_s) for actor in hung.pop_hung(at_s * US_PER_S)]


def test_actor_that_does_not_reply_is_named_once():
    hung = HungActors()
    hung.note_reply("a", 0)
    hung.note_reply("b", 50 * US_PER_S)
    assert looked_at(hung, 0, HUNG_US // US_PER_S + 1) == []
    assert looked_at(hung, HUNG_US // US_PER_S + 1, 100) == ["a"]
    hung.forget_actor("b")
    assert looked_at(hung, 100, 200) == []


def test_actor_that_loads_has_longer():
    hung = HungActors()
    hung.watch_loading("a", 0)
    hung.watch_loading("b", 0)
    hung.note_reply("b", 100 * US_PER_S)
    assert looked_at(hung, 0, LOADING_US // US_PER_S + 100) == ["b", "a"]


def test_pause_of_the_caller_is_not_held_against_actors():
    hung = HungActors()
    hung.note_reply("a", 0)
    assert looked_at(hung, 0, 50) == []
    assert looked_at(hung, 1000, 1010) == []
    assert looked_at(hung, 1010, 1020) == ["a"]

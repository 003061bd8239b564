"""Tests of the live executor's calls of actors, with fake actors that only record them."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import ray
from ray.exceptions import RayActorError

from ekya.control.resizing import ShareLedger
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.profile import FamilyCurve
from ekya.core.units import BASE_VERSION, JobId, ModelVersion, StreamId
from ekya.runtime.executor import RayExecutor
from ekya.runtime.fleet_actors import StreamActors
from ekya.runtime.mailbox import RunClock
from ekya.runtime.ready import Ready
from ekya.runtime.share_changes import PATIENCE

CAM, OTHER = StreamId("cam"), StreamId("other")
GAMMA = RetrainConfig(4, 16, 0, 0, 1.0)
CURVE = FamilyCurve(16, 0, 0, 64, (0.4, 0.5), 1.0, 0.5)


@dataclass
class Method:
    """Method of a fake actor; returns a new placeholder if no result is given."""

    name: str
    asked: list
    gives: object

    def options(self, **_options):
        return self

    def remote(self, *arguments):
        self.asked.append((self.name, arguments))
        return self.gives if self.gives is not None else object()


@dataclass(eq=False)
class Actor:
    """Fake actor that records its calls."""

    asked: list = field(default_factory=list)
    gives: dict = field(default_factory=dict)

    def __getattr__(self, name):
        return Method(name, self.asked, self.gives.get(name))

    def calls(self, name):
        return [arguments for called, arguments in self.asked if called == name]


@pytest.fixture
def own():
    return StreamActors(None, Actor(), Actor(), "base", "base", BASE_VERSION)


@pytest.fixture
def executor(own):
    actors = SimpleNamespace(streams={CAM: own}, preparation=Actor())
    ready = {CAM: Ready(SimpleNamespace())}
    ledger = ShareLedger((9000,), lambda _holder: 0, PATIENCE, 1)
    made = RayExecutor(actors, ready, [], RunClock(0), lambda _stream, _labels: None, ledger)
    made.execute([cmd.StartRetraining(CAM, JobId(1), 1, GAMMA, 500, 0.8, 1.0)])
    own.retraining.gives["send"] = ("first", 0.9)
    return made


def prepare(executor, window):
    executor.execute([cmd.BeginPreparation(window, 500, (cmd.PrepareStream(CAM, (), ()),))])


def earlier_of(executor):
    return [arguments[-1] for arguments in executor._actors.preparation.calls("hand_in")]


def test_only_weights_that_came_since_the_last_labels_are_compared(executor):
    prepare(executor, 1)
    prepare(executor, 2)
    executor.execute([cmd.ServeModel(CAM, JobId(1), 4)])
    prepare(executor, 3)
    prepare(executor, 4)
    assert earlier_of(executor) == [None, None, BASE_VERSION, None]


def test_of_several_weights_in_a_window_the_last_are_compared_with_those_before_the_window(executor):
    prepare(executor, 1)
    executor.execute([cmd.ServeModel(CAM, JobId(1), epoch) for epoch in (2, 3, 4)])
    prepare(executor, 2)
    assert earlier_of(executor) == [None, BASE_VERSION]


def test_going_back_hands_inference_what_the_object_store_still_has(executor, own):
    prepare(executor, 1)
    executor.execute([cmd.ServeModel(CAM, JobId(1), 4)])
    prepare(executor, 2)
    executor.execute([cmd.RollBack(CAM, "worse")])
    assert own.inference.calls("roll_back") == [(CAM, "base", ModelVersion(2), BASE_VERSION)]
    assert (own.version, own.newest_weights) == (2, "base")
    known = executor._actors.preparation.calls("know")
    assert [(version, weights) for _, _, version, weights in known] == [
        (0, "base"),
        (1, "first"),
        (2, "base"),
    ]
    executor.execute([cmd.StartRetraining(CAM, JobId(2), 2, GAMMA, 500, 0.8, 1.0)])
    assert own.retraining.calls("start")[-1][2] == "base", "what serves is what is retrained"


def fail(monkeypatch):
    """Makes every reply a ``RayActorError``."""

    def die(_reference):
        raise RayActorError

    monkeypatch.setattr(ray, "get", die)


def test_a_stream_that_cannot_hand_in_is_not_waited_for(executor, monkeypatch, caplog):
    preparation = executor._actors.preparation
    preparation.gives["hand_in"] = "handed in"
    prepare(executor, 1)
    window, stream, *_, weights, _ = preparation.calls("hand_in")[0]
    assert (window, stream, weights.args) == (1, CAM, ("base",))
    heard(executor, monkeypatch, "handed in", RayActorError())
    assert preparation.calls("hand_in_failed") == [(1, CAM)]
    assert "cam: window 1 goes without its labels" in caplog.text


def test_what_a_stream_could_not_hand_in_to_a_dead_micro_profiler_is_not_told_to_the_next_one(
    executor, monkeypatch
):
    executor._actors.preparation.gives["hand_in"] = "handed in"
    prepare(executor, 1)
    executor._actors.make_preparation, executor._actors.has_died = Actor, lambda _actor: None
    fail(monkeypatch)
    executor._hear(poll_of(executor, executor._actors.preparation))
    executor._hear("handed in")
    told = [name for name, _ in executor._actors.preparation.asked]
    assert told == ["begin_run", "poll", "know"]


def test_a_window_that_opens_while_the_micro_profiler_starts_waits_for_it_and_what_it_loads(
    executor, monkeypatch, caplog
):
    def started_again():
        return Actor(gives={"begin_run": "begun", "know": "known"})

    executor._actors.make_preparation, executor._actors.has_died = started_again, lambda _actor: None
    fail(monkeypatch)
    executor._hear(poll_of(executor, executor._actors.preparation))
    prepare(executor, 1)
    assert executor._actors.preparation.calls("begin") == []
    assert [type(event) for event in executor._outbox] == [ev.PreparationEnded]
    assert "window 1 has no labels until the micro-profiler is back" in caplog.text
    executor._outbox.clear()
    monkeypatch.setattr(ray, "get", lambda _reference: None)
    executor._hear("begun")
    assert executor._outbox == []
    executor._hear("known")
    assert [type(event) for event in executor._outbox] == [ev.ProfilerBack]
    prepare(executor, 1)
    assert len(executor._actors.preparation.calls("begin")) == 1


def passed_to(own):
    return [arguments[4] for arguments in own.retraining.calls("start")]


def tell_of_a_trial(executor, monkeypatch):
    """Reports the trial of a family, and the arrival of the crops that it passed."""
    told = [ev.ProfileReady(0, CAM, 1, CURVE, 0.1)]
    monkeypatch.setattr(ray, "get", lambda reference: told if reference == "news" else "passed crops")
    executor._actors.preparation.gives["passed"] = ("what passed", "it has come")
    executor._news._asked["news"] = executor._actors.preparation
    executor._hear("news")
    executor._hear("it has come")


def start_again(executor, job=2):
    executor.execute([cmd.StartRetraining(CAM, JobId(job), 1, GAMMA, 500, 0.8, 1.0)])


def test_a_retraining_is_handed_what_the_micro_profiler_has_passed(executor, own, monkeypatch):
    prepare(executor, 1)
    tell_of_a_trial(executor, monkeypatch)
    assert executor._actors.preparation.calls("passed") == [(1, CAM)]
    start_again(executor)
    assert passed_to(own) == [None, "what passed"]


def test_what_passed_through_other_weights_or_in_another_window_is_not_handed_over(
    executor, own, monkeypatch
):
    prepare(executor, 1)
    tell_of_a_trial(executor, monkeypatch)
    own.newest_weights = "those of a worker that was started again"
    start_again(executor)
    own.newest_weights = "base"
    prepare(executor, 2)
    start_again(executor, job=3)
    assert passed_to(own) == [None, None, None]


def test_what_is_still_on_its_way_is_not_waited_for(executor, own, monkeypatch):
    prepare(executor, 1)
    executor._actors.preparation.gives["passed"] = ("what passed", "it has come")
    monkeypatch.setattr(ray, "get", lambda _: [ev.ProfileReady(0, CAM, 1, CURVE, 0.1)])
    executor._news._asked["news"] = executor._actors.preparation
    executor._hear("news")
    start_again(executor)
    assert passed_to(own) == [None, None]


def test_there_is_nothing_to_go_back_to_twice_nor_after_other_labels(executor, own):
    executor.execute([cmd.RollBack(CAM, "nothing was compared")])
    prepare(executor, 1)
    executor.execute([cmd.ServeModel(CAM, JobId(1), 4)])
    prepare(executor, 2)
    executor.execute([cmd.RollBack(CAM, "worse"), cmd.RollBack(CAM, "once more")])
    prepare(executor, 3)
    executor.execute([cmd.RollBack(CAM, "late")])
    assert len(own.inference.calls("roll_back")) == 1
    assert earlier_of(executor) == [None, BASE_VERSION, None]


@pytest.fixture
def on_the_gpu(executor, own):
    """Executor that shares weights from trainer to inference over CUDA IPC, with a hot swap under way."""
    executor._weights._over_ipc = True
    own.retraining.gives |= {"share": ("shared", "its accuracy"), "send": ("bytes", "kept")}
    own.inference.gives["receive"] = "taken"
    executor.execute([cmd.ServeModel(CAM, JobId(1), 4)])
    return executor


def hear_of_the_swap(executor, monkeypatch):
    monkeypatch.setattr(ray, "get", lambda _: [ev.ModelSwapped(0, CAM, ModelVersion(1), JobId(1), 0.9, 5)])
    executor._news._asked["news"] = executor._actors.streams[CAM].inference
    executor._hear("news")


def test_on_the_gpu_weights_are_lent_taken_and_then_kept_and_swapped_where_that_failed(on_the_gpu, own):
    job, version = JobId(1), ModelVersion(1)
    assert own.retraining.calls("share") == [(CAM, job, version)]
    assert own.retraining.calls("send") == [(CAM, job, version, ["taken"])]
    assert own.inference.calls("receive") == [
        (CAM, "shared", "its accuracy", version, job),
        (CAM, "bytes", "kept", version, job),
    ]
    assert own.newest_weights == "bytes"


def test_through_the_object_store_nothing_is_lent(executor, own):
    executor.execute([cmd.ServeModel(CAM, JobId(1), 4)])
    assert own.retraining.calls("share") == []
    assert own.retraining.calls("send") == [(CAM, JobId(1), ModelVersion(1), [])]


def test_that_weights_serve_is_told_when_the_object_store_has_them(on_the_gpu, own, monkeypatch):
    hear_of_the_swap(on_the_gpu, monkeypatch)
    assert on_the_gpu._outbox == []
    assert own.weights == "base", "a worker that dies now is made again from what there is"
    on_the_gpu._hear("kept")
    assert [type(event) for event in on_the_gpu._outbox] == [ev.ModelSwapped]
    assert own.weights == "bytes"
    assert not on_the_gpu._weights.references


def test_of_weights_that_were_lost_with_their_trainer_it_is_never_told_that_they_serve(
    on_the_gpu, own, monkeypatch, caplog
):
    hear_of_the_swap(on_the_gpu, monkeypatch)

    def fail(_reference):
        raise ray.exceptions.RayActorError

    monkeypatch.setattr(ray, "get", fail)
    on_the_gpu._hear("kept")
    assert on_the_gpu._outbox == []
    assert own.weights == "base"
    assert "cam: weights 1 serve, and were lost with their trainer" in caplog.text


def test_weights_that_are_kept_sooner_than_those_before_them_are_told_after_them(
    on_the_gpu, own, monkeypatch
):
    """Otherwise a worker that dies would be restarted with the older weights."""
    own.retraining.gives["send"] = ("newer bytes", "newer kept")
    on_the_gpu.execute([cmd.ServeModel(CAM, JobId(1), 5)])
    swaps = [ev.ModelSwapped(0, CAM, ModelVersion(n), JobId(1), 0.9, 5) for n in (1, 2)]
    monkeypatch.setattr(ray, "get", lambda _: [*swaps, ev.RolledBack(0, CAM, ModelVersion(3), 0, 5)])
    on_the_gpu._handed[CAM, ModelVersion(3)] = "bytes of before"
    on_the_gpu._news._asked["news"] = own.inference
    for reference in ("news", "newer kept"):
        on_the_gpu._hear(reference)
        assert (on_the_gpu._outbox, own.weights) == ([], "base")
    on_the_gpu._hear("kept")
    assert [event.version for event in on_the_gpu._outbox] == [1, 2, 3]
    assert own.weights == "bytes of before"


def test_a_loan_that_fails_is_said_and_that_the_object_store_is_used(on_the_gpu, monkeypatch, caplog):
    def fail(_reference):
        raise ray.exceptions.RayError("cuIpcOpenMemHandle: CUDA_ERROR_INVALID_HANDLE")

    monkeypatch.setattr(ray, "get", fail)
    on_the_gpu._hear("taken")
    assert "CUDA IPC, in whose place the object store is used now, failed: cuIpcOpenMemHandle" in caplog.text


class Together:
    """Fake actors of a fleet whose two streams share one inference process."""

    def __init__(self):
        self.process, self.preparation = Actor(), Actor()
        self.streams = {
            stream: StreamActors(None, self.process, Actor(), "base", "base", BASE_VERSION)
            for stream in (CAM, OTHER)
        }
        self.dead, self.ended, self.made, self.spares_made = [], [], 0, 0

    def beside(self, stream, role):
        own = self.streams[stream].worker(role)
        return tuple(one for one, its in self.streams.items() if its.worker(role) is own and one != stream)

    def make_spares(self):
        self.spares_made += 1

    def make_again(self, stream, role, _started_ns):
        if self.process in self.dead:
            self.process, self.made = Actor(), self.made + 1
            for own in self.streams.values():
                own.inference = self.process
        return self.process.join.remote(stream)

    def has_died(self, actor):
        self.dead.append(actor)

    def end(self, actor):
        self.ended.append(actor)


def heard(executor, monkeypatch, reference, answer):
    def get(_):
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(ray, "get", get)
    executor._hear(reference)
    told, executor._outbox = executor._outbox, []
    return [(type(event), event.stream) for event in told]


def poll_of(executor, actor):
    return next(reference for reference, of in executor._news._asked.items() if of is actor)


@pytest.fixture
def together():
    actors = Together()
    ledger = ShareLedger((1000,), lambda _holder: 0, PATIENCE, 1)
    ready = dict.fromkeys(actors.streams, Ready(SimpleNamespace()))
    executor = RayExecutor(actors, ready, [], RunClock(0), lambda _stream, _labels: None, ledger)
    for stream in actors.streams:
        executor.execute([cmd.SetInference(stream, InferenceConfig(1, 32), 400, 1)])
    return actors, executor, ledger


def restart(executor, stream):
    executor.execute([cmd.RestartWorker(stream, ev.Role.INFERENCE)])
    return next(reference for reference, (worker, _) in executor._restarting.items() if worker[0] == stream)


def test_streams_that_share_a_process_die_with_it_and_are_made_again_in_one(together, monkeypatch):
    actors, executor, ledger = together
    first = actors.process
    assert len(executor._news._asked) == 4, "of the shared process news are asked for once"
    assert ledger.free_milli(0) == 200
    told = heard(executor, monkeypatch, poll_of(executor, first), RayActorError())
    assert told == [(ev.WorkerDied, CAM), (ev.WorkerDied, OTHER)]
    assert ledger.free_milli(0) == 1000
    backs = [restart(executor, stream) for stream in (CAM, OTHER)]
    assert actors.made == 1
    assert actors.process.calls("join") == [(CAM,), (OTHER,)]
    assert [heard(executor, monkeypatch, back, None) for back in backs] == [
        [(ev.WorkerBack, CAM)],
        [(ev.WorkerBack, OTHER)],
    ]
    told = heard(executor, monkeypatch, poll_of(executor, actors.process), RayActorError())
    assert told == [(ev.WorkerDied, CAM), (ev.WorkerDied, OTHER)]


def test_a_process_that_dies_again_while_streams_join_is_counted_once_for_each(together, monkeypatch):
    actors, executor, _ = together
    heard(executor, monkeypatch, poll_of(executor, actors.process), RayActorError())
    here, not_yet = restart(executor, CAM), restart(executor, OTHER)
    heard(executor, monkeypatch, here, None)
    second = actors.process
    assert heard(executor, monkeypatch, not_yet, RayActorError()) == [(ev.WorkerDied, OTHER)]
    third = restart(executor, OTHER)
    assert actors.process is not second
    assert heard(executor, monkeypatch, poll_of(executor, second), RayActorError()) == [(ev.WorkerDied, CAM)]
    assert heard(executor, monkeypatch, third, None) == [(ev.WorkerBack, OTHER)]
    assert heard(executor, monkeypatch, restart(executor, CAM), None) == [(ev.WorkerBack, CAM)]
    assert actors.made == 2


def test_a_stream_that_is_back_in_a_process_whose_death_was_heard_first_is_not_back(together, monkeypatch):
    actors, executor, _ = together
    heard(executor, monkeypatch, poll_of(executor, actors.process), RayActorError())
    back = restart(executor, CAM)
    assert heard(executor, monkeypatch, poll_of(executor, actors.process), RayActorError()) == []
    assert heard(executor, monkeypatch, back, None) == [(ev.WorkerDied, CAM)]


def test_a_stream_that_fails_by_itself_joins_again_where_it_was(together, monkeypatch):
    actors, executor, ledger = together
    process = actors.process
    failed = [ev.WorkerDied(0, CAM, ev.Role.INFERENCE, "ValueError: a frame")]
    told = heard(executor, monkeypatch, poll_of(executor, process), failed)
    assert told == [(ev.WorkerDied, CAM)]
    assert ledger.free_milli(0) == 600, "it has let go, and the other has not"
    back = restart(executor, CAM)
    assert actors.process is process
    told = heard(executor, monkeypatch, poll_of(executor, process), RayActorError())
    assert told == [(ev.WorkerDied, OTHER)], "who was not back yet is heard of by its restart"
    assert heard(executor, monkeypatch, back, RayActorError()) == [(ev.WorkerDied, CAM)]


def test_a_stream_that_is_set_aside_leaves_and_the_last_one_ends_the_process(together, monkeypatch):
    actors, executor, ledger = together
    executor.execute([cmd.SetAside(CAM, "it died too often")])
    assert actors.process.calls("leave") == [(CAM,)]
    assert actors.ended == [actors.streams[CAM].retraining]
    assert ledger.free_milli(0) == 200, "what it has is used until it has left"
    (leaving,) = executor._leaving
    assert heard(executor, monkeypatch, leaving, None) == []
    assert ledger.free_milli(0) == 600
    told = heard(executor, monkeypatch, poll_of(executor, actors.process), RayActorError())
    assert told == [(ev.WorkerDied, OTHER)]
    restart(executor, OTHER)
    assert actors.process.calls("join") == [(OTHER,)]
    executor.execute([cmd.SetAside(OTHER, "it died too often")])
    assert actors.process in actors.ended


def test_what_an_actor_warns_of_is_told_with_its_time_even_by_one_whose_stream_is_set_aside(
    executor, monkeypatch
):
    executor._actors.fleet = SimpleNamespace(streams=())
    executor._actors.end, executor._actors.beside = lambda _actor: None, lambda _stream, _role: ()
    executor.execute([cmd.SetAside(CAM, "so")])
    monkeypatch.setattr(ray, "get", lambda _reference: [ev.Warned(0, "inference/cam", "memory is short")])
    executor._outbox.clear()
    executor._hear(poll_of(executor, executor._actors.streams[CAM].inference))
    (told,) = executor._outbox
    assert (told.source, told.text) == ("inference/cam", "memory is short")
    assert told.t_us > 0

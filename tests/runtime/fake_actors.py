"""Fake actors of a run, whose replies a test gives one by one, in place of Ray."""

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace

import ray
from ray.exceptions import RayActorError

from ekya.control.share_ledger import ShareLedger
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.configs import RetrainConfig
from ekya.core.units import BASE_VERSION, US_PER_S, JobId, ModelVersion
from ekya.pipeline.settings import PreparationSettings
from ekya.runtime.actors.actor_kinds import Ready
from ekya.runtime.driver.executor import RayExecutor
from ekya.runtime.driver.fleet_actors import StreamActors
from ekya.runtime.shares.share_changes import TIMEOUTS

SETTINGS = PreparationSettings(("car",), 352, 10.0, 96, 1)


@dataclass(eq=False)
class Reference:
    """Reference to a reply that a test gives, or has given."""

    call: "Call"
    done: bool = False
    value: object = None
    error: Exception | None = None


@dataclass(eq=False)
class Call:
    """Call of an actor's method; it has one reference for each value that it returns."""

    actor: "FakeActor"
    method: str
    arguments: tuple
    group: str | None
    references: tuple[Reference, ...] = ()
    named: dict = field(default_factory=dict)

    def reply(self, *values):
        """Gives the values; without any, None for each."""
        for place, reference in enumerate(self.references):
            reference.done, reference.value = True, values[place] if values else None

    def fail(self, error):
        """Fails the call."""
        for reference in self.references:
            reference.done, reference.error = True, error


class FakeActor:
    """Actor that records its calls. Methods in ``replies`` reply immediately, others when a test says so."""

    def __init__(self, name, record, replies):
        self.name, self._record, self._replies = name, record, replies

    def __getattr__(self, method):
        def options(concurrency_group=None, num_returns=1):
            def remote(*arguments, **named):
                call = Call(self, method, arguments, concurrency_group, named=named)
                call.references = tuple(Reference(call) for _ in range(num_returns))
                self._record.append(call)
                if method in self._replies:
                    call.reply(*self._replies[method])
                return call.references[0] if num_returns == 1 else call.references

            return SimpleNamespace(remote=remote, options=options)

        return options()


@dataclass
class FakeClock:
    """Run time that passes only while nothing replies."""

    now: int = 0
    started_monotonic_ns: int = 0

    def now_us(self):
        return self.now


@dataclass
class FakeActors:
    """The actors of a fleet, and the parts of Ray that wait for their replies.

    Args:
        names: of the streams.
        shared: whether all streams' inference is in one process.
    """

    names: tuple[str, ...] = ("cam",)
    shared: bool = False
    clock: FakeClock = field(default_factory=FakeClock)
    record: list[Call] = field(default_factory=list)
    replies: dict[str, tuple] = field(default_factory=dict)
    killed: list[FakeActor] = field(default_factory=list)
    dead: list[FakeActor] = field(default_factory=list)
    audits: bool = False
    fleet: object = field(default_factory=lambda: SimpleNamespace(streams=(), named_secrets=""))
    spares_made: int = 0
    answering: frozenset = frozenset()
    free_trainer: FakeActor | None = None

    def __post_init__(self):
        together = self.actor("inference")
        self.preparation = self.actor("micro-profiler")
        self.streams = {
            name: StreamActors(
                None,
                together if self.shared else self.actor(f"inference/{name}"),
                self.actor(f"retraining/{name}"),
                "base",
                "base",
                BASE_VERSION,
            )
            for name in self.names
        }

    def install(self, monkeypatch):
        """Puts itself in the place of Ray's functions; returns itself."""
        monkeypatch.setattr(ray, "wait", self.wait)
        monkeypatch.setattr(ray, "get", self.get)
        return self

    def actor(self, name):
        """Makes an actor."""
        return FakeActor(name, self.record, self.replies)

    def change_fleet(self, sections):
        """Changes sections of the fleet."""
        self.fleet = self.fleet.model_copy(update=sections)

    # What a test asks and does.

    def calls(self, method, actor=None):
        """Returns the calls of a method so far, of one actor or of all."""
        return [call for call in self.record if call.method == method and actor in (None, call.actor)]

    def arguments(self, method, actor=None):
        """Returns the arguments of these calls."""
        return [call.arguments for call in self.calls(method, actor)]

    def take(self):
        """Returns the calls since the last time, without polls: name of the actor, method, arguments."""
        calls = [(one.actor.name, one.method, *one.arguments) for one in self.record if one.method != "poll"]
        self.record.clear()
        return calls

    def emit(self, actor, *events):
        """Replies to the actor's poll with events."""
        self.calls("poll", actor)[-1].reply(events)

    def kill(self, actor):
        """Fails the actor's poll, as its death does."""
        self.calls("poll", actor)[-1].fail(RayActorError())

    # What ``FleetActors`` does.

    def streams_sharing_process(self, stream, role):
        own = self.streams[stream].worker(role)
        return tuple(one for one, its in self.streams.items() if its.worker(role) is own and one != stream)

    def remake_worker(self, stream, role, started_monotonic_ns):
        own = self.streams[stream]
        old = own.worker(role)
        if old in self.dead:
            made = self.actor(f"{old.name} again")
            for its in self.streams.values():
                if its.worker(role) is old:
                    its.replace_worker(role, made)
        return own.worker(role).rejoin_stream.remote(stream)

    def make_preparation(self):
        return self.actor("micro-profiler again")

    def translate_ns(self, _actor, monotonic_ns):
        return monotonic_ns

    def home_gpu(self, _stream):
        return 0

    def end_lost(self):
        pass

    def make_spares(self):
        self.spares_made += 1

    def add_stream(self, fleet, stream, costs, started_monotonic_ns):
        self.fleet = fleet
        inference = next(iter(self.streams.values())).inference if self.shared else None
        own = StreamActors(
            None,
            inference or self.actor(f"inference/{stream}"),
            self.actor(f"retraining/{stream}"),
            "base",
            "base",
            BASE_VERSION,
        )
        self.streams[stream] = own
        self.preparation.admit_stream.remote(stream, costs)
        admitted = own.retraining.prepare.remote(stream)
        return own.inference.admit_stream.remote(stream), admitted

    def remove_stream(self, stream):
        del self.streams[stream]

    def pause_stream(self, stream, paused):
        self.streams[stream].paused = paused
        self.streams[stream].inference.set_paused.remote(stream, paused)

    def change_areas(self, stream, areas):
        self.record.append(Call(None, "change_areas", (stream, areas), None))

    def send_areas(self, stream, areas):
        self.streams[stream].inference.set_areas.remote(stream, areas)

    def note_death(self, actor, suspects=()):
        self.dead.append(actor)
        return frozenset(suspects or self.answering or self.streams)

    def move_retraining(self, stream, training, started_monotonic_ns):
        if self.free_trainer is None:
            return None
        self.streams[stream].retraining = self.free_trainer
        return self.free_trainer.admit_stream.remote(stream)

    def kill_process(self, actor):
        self.killed.append(actor)

    # What Ray does.

    def wait(self, references, num_returns=1, timeout=None):
        done = [one for one in references if one.done][:num_returns]
        if not done:
            self.clock.now += max(1, round(timeout * US_PER_S))
        return done, [one for one in references if one not in done]

    def get(self, references, timeout=None):
        if isinstance(references, list):
            return [self.get(one) for one in references]
        if not isinstance(references, Reference):
            return references
        assert references.done, f"{references.call.method} is waited for"
        if references.error is not None:
            raise references.error
        return references.value


def events_of(executor, actors):
    """Returns the events that follow from the replies given so far."""
    return executor.wait(actors.clock.now + 1).events


def make_executor(actors, *first_events, capacity_milli=9000, ledger=None, stop=None, **more):
    """Makes an executor of these actors."""
    return RayExecutor(
        actors,
        dict.fromkeys(actors.streams, Ready(SETTINGS)),
        first_events,
        actors.clock,
        lambda _stream, _labels: None,
        ledger or ShareLedger((capacity_milli,), lambda _holder: 0, TIMEOUTS),
        stop or threading.Event(),
        **more,
    )


def start_retraining(stream="cam", job=1, **named):
    """Returns a command that starts a retraining."""
    settings = {
        "window": 1,
        "config": RetrainConfig(4, 16, 0, 0, 1.0),
        "share_milli": 500,
        "expected_accuracy": 0.8,
        "expected_gpu_s": 1.0,
    }
    return cmd.StartRetraining(stream, JobId(job), **settings | named)


def labels_ready(stream="cam", window=1, **named):
    """Returns the event that a stream's labels are ready."""
    settings = {
        "training_crops": 80,
        "validation_crops": 20,
        "serving_accuracy": 0.5,
        "new_classes": False,
        "gpu_s": 0.1,
    }
    return ev.LabelsReady(7, stream, window, **settings | named)


def swapped(version, stream="cam", job=1):
    """Returns the event of a hot swap."""
    return ev.ModelSwapped(0, stream, ModelVersion(version), JobId(job), validation_accuracy=0.9, stall_us=5)

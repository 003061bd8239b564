"""Executor of the worlds on virtual time: turns commands into effects, as a discrete-event simulation.

What is common to them is here: the clock, the order of what is due, shares, preparation and retrainings. A
``World`` adds its streams, what a preparation does, and what a training costs and gives.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

from ekya.control.protocols import Batch
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.gpus import DidNotFit
from ekya.core.shares import ShareHolder, inference_holder, preparation_holder, retraining_holder
from ekya.core.speed import SpeedCurve
from ekya.core.units import ModelVersion, StreamId
from ekya.simulation.retraining import Checkpoint, DoesNotFitError, TrainingStep, VirtualRetraining
from ekya.simulation.shares import InstantShares

Due = tuple[int, int, Callable[[int], Iterable[ev.Event]]]
"""A time, a rank among what is due at that time, and the act, which takes the time and returns events.

Preparation has rank 0, retrainings have ranks above it in the order of streams.
"""

LAST = 1_000_000
"""Rank of what comes after everything else that is due at its time."""

ModelT = TypeVar("ModelT")


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """A step of a preparation.

    Attributes:
        duration_us: None for a step that never ends, for want of a share.
        finish: makes its event from the time at which it ended.
    """

    duration_us: int | None
    finish: Callable[[int], ev.Event]


class World(Protocol[ModelT]):
    """Parts that differ between the worlds on virtual time.

    Attributes:
        streams: in the order in which what is due at the same time is done.
        retrainings: the last one of each stream; kept by the executor.
        training_speed: of a retraining at a share.
        shares: of all jobs.
    """

    streams: Sequence[StreamId]
    retrainings: dict[StreamId, VirtualRetraining[ModelT]]
    training_speed: SpeedCurve
    shares: InstantShares

    def advance(self, now_us: int) -> None:
        """Lets the streams follow the clock."""

    def pending_acts(self) -> Iterable[Due]:
        """Returns what else happens in this world."""

    def ends_of_streams(self, now_us: int, at_rest: bool) -> Iterable[ev.Event]:
        """Returns ends of streams before anything else happens, or ``at_rest``, when nothing else is due."""

    def prepare(
        self, command: cmd.BeginPreparation, now_us: int
    ) -> tuple[Iterable[ev.Event], Iterator[PreparedStep]]:
        """Begins a preparation: returns events that are due immediately, and its steps."""

    def end_preparation(self, holder: ShareHolder, now_us: int) -> None:
        """Frees what a preparation needed, after its last step or at its end."""

    def set_inference(self, command: cmd.SetInference, now_us: int) -> None:
        """Sets λ and share of a stream."""

    def steps_of(
        self, command: cmd.StartRetraining, now_us: int, remote: bool
    ) -> Iterator[TrainingStep[ModelT]] | str:
        """Returns the steps of a training here or elsewhere, or the reason why there is none."""

    def serve(
        self, running: VirtualRetraining[ModelT], best: Checkpoint[ModelT], now_us: int
    ) -> ModelVersion:
        """Serves the best weights of a retraining on its stream; returns their version."""

    def roll_back(self, command: cmd.RollBack, now_us: int) -> Iterable[ev.Event]:
        """Serves earlier weights again."""

    def finish_retraining(self, running: VirtualRetraining[ModelT]) -> None:
        """Called when a retraining has ended or was stopped."""

    def free_unused_weights(self) -> None:
        """Called after commands that end a preparation."""


class VirtualExecutor(Generic[ModelT]):
    """Executor of a world on virtual time.

    Args:
        world: the world.
        checkpoint_delay_us: delay of a retraining by a checkpoint. Inference is not delayed: the new weights
            are prepared beside the serving ones.
    """

    def __init__(self, world: World[ModelT], checkpoint_delay_us: int) -> None:
        self.world = world
        self._retrainings, self._shares = world.retrainings, world.shares
        self._checkpoint_delay_us = checkpoint_delay_us
        self._train: Mapping[StreamId, tuple[int, Callable[[int], Iterable[ev.Event]]]] = {
            stream: (rank, partial(self._finish_training_step, stream))
            for rank, stream in enumerate(world.streams, start=1)
        }
        self._now_us = 0
        self._outbox: list[ev.Event] = []
        self._preparation = preparation_holder(0)
        self._steps: Iterator[PreparedStep] = iter(())
        self._step: PreparedStep | None = None
        self._step_due_us: int | None = None

    @property
    def now_us(self) -> int:
        """Current virtual time."""
        return self._now_us

    def charge(self, duration_us: int) -> None:
        """Advances time for work of the loop itself, such as planning."""
        self._now_us += duration_us

    def wait(self, until_us: int) -> Batch:
        """Advances to the next events and returns them; streams follow the clock."""
        self._outbox.extend(self.world.ends_of_streams(self._now_us, at_rest=False))
        while not self._outbox:
            due = self._next_due(until_us)
            # Planning may have been charged beyond what is due: time never goes back.
            self._now_us = max(until_us if due is None else due[0], self._now_us)
            self.world.advance(self._now_us)
            if due is None:
                self._outbox.extend(self.world.ends_of_streams(self._now_us, at_rest=True))
                break
            self._outbox.extend(due[2](due[0]))
        # Share changes are reported with the next event, never alone: no decision depends on them.
        events, self._outbox = (*self._shares.take_events(), *self._outbox), []
        return Batch(self._now_us, events)

    def execute_commands(self, commands: Sequence[cmd.Command]) -> None:
        for command in commands:
            self._execute(command)
        # After all commands: one of the same step may serve weights that are freed here.
        if any(isinstance(command, cmd.EndPreparation) for command in commands):
            self.world.free_unused_weights()

    def receive(self, command: cmd.StartRetraining, epochs: int, over: bool) -> None:
        """Receives weights of a remote retraining; implements the fleet's ``Home``."""
        running = self._retrainings.get(command.stream)
        if running is None or not running.by_snapshots or running.job != command.job:
            steps = self.world.steps_of(command, self._now_us, remote=True)
            if isinstance(steps, str):
                if over:
                    self._fail(command, steps)
                return
            speed = self.world.training_speed
            running = VirtualRetraining(command, steps, speed, self._now_us, by_snapshots=True)
            self._retrainings[command.stream] = running
        self._outbox.extend(running.receive(epochs, self._now_us))
        if over:
            self._finish(running)

    def _execute(self, command: cmd.Command) -> None:
        shares, now_us = self._shares, self._now_us
        match command:
            case cmd.BeginPreparation():
                self._preparation = preparation_holder(command.window, command.round)
                shares.carry_out(self._preparation, command, now_us, self._begin_preparation)
            case cmd.EndPreparation():
                self._end_preparation()
                shares.remove_holder(preparation_holder(command.window, command.round), now_us)
            case cmd.SetInference():
                set_inference = partial(self.world.set_inference, now_us=now_us)
                shares.carry_out(inference_holder(command.stream), command, now_us, set_inference)
            case cmd.StartRetraining() if command.elsewhere is not None:
                self._start(command)
            case cmd.StartRetraining():
                holder = retraining_holder(command.stream, command.job)
                shares.carry_out(holder, command, now_us, self._start)
            case cmd.ResizeRetraining():
                holder = retraining_holder(command.stream, command.job)
                shares.carry_out(holder, command, now_us, self._resize)
            case cmd.ServeModel():
                self._serve(command)
            case cmd.RollBack():
                self._outbox.extend(self.world.roll_back(command, now_us))
            case cmd.StopRetraining():
                running = self._retrainings.pop(command.stream, None)
                if running is not None and (running.by_snapshots or running.due_us is not None):
                    self.world.finish_retraining(running)
                shares.remove_holder(retraining_holder(command.stream, command.job), now_us)
            case cmd.KeepServing():
                pass  # the serving weights stay
            case cmd.SetAside() | cmd.RestartWorker():
                raise ValueError("nothing dies on virtual time")

    def _next_due(self, until_us: int) -> Due | None:
        """Returns what is due first, up to ``until_us``."""
        due = list(self.world.pending_acts())
        if self._step_due_us is not None:
            due.append((self._step_due_us, 0, self._finish_preparation_step))
        for stream, running in self._retrainings.items():
            if (due_us := running.due_us) is not None:
                due.append((due_us, *self._train[stream]))
        first = min(due, key=lambda one: one[:2], default=None)
        return first if first is not None and first[0] <= until_us else None

    def _begin_preparation(self, command: cmd.BeginPreparation) -> None:
        events, self._steps = self.world.prepare(command, self._now_us)
        self._outbox.extend(events)
        self._outbox.extend(self._next_preparation_step(self._now_us))

    def _finish_preparation_step(self, t_us: int) -> Iterator[ev.Event]:
        if self._step is not None:
            yield self._step.finish(t_us)
            yield from self._next_preparation_step(t_us)

    def _next_preparation_step(self, t_us: int) -> Iterator[ev.Event]:
        self._step = next(self._steps, None)
        if self._step is None:
            self._end_preparation()
            yield ev.PreparationEnded(t_us, self._preparation.number, self._preparation.round)
        else:
            duration_us = self._step.duration_us
            self._step_due_us = None if duration_us is None else t_us + duration_us

    def _end_preparation(self) -> None:
        self._steps, self._step, self._step_due_us = iter(()), None, None
        self.world.end_preparation(self._preparation, self._now_us)

    def _start(self, command: cmd.StartRetraining) -> None:
        steps = self.world.steps_of(command, self._now_us, remote=command.elsewhere is not None)
        if isinstance(steps, str):
            self._fail(command, steps)
        else:
            speed = self.world.training_speed
            self._retrainings[command.stream] = VirtualRetraining(command, steps, speed, self._now_us)

    def _resize(self, command: cmd.ResizeRetraining) -> None:
        if command.stream in self._retrainings:
            self._retrainings[command.stream].resize(command.share_milli, self._now_us)

    def _fail(self, command: cmd.StartRetraining, reason: str) -> None:
        self._outbox.append(ev.RetrainFailed(self._now_us, command.stream, command.job, reason))
        self._shares.remove_holder(retraining_holder(command.stream, command.job), self._now_us)

    def _finish_training_step(self, stream: StreamId, t_us: int) -> Iterable[ev.Event]:
        running = self._retrainings[stream]
        events: list[ev.Event] = []
        try:
            events += running.finish_step(t_us)
        except DoesNotFitError as error:
            if not running.is_local:
                raise
            # Its best weights so far stay; its γ is not tried again in the window.
            what, reason = DidNotFit.from_config(running.config), str(error)
            events.append(ev.MemoryShort(t_us, stream, running.window, what, reason))
            events.append(ev.RetrainFailed(t_us, stream, running.job, reason))
        if events and not isinstance(events[-1], ev.RetrainProgress):
            self._finish(running)
        return events

    def _finish(self, running: VirtualRetraining[ModelT]) -> None:
        """Releases the share of a retraining; its weights stay available until the next one."""
        running.stop_training(self._now_us)
        self._shares.remove_holder(retraining_holder(running.stream, running.job), self._now_us)
        self.world.finish_retraining(running)

    def _serve(self, command: cmd.ServeModel) -> None:
        running = self._retrainings.get(command.stream)
        if running is None or running.job != command.job or running.best is None:
            return
        if running.due_us is not None:
            running.delay(self._checkpoint_delay_us)
        version = self.world.serve(running, running.best, self._now_us)
        accuracy = running.best.validation_accuracy
        self._outbox.append(
            ev.ModelSwapped(self._now_us, command.stream, version, command.job, accuracy, stall_us=0)
        )

"""Executor of the trace world: answers commands from recorded profiles, on virtual time.

It differs from the emulated world only in how commands are answered. A reported accuracy is that on the
validation part; one that counts is that on all objects, times the part that λ keeps at its share:

    A(t) = accuracy of the serving model in this window · ρ · min(1, speed(I) / speed(n))

as in the schedulers' objective, with the same function (`planning/schedulers/objective.py`). Labelling and
profiling hold the preparation's share for the recorded GPU-seconds, in the order of all worlds
(`planning/profiling/preparation_steps.py`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ekya.control.options import LoopOptions
from ekya.control.protocols import Batch
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.shares import inference_holder, preparation_holder, retraining_holder
from ekya.core.trace import StreamWindow, Trace
from ekya.core.units import StreamId
from ekya.core.view import InferenceOption
from ekya.planning.profiling.inference_profile import prior_relative_accuracy
from ekya.planning.profiling.preparation_steps import (
    InferenceStep,
    Labelled,
    LabelStep,
    PreparationStep,
    TrialStep,
    preparation_steps,
)
from ekya.simulation.retraining import TrainingStep, VirtualRetraining
from ekya.simulation.shares import InstantShares, ShareWork
from ekya.simulation.trace.estimates import Estimates
from ekya.simulation.trace.stream import (
    TraceModel,
    TraceStream,
    cached_model,
    kept_steps,
    labelled_histogram,
    recorded_steps,
    told,
    training_for,
)


class TraceExecutor:
    """Executor of the trace world.

    Args:
        trace: the recorded results. No window beyond its last may open; a stream with fewer ends.
        options: the loop's own.
        estimates: source of the estimates for schedulers.
        keeps_models: keep a model of every window, and report it when the next window is prepared.
    """

    def __init__(
        self, trace: Trace, options: LoopOptions, estimates: Estimates, keeps_models: bool = False
    ) -> None:
        self._trace = trace
        self._options = options
        self._estimates = estimates
        self._keeps_models = keeps_models
        self._streams = {
            stream.stream: TraceStream(stream, options.window_us, trace.inference_speed)
            for stream in trace.streams
        }
        self._places = {stream: place for place, stream in enumerate(self._streams)}
        self._shares = InstantShares(options.capacity_milli)
        self._now_us = 0
        self._outbox: list[ev.Event] = [
            ev.StreamAdded(0, stream.stream, _priors(stream.windows[0])) for stream in trace.streams
        ]
        self._preparing = cmd.BeginPreparation(0, 0, ())
        self._labelled: dict[StreamId, Labelled] = {}
        self._steps: Iterator[PreparationStep] = iter(())
        self._step: PreparationStep | None = None
        self._work = ShareWork(trace.training_speed, 0, 0, 0.0)
        self._training: dict[StreamId, VirtualRetraining[TraceModel]] = {}
        self._ends = _ends(trace, options)

    @property
    def now_us(self) -> int:
        """Current virtual time."""
        return self._now_us

    def charge(self, duration_us: int) -> None:
        """Advances time for work of the loop itself, such as planning."""
        self._now_us += duration_us

    def wait(self, until_us: int) -> Batch:
        """Advances to the next events and returns them."""
        self._tell_of_ends()
        while not self._outbox:
            at_us, stream = self._next_due()
            stop_us = min(until_us, self._ends[0][0]) if self._ends else until_us
            if at_us is None or at_us > stop_us:
                self._now_us = max(stop_us, self._now_us)
                self._tell_of_ends()
                if stop_us == until_us:
                    break
                continue
            self._now_us = max(at_us, self._now_us)
            if stream is None:
                self._finish_step(at_us)
            else:
                self._finish_epoch(stream, at_us)
        # As in the emulated world: share changes are reported with the next event.
        events, self._outbox = (*self._shares.take_told(), *self._outbox), []
        return Batch(self._now_us, events)

    def execute(self, commands: Sequence[cmd.Command]) -> None:
        """Executes commands at the current virtual time."""
        for command in commands:
            self._execute(command)

    def receive(self, command: cmd.StartRetraining, epochs: int, over: bool) -> None:
        """Receives weights of a remote retraining; implements the fleet's ``Home``."""
        coming = self._training.get(command.stream)
        if coming is None or not coming.by_snapshots or coming.job != command.job:
            steps = self._steps_of(command)
            if steps is None:
                if over:
                    self._failed(command)
                return
            speed = self._trace.training_speed
            coming = VirtualRetraining(command, steps, speed, self._now_us, by_snapshots=True)
            self._training[command.stream] = coming
        self._outbox.extend(coming.receive(epochs, self._now_us))

    def mean_accuracy(self, stream: StreamId, window: int) -> float:
        """Returns a stream's accuracy in a past window."""
        self._streams[stream].advance(self._now_us)
        return self._streams[stream].mean_accuracy(window)

    def _execute(self, command: cmd.Command) -> None:
        match command:
            case cmd.BeginPreparation():
                holder = preparation_holder(command.window)
                self._shares.carry_out(holder, command, self._now_us, self._begin_preparation)
            case cmd.EndPreparation():
                self._step, self._steps = None, iter(())
                self._shares.leave(preparation_holder(command.window), self._now_us)
            case cmd.SetInference():
                holder = inference_holder(command.stream)
                self._shares.carry_out(holder, command, self._now_us, self._set_inference)
            case cmd.StartRetraining() if command.elsewhere is not None:
                self._start(command)
            case cmd.StartRetraining():
                holder = retraining_holder(command.stream, command.job)
                self._shares.carry_out(holder, command, self._now_us, self._start)
            case cmd.ResizeRetraining():
                holder = retraining_holder(command.stream, command.job)
                self._shares.carry_out(holder, command, self._now_us, self._resize)
            case cmd.ServeModel():
                self._serve(command)
            case cmd.StopRetraining():
                self._training.pop(command.stream, None)
                self._shares.leave(retraining_holder(command.stream, command.job), self._now_us)
            case cmd.KeepServing():
                pass  # the serving weights stay
            case cmd.RollBack():
                raise ValueError("a trace says nothing of weights that served before")
            case cmd.SetAside() | cmd.RestartWorker():
                raise ValueError("nothing dies in the trace world")

    def _set_inference(self, command: cmd.SetInference) -> None:
        self._streams[command.stream].configure(command.config, command.share_milli, self._now_us)

    def _resize(self, command: cmd.ResizeRetraining) -> None:
        if command.stream in self._training:
            self._training[command.stream].resize(command.share_milli, self._now_us)

    def _next_due(self) -> tuple[int | None, StreamId | None]:
        """Returns the earliest due time and its stream, None for the preparation, which comes first."""
        due: list[tuple[int, int, StreamId | None]] = []
        if self._step is not None and self._work.due_us is not None:
            due.append((self._work.due_us, -1, None))
        for stream, retraining in self._training.items():
            if retraining.due_us is not None:
                due.append((retraining.due_us, self._places[stream], stream))
        at_us, _, whose = min(due, key=lambda item: item[:2], default=(None, 0, None))
        return at_us, whose

    def _tell_of_ends(self) -> None:
        """Emits the ends of streams up to now, before other events of that time."""
        while self._ends and self._ends[0][0] <= self._now_us:
            _, stream = self._ends.pop(0)
            self._outbox.append(ev.StreamEnded(self._now_us, stream))
            self._shares.leave(inference_holder(stream), self._now_us)

    def _begin_preparation(self, command: cmd.BeginPreparation) -> None:
        if self._keeps_models:
            self._outbox.extend(self._newly_kept(command.window))
        self._preparing, self._labelled = command, {}
        self._steps = preparation_steps(command.streams, self._labelled)
        self._next_step(self._now_us)

    def _newly_kept(self, window: int) -> Iterator[ev.ModelCached]:
        """Yields models of the windows since the last preparation; none can serve in its own window."""
        for stream, of in self._streams.items():
            for trained_in in range(self._preparing.window, min(window, len(of.trace.windows))):
                model = cached_model(of.trace, trained_in)
                if model is not None:
                    yield ev.ModelCached(self._now_us, stream, model)

    def _next_step(self, now_us: int) -> None:
        self._step = next(self._steps, None)
        if self._step is None:
            self._outbox.append(ev.PreparationEnded(now_us, self._preparing.window))
            self._shares.leave(preparation_holder(self._preparing.window), now_us)
            return
        self._work = ShareWork(
            self._trace.training_speed, now_us, self._preparing.share_milli, self._gpu_s(self._step)
        )

    def _finish_step(self, t_us: int) -> None:
        if self._step is not None:
            self._outbox.append(self._outcome(self._step, t_us))
            self._next_step(t_us)

    def _gpu_s(self, step: PreparationStep) -> float:
        window = self._window(step.stream)
        match step:
            case LabelStep():
                return window.labelling_gpu_s
            case _ if self._estimates.exact:
                return 0.0
            case InferenceStep():
                return window.inference_gpu_s
            case TrialStep():
                trial = window.best_trial(step.family, self._streams[step.stream].origin)
                return 0.0 if trial is None else trial.gpu_s

    def _outcome(self, step: PreparationStep, t_us: int) -> ev.Event:
        window, stream = self._window(step.stream), self._streams[step.stream]
        match step:
            case LabelStep():
                accuracy = told(stream.standing(window.window), self._estimates.exact)
                can_train = min(window.training_crops, window.validation_crops) > 0
                self._labelled[step.stream] = Labelled(accuracy, can_train)
                return ev.LabelsReady(
                    t_us=t_us,
                    stream=step.stream,
                    window=window.window,
                    training_crops=window.training_crops,
                    validation_crops=window.validation_crops,
                    serving_accuracy=accuracy,
                    new_classes=False,
                    gpu_s=window.labelling_gpu_s,
                    class_histogram=labelled_histogram(stream.trace, window.window),
                )
            case InferenceStep():
                measured = () if self._estimates.exact else window.inference_profiled
                options = tuple(one for one in measured or window.inference if one.config in step.configs)
                return ev.InferenceProfiled(t_us, step.stream, window.window, options, self._gpu_s(step))
            case TrialStep():
                return self._estimates.of_family(
                    step.family,
                    self._options.retrain_configs,
                    window,
                    step.stream,
                    self._places[step.stream],
                    stream.origin,
                    t_us,
                )

    def _window(self, stream: StreamId) -> StreamWindow:
        return self._streams[stream].trace.windows[self._preparing.window]

    def _start(self, command: cmd.StartRetraining) -> None:
        steps = self._steps_of(command)
        if steps is None:
            self._failed(command)
        else:
            speed = self._trace.training_speed
            self._training[command.stream] = VirtualRetraining(command, steps, speed, self._now_us)

    def _failed(self, command: cmd.StartRetraining) -> None:
        reason = f"the trace does not know what {command.config.name} gives"
        self._outbox.append(ev.RetrainFailed(self._now_us, command.stream, command.job, reason))
        self._shares.leave(retraining_holder(command.stream, command.job), self._now_us)

    def _steps_of(self, command: cmd.StartRetraining) -> Iterator[TrainingStep[TraceModel]] | None:
        stream, exact = self._streams[command.stream], self._estimates.exact
        elsewhere, window = command.elsewhere, command.window
        if elsewhere is not None and elsewhere.trained_in is not None:
            return kept_steps(stream.trace, command.config, elsewhere.trained_in, window, exact)
        training = training_for(stream.trace.windows[window], command.config, stream.origin)
        return None if training is None else recorded_steps(training, command.config, window, exact)

    def _finish_epoch(self, stream: StreamId, t_us: int) -> None:
        retraining = self._training[stream]
        events = retraining.finish_step(t_us)
        self._outbox.extend(events)
        if any(isinstance(event, ev.RetrainFinished) for event in events):
            self._shares.leave(retraining_holder(stream, retraining.job), t_us)

    def _serve(self, command: cmd.ServeModel) -> None:
        retraining = self._training.get(command.stream)
        if retraining is None or retraining.job != command.job or retraining.best is None:
            return
        if retraining.due_us is not None:
            retraining.delay(self._options.checkpoint_delay_us)
        stream = self._streams[command.stream]
        stream.serve(retraining.best.model, self._now_us)
        self._outbox.append(
            ev.ModelSwapped(
                self._now_us,
                command.stream,
                stream.version,
                command.job,
                retraining.best.validation_accuracy,
                stall_us=0,
            )
        )


def _ends(trace: Trace, options: LoopOptions) -> list[tuple[int, StreamId]]:
    """Returns when streams end, for those that end before the run; in order."""
    over_us = (options.windows or trace.windows) * options.window_us
    ends = [(stream.ends_us(options.window_us), stream.stream) for stream in trace.streams]
    return sorted(end for end in ends if end[0] < over_us)


def _priors(window: StreamWindow) -> tuple[InferenceOption, ...]:
    """Returns Λ before anything is profiled: costs are known, the accuracy of skipping frames is a guess."""
    if window.inference_profiled:
        return window.inference_profiled
    finest = max(option.config.resolution for option in window.inference)
    return tuple(
        replace(option, relative_accuracy=prior_relative_accuracy(option.config, finest))
        for option in window.inference
    )

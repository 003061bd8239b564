"""The trace world: answers commands from recorded profiles, on virtual time.

It differs from the emulated world only in how commands are answered. A reported accuracy is that on the
validation part; one that counts is that on all objects, times the part that λ keeps at its share:

    A(t) = accuracy of the serving model in this window · ρ · min(1, speed(I) / speed(n))

as in the schedulers' objective, with the same function (`planning/schedulers/objective.py`), and with 1 in
place of the model's accuracy where λ is of the golden detector. Labelling and profiling hold the
preparation's share for the recorded GPU-seconds, in the order of all worlds
(`planning/preparation/steps.py`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from ekya.control.options import LoopOptions
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.shares import ShareHolder, inference_holder
from ekya.core.trace import StreamWindow, Trace
from ekya.core.units import ModelVersion, StreamId
from ekya.core.view import InferenceOption
from ekya.planning.preparation.steps import (
    InferenceStep,
    Labelled,
    LabelStep,
    PreparationStep,
    TrialStep,
    preparation_steps,
)
from ekya.planning.profiling.inference_profile import prior_relative_accuracy
from ekya.simulation.executor import LAST, Due, PreparedStep
from ekya.simulation.retraining import Checkpoint, TrainingStep, VirtualRetraining
from ekya.simulation.shares import InstantShares, ShareWork
from ekya.simulation.trace.estimates import Estimates
from ekya.simulation.trace.stream import (
    TraceModel,
    TraceStream,
    cached_model,
    kept_steps,
    labelled_histogram,
    recorded_steps,
    reported_accuracy,
    training_for,
)


class TraceWorld:
    """The trace world.

    Args:
        trace: the recorded results. No window beyond its last may open; a stream with fewer ends.
        options: the loop's own.
        estimates: source of the estimates for schedulers.
        keeps_models: keep a model of every window, and report it when the next window is prepared.
    """

    def __init__(
        self, trace: Trace, options: LoopOptions, estimates: Estimates, keeps_models: bool = False
    ) -> None:
        self.streams: Sequence[StreamId] = [stream.stream for stream in trace.streams]
        self.retrainings: dict[StreamId, VirtualRetraining[TraceModel]] = {}
        self.training_speed = trace.training_speed
        self.shares = InstantShares(options.capacity_milli)
        self._retrain_configs = options.retrain_configs
        self._estimates = estimates
        self._keeps_models = keeps_models
        self._streams = {
            stream.stream: TraceStream(stream, options.window_us, trace.inference_speed)
            for stream in trace.streams
        }
        self._now_us = 0
        self._window = 0
        self._asked: dict[StreamId, cmd.PrepareStream] = {}
        self._added = [
            ev.StreamAdded(0, stream.stream, _priors(stream.windows[0])) for stream in trace.streams
        ]
        self._ends = _ends(trace, options)

    def advance(self, now_us: int) -> None:
        """Sets the time up to which accuracies count."""
        self._now_us = now_us

    def pending_acts(self) -> Iterator[Due]:
        """Yields the streams at the beginning, and the next end of one."""
        if self._added:
            yield 0, -1, self._add
        if self._ends:
            yield self._ends[0][0], LAST, lambda t_us: self.ends_of_streams(self._now_us, at_rest=False)

    def ends_of_streams(self, now_us: int, at_rest: bool) -> list[ev.Event]:
        events: list[ev.Event] = []
        while self._ends and self._ends[0][0] <= now_us:
            _, stream = self._ends.pop(0)
            events.append(ev.StreamEnded(now_us, stream))
            self.shares.remove_holder(inference_holder(stream), now_us)
        return events

    def prepare(
        self, command: cmd.BeginPreparation, now_us: int
    ) -> tuple[list[ev.Event], Iterator[PreparedStep]]:
        """Returns the models kept since the last preparation, and the recorded steps."""
        events: list[ev.Event] = list(self._newly_kept(command.window, now_us)) if self._keeps_models else []
        self._window = command.window
        return events, self._prepared_steps(command)

    def end_preparation(self, holder: ShareHolder, now_us: int) -> None:
        """Releases the share of a preparation as soon as its last step is over."""
        self.shares.remove_holder(holder, now_us)

    def set_inference(self, command: cmd.SetInference, now_us: int) -> None:
        self._streams[command.stream].configure(command.config, command.share_milli, now_us)

    def steps_of(
        self, command: cmd.StartRetraining, now_us: int, remote: bool
    ) -> Iterator[TrainingStep[TraceModel]] | str:
        """Returns the steps of a recorded training; a remote one is the same."""
        unknown = f"the trace does not know what {command.config.name} gives"
        stream, exact = self._streams[command.stream], self._estimates.exact
        elsewhere, window = command.elsewhere, command.window
        if elsewhere is not None and elsewhere.trained_in is not None:
            kept = kept_steps(stream.trace, command.config, elsewhere.trained_in, window, exact)
            return kept or unknown
        training = training_for(stream.trace.windows[window], command.config, stream.origin)
        return unknown if training is None else recorded_steps(training, command.config, window, exact)

    def serve(
        self, running: VirtualRetraining[TraceModel], best: Checkpoint[TraceModel], now_us: int
    ) -> ModelVersion:
        """Serves an epoch of a recorded training."""
        served = self._streams[running.stream]
        served.serve(best.model, now_us)
        return served.version

    def roll_back(self, command: cmd.RollBack, now_us: int) -> list[ev.Event]:
        """Raises ``ValueError``: the gate has nothing to compare here."""
        raise ValueError("a trace says nothing of weights that served before")

    def finish_retraining(self, running: VirtualRetraining[TraceModel]) -> None:
        """Does nothing: a trace has no exemplars."""

    def free_unused_weights(self) -> None:
        """Does nothing: a trace has no weights to free."""

    def mean_accuracy(self, stream: StreamId, window: int) -> float:
        """Returns a stream's accuracy in a past window."""
        self._streams[stream].advance(self._now_us)
        return self._streams[stream].mean_accuracy(window)

    def _add(self, t_us: int) -> list[ev.StreamAdded]:
        added, self._added = self._added, []
        return added

    def _newly_kept(self, window: int, now_us: int) -> Iterator[ev.ModelCached]:
        """Yields models of the windows since the last preparation; none can serve in its own window."""
        for stream, of in self._streams.items():
            for trained_in in range(self._window, min(window, len(of.trace.windows))):
                model = cached_model(of.trace, trained_in)
                if model is not None:
                    yield ev.ModelCached(now_us, stream, model)

    def _prepared_steps(self, command: cmd.BeginPreparation) -> Iterator[PreparedStep]:
        labelled: dict[StreamId, Labelled] = {}
        self._asked = {asked.stream: asked for asked in command.streams}
        for step in preparation_steps(command.streams, labelled):
            work = ShareWork(self.training_speed, 0, command.share_milli, self._gpu_s(step))
            yield PreparedStep(work.due_us, partial(self._outcome, step, labelled))

    def _gpu_s(self, step: PreparationStep) -> float:
        window = self._window_of(step.stream)
        match step:
            case LabelStep():
                return window.labelling_gpu_s
            case _ if self._estimates.exact:
                return 0.0
            case InferenceStep():
                return window.inference_gpu_s
            case TrialStep():
                trial = self._estimates.trial(step.family, window, self._streams[step.stream].origin)
                return 0.0 if trial is None else trial.gpu_s

    def _outcome(self, step: PreparationStep, labelled: dict[StreamId, Labelled], t_us: int) -> ev.Event:
        window, stream = self._window_of(step.stream), self._streams[step.stream]
        match step:
            case LabelStep():
                accuracy = reported_accuracy(stream.standing(window.window), self._estimates.exact)
                asked = self._asked[step.stream]
                can_train = min(window.training_crops, window.validation_crops) > 0
                labelled[step.stream] = Labelled(accuracy, can_train)
                return ev.LabelsReady(
                    t_us=t_us,
                    stream=step.stream,
                    window=window.window,
                    training_crops=window.training_crops,
                    validation_crops=window.validation_crops,
                    serving_accuracy=accuracy,
                    new_classes=False,
                    gpu_s=self._gpu_s(step),
                    since_us=asked.since_us,
                    class_histogram=labelled_histogram(stream.trace, window.window),
                )
            case InferenceStep():
                measured = () if self._estimates.exact else window.inference_profiled
                options = tuple(one for one in measured or window.inference if one.config in step.configs)
                return ev.InferenceProfiled(t_us, step.stream, window.window, options, self._gpu_s(step))
            case TrialStep():
                return self._estimates.of_family(
                    step.family,
                    self._retrain_configs,
                    window,
                    step.stream,
                    self.streams.index(step.stream),
                    stream.origin,
                    t_us,
                )

    def _window_of(self, stream: StreamId) -> StreamWindow:
        return self._streams[stream].trace.windows[self._window]


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

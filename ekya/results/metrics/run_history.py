"""Extracts the data of summary and figures from the control-loop steps in a run's journal."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.commands import StepRecord
from ekya.core.units import BASE_VERSION, JobId, ModelVersion, StreamId
from ekya.results.metrics.promises import CheckedPromise, check_promises
from ekya.results.metrics.retrainings import FAILED, FINISHED, RetrainRun, retrainings_of


@dataclass(frozen=True, slots=True)
class ShareSample:
    """Shares of a stream's jobs from ``t_us`` until its next sample or the run's end."""

    t_us: int
    stream: StreamId
    retrain_share_milli: int
    inference_share_milli: int


@dataclass(frozen=True, slots=True)
class PreparationSpan:
    """Labelling and profiling of all streams together, and the share reserved for them."""

    start_us: int
    end_us: int
    share_milli: int


@dataclass(frozen=True, slots=True)
class Swap:
    """Hot swap: from ``t_us`` on a stream serves another model."""

    t_us: int
    stream: StreamId
    version: ModelVersion


@dataclass(frozen=True, slots=True)
class WindowSpan:
    """Start and end of a window, in run time."""

    index: int
    start_us: int
    end_us: int


def mean_shares(
    samples: Sequence[ShareSample], stream: StreamId, start_us: int, end_us: int
) -> tuple[int, int]:
    """Returns a stream's mean shares of retraining and inference over a span, in whole thousandths.

    Args:
        samples: of any streams, in rising order of time. Before its first a stream has no share.
        stream: the stream.
        start_us, end_us: the span; end after start.
    """
    own = [sample for sample in samples if sample.stream == stream and sample.t_us < end_us]
    retrain = inference = 0
    for i, sample in enumerate(own):
        until_us = own[i + 1].t_us if i + 1 < len(own) else end_us
        held_us = until_us - max(sample.t_us, start_us)
        if held_us > 0:
            retrain += held_us * sample.retrain_share_milli
            inference += held_us * sample.inference_share_milli
    span_us = end_us - start_us
    # Rounded half up in whole numbers, in which no sum loses anything.
    return (2 * retrain + span_us) // (2 * span_us), (2 * inference + span_us) // (2 * span_us)


class ShareBook:
    """Tracks every stream's shares, as last commanded, or as released by events."""

    def __init__(self) -> None:
        self._inference: dict[StreamId, int] = {}
        self._retraining: dict[StreamId, int] = {}

    def present_shares(self) -> dict[StreamId, tuple[int, int]]:
        """Returns all streams' shares of retraining and inference, in thousandths, if they ever had any."""
        streams = sorted({*self._inference, *self._retraining})
        return {
            stream: (self._retraining.get(stream, 0), self._inference.get(stream, 0)) for stream in streams
        }

    def follow_step(self, step: StepRecord) -> list[ShareSample]:
        """Applies a step of the loop and returns the shares that it changes."""
        changed = {*self._after_events(step), *self._after_commands(step)}
        now = self.present_shares()
        return [ShareSample(step.now_us, stream, *now[stream]) for stream in sorted(changed)]

    def _after_events(self, step: StepRecord) -> Iterator[StreamId]:
        for event in step.events:
            match event:
                case ev.RetrainFinished() | ev.RetrainFailed() | ev.WorkerDied(role=ev.Role.RETRAINING):
                    self._retraining[event.stream] = 0
                case ev.StreamLost() | ev.WorkerDied():
                    self._inference[event.stream] = 0
                case ev.StreamEnded():
                    self._retraining[event.stream] = self._inference[event.stream] = 0
                case _:
                    continue
            yield event.stream

    def _after_commands(self, step: StepRecord) -> Iterator[StreamId]:
        for command in step.commands:
            match command:
                case cmd.SetInference():
                    self._inference[command.stream] = command.share_milli
                case cmd.StartRetraining() | cmd.ResizeRetraining():
                    self._retraining[command.stream] = command.share_milli
                case cmd.StopRetraining():
                    self._retraining[command.stream] = 0
                case cmd.SetAside():
                    self._retraining[command.stream] = self._inference[command.stream] = 0
                case _:
                    continue
            yield command.stream


def share_samples(steps: Sequence[StepRecord]) -> Iterator[ShareSample]:
    """Yields all changes of shares in a run."""
    book = ShareBook()
    for step in steps:
        yield from book.follow_step(step)


@dataclass(frozen=True, slots=True)
class LostSpan:
    """Span of time in which a camera gave no frames."""

    stream: StreamId
    start_us: int
    end_us: int


@dataclass(frozen=True, slots=True)
class GoldenSpan:
    """Span of time in which the golden detector answered for a stream."""

    stream: StreamId
    start_us: int
    end_us: int


@dataclass(frozen=True, slots=True)
class RunHistory:
    """All measurements from the steps of a run.

    Attributes:
        windows: with the time that they actually covered; the last one may have been cut off.
        shares: as commanded, at each change.
        preparations: spans in which labelling and profiling held a share.
        retrainings: in order of their start.
        swaps: hot swaps of models.
        served: retrainings of which a checkpoint came into service.
        added_us: time at which each stream was added.
        lost: spans in which cameras gave no frames; the end of a stream ends its span.
        by_golden: spans in which λ was of the golden detector.
        swap_delays_us: time from each command to serve a model until it served.
        validation_accuracy: of the serving model by stream and window, on labels with a validation part.
        labellings: number of windows of streams that were labelled.
        labelling_gpu_s, profiling_gpu_s: of the whole run.
        drifts: changes of scenes that inference noticed, in order.
        pooled: labels with others of the same scene, in order.
        promises: gains that were promised and checked, in order.
        golden_gpu_s: part of both that the golden model took.
        golden_calls: pictures that the golden model analysed for both.
        labelled_frames: frames that were labelled whole, for streams that detect.
        labels: labelled objects.
    """

    streams: tuple[StreamId, ...]
    windows: tuple[WindowSpan, ...]
    shares: tuple[ShareSample, ...]
    preparations: tuple[PreparationSpan, ...]
    retrainings: tuple[RetrainRun, ...]
    swaps: tuple[Swap, ...]
    served: frozenset[JobId]
    added_us: Mapping[StreamId, int]
    lost: tuple[LostSpan, ...]
    by_golden: tuple[GoldenSpan, ...]
    swap_delays_us: tuple[int, ...]
    set_aside: tuple[tuple[StreamId, str], ...]
    validation_accuracy: Mapping[tuple[StreamId, int], float]
    labellings: int
    labelling_gpu_s: float
    profiling_gpu_s: float
    golden_gpu_s: float
    golden_calls: int
    labelled_frames: int
    labels: int
    drifts: tuple[ev.DriftDetected, ...]
    pooled: tuple[ev.LabelsReady, ...]
    promises: tuple[CheckedPromise, ...]

    @property
    def span_us(self) -> int:
        """Time from the start of the first window to the end of the last; 0 without windows."""
        return self.windows[-1].end_us - self.windows[0].start_us if self.windows else 0

    def retraining_counts(self) -> dict[str, int]:
        """Returns ``retrainings`` of a summary; the rest was stopped by the window's end."""
        ends = [run.ended for run in self.retrainings]
        return {"started": len(ends), "finished": ends.count(FINISHED), "failed": ends.count(FAILED)}


def summarize_steps(steps: Sequence[StepRecord]) -> RunHistory:
    """Measures a run from its steps."""
    events = [event for step in steps for event in step.events]
    end_us = steps[-1].now_us if steps else 0
    labelled = [event for event in events if isinstance(event, ev.LabelsReady)]
    asked = [event for event in events if isinstance(event, ev.LabelsReady | ev.InferenceProfiled)]
    return RunHistory(
        streams=tuple(sorted(event.stream for event in events if isinstance(event, ev.StreamAdded))),
        # At least a microsecond long: means over a window divide by its length.
        windows=tuple(
            WindowSpan(event.index, event.t_us, min(event.end_us, max(end_us, event.t_us + 1)))
            for event in events
            if isinstance(event, ev.WindowOpened)
        ),
        shares=tuple(share_samples(steps)),
        preparations=tuple(_preparations(steps, end_us)),
        retrainings=retrainings_of(steps, end_us),
        swaps=tuple(
            Swap(event.t_us, event.stream, event.version) for event in events if isinstance(event, ev.Swapped)
        ),
        served=frozenset(event.job for event in events if isinstance(event, ev.ModelSwapped)),
        added_us={event.stream: event.t_us for event in events if isinstance(event, ev.StreamAdded)},
        lost=tuple(_lost(events, end_us)),
        by_golden=tuple(_golden_spans(steps, end_us)),
        swap_delays_us=tuple(_swap_delays_us(steps)),
        set_aside=tuple(
            (command.stream, command.reason)
            for step in steps
            for command in step.commands
            if isinstance(command, cmd.SetAside)
        ),
        # Reversed, so that the first labels of a window remain: those of the window before.
        validation_accuracy={
            (event.stream, event.window): event.serving_accuracy
            for event in reversed(labelled)
            if event.validation_crops
        },
        labellings=len(labelled),
        labelling_gpu_s=sum(event.gpu_s for event in labelled),
        profiling_gpu_s=sum(
            event.gpu_s
            for event in events
            if isinstance(event, ev.InferenceProfiled | ev.ProfileReady | ev.RetrainProfiled)
        ),
        golden_gpu_s=sum(event.golden_gpu_s for event in asked),
        golden_calls=sum(event.golden_calls for event in asked),
        labelled_frames=sum(
            event.training_crops + event.validation_crops for event in labelled if event.objects is not None
        ),
        labels=sum(
            event.training_crops + event.validation_crops if event.objects is None else event.objects
            for event in labelled
        ),
        drifts=tuple(event for event in events if isinstance(event, ev.DriftDetected)),
        pooled=tuple(event for event in labelled if event.pooled),
        promises=tuple(check_promises(steps)),
    )


def warnings_of(steps: Sequence[StepRecord]) -> dict[str, list[str]]:
    """Returns the warnings of the run's processes: each text once, with all of its sources."""
    sources: dict[str, list[str]] = {}
    for step in steps:
        for event in step.events:
            if isinstance(event, ev.Warned) and event.source not in sources.setdefault(event.text, []):
                sources[event.text].append(event.source)
    return sources


def profile_rows(history: RunHistory) -> list[dict[str, Any]]:
    """Returns rows of ``profiles.parquet``: expected and achieved accuracy of each retraining that ran."""
    return [
        {
            "window": run.window,
            "stream": run.stream,
            "kind": "retraining",
            **asdict(run.config),
            "predicted": run.expected_accuracy,
            "achieved": run.best_accuracy,
            "gpu_s": run.gpu_s,
        }
        for run in history.retrainings
    ]


def _lost(events: Sequence[ev.Event], end_us: int) -> Iterator[LostSpan]:
    since_us: dict[StreamId, int] = {}
    for event in events:
        match event:
            case ev.StreamLost():
                since_us.setdefault(event.stream, event.t_us)
            case ev.StreamBack() | ev.StreamEnded() if event.stream in since_us:
                yield LostSpan(event.stream, since_us.pop(event.stream), event.t_us)
    for stream, from_us in sorted(since_us.items()):
        yield LostSpan(stream, from_us, max(end_us, from_us))


def _golden_spans(steps: Sequence[StepRecord], end_us: int) -> Iterator[GoldenSpan]:
    since_us: dict[StreamId, int] = {}
    for step in steps:
        for command in step.commands:
            if not isinstance(command, cmd.SetInference):
                continue
            if command.config is not None and command.config.by_golden:
                since_us.setdefault(command.stream, step.now_us)
            elif command.stream in since_us:
                yield GoldenSpan(command.stream, since_us.pop(command.stream), step.now_us)
    for stream, from_us in sorted(since_us.items()):
        yield GoldenSpan(stream, from_us, max(end_us, from_us))


def _preparations(steps: Sequence[StepRecord], end_us: int) -> Iterator[PreparationSpan]:
    """Yields spans from the command until everything was ready, the time was up, or the window was over."""
    open_: tuple[int, int] | None = None
    for step in steps:
        ended = any(isinstance(event, ev.PreparationEnded | ev.WindowClosed) for event in step.events)
        ended = ended or any(isinstance(command, cmd.EndPreparation) for command in step.commands)
        # Before a new one begins: a step may end a preparation and begin another.
        if open_ is not None and ended:
            yield PreparationSpan(open_[0], step.now_us, open_[1])
            open_ = None
        for command in step.commands:
            if isinstance(command, cmd.BeginPreparation):
                open_ = (step.now_us, command.share_milli)
    if open_ is not None and end_us > open_[0]:
        yield PreparationSpan(open_[0], end_us, open_[1])


def _swap_delays_us(steps: Sequence[StepRecord]) -> Iterator[int]:
    """Yields for each model that came into service the time since the command.

    A command to serve or to roll back creates the stream's next version, so the version identifies the
    command of a hot swap, even if a newer model overtook one that never served. One that has nothing to serve
    any more creates none, as where the micro-profiler was restarted; no delay is told of what follows it in
    that stream, unless the commands are alike.
    """
    commanded: dict[StreamId, list[tuple[JobId | None, int]]] = {}
    for step in steps:
        for event in step.events:
            if isinstance(event, ev.Swapped):
                own = commanded.get(event.stream, [])
                which = event.version - BASE_VERSION - 1
                job = event.job if isinstance(event, ev.ModelSwapped) else None
                if 0 <= which < len(own) and own[which][0] == job:
                    yield event.t_us - own[which][1]
        for command in step.commands:
            if isinstance(command, cmd.ServeModel):
                commanded.setdefault(command.stream, []).append((command.job, step.now_us))
            if isinstance(command, cmd.RollBack):
                commanded.setdefault(command.stream, []).append((None, step.now_us))

"""Builds ``summary.json``, the numbers of a run; ``docs/summary.md`` describes each field."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from ekya.core.events import DriftDetected
from ekya.core.units import US_PER_S, StreamId, us_to_seconds
from ekya.core.weights import PooledLabels
from ekya.results.metrics.accuracy import FrameCounts, StreamScore, WindowScore, mean_or_none, rounded
from ekya.results.metrics.adaptation import judge_adaptation
from ekya.results.metrics.health import WindowHealth, health_values
from ekya.results.metrics.promises import promise_values
from ekya.results.metrics.run_history import RunHistory
from ekya.results.metrics.scored_sample import margin_of_mean
from ekya.results.metrics.window_outcomes import WindowOutcome

_COUNTED = ("arrived", "analysed", "skipped", "lost", "due")


@dataclass(frozen=True, slots=True)
class SummaryHost:
    """Measurements by the host's clock.

    Attributes:
        planning_ms: duration of each call of the scheduler.
        swap_ms: time for which inference could not take a frame, for each hot swap.
        swap_delay_ms: time from the command to serve new weights until they served, for each hot swap; None
            in a world in which the host's clock cannot measure it.
        golden_device: where the golden model ran, for display; None on virtual time and for a label file.
        late_gpu: frames for which the GPU had no time; None where that is not known.
        others: further JSON values by name, for example ``wall_s`` or ``cpu``; they replace those above.
    """

    planning_ms: tuple[float, ...] = ()
    swap_ms: tuple[float, ...] = ()
    swap_delay_ms: tuple[float, ...] | None = None
    golden_device: str | None = None
    late_gpu: int | None = None
    others: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Facts of the whole run.

    Attributes:
        world: ``live``, ``emulated`` or ``trace``.
        scheduler: its name.
        seed: of the run.
        gpus: number of GPUs.
        window_s: length of a window.
        history: retrainings and costs.
        label_budget_gpu_s: budget of the golden model for the windows that were labelled, bursts included;
            None without a limit.
        damaged: number of frames of each stream that could not be decoded; they did not arrive.
        set_aside: why streams were given up.
        host: measurements by the host's clock.
        health: of each stream in its windows.
        warnings: of the run's processes, each with its sources.
        detects: whether the edge models detect objects; otherwise they classify given ones.
        adapts: whether its scheduler retrains.
        reference: the golden model that accuracy is agreement with; None where the truth is known.
        golden_accuracy: of the golden model and its 95% interval, by its file; None where that says none.
        licences: of the models that were taken from a catalogue, by name.
        analysed_urls: keys of the fleet file whose URLs were analysed, of live cameras.
    """

    world: str
    scheduler: str
    seed: int
    gpus: float
    window_s: float
    history: RunHistory
    label_budget_gpu_s: float | None = None
    damaged: Mapping[StreamId, int] = field(default_factory=dict)
    set_aside: Mapping[StreamId, str] = field(default_factory=dict)
    host: SummaryHost = field(default_factory=SummaryHost)
    health: Mapping[StreamId, Sequence[WindowHealth]] = field(default_factory=dict)
    warnings: Mapping[str, Sequence[str]] = field(default_factory=dict)
    detects: bool = False
    adapts: bool = True
    reference: str | None = None
    golden_accuracy: tuple[float, float, float] | None = None
    licences: Mapping[str, str] = field(default_factory=dict)
    analysed_urls: Mapping[StreamId, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SampledAccuracy:
    """Accuracies on the same frames, those sampled for labelling.

    Attributes:
        base: of the base model, with every frame analysed; where the golden detector answered, its answers.
        served: of the actual answers, skipped frames included.
        base_alone: of the base model on all of them.
        student: of the adapted models alone; None where they were not run on them.
        golden_part: part of all frames that the golden detector answered itself.
    """

    base: float | None
    served: float | None
    base_alone: float | None = None
    student: float | None = None
    golden_part: float = 0.0

    @property
    def gain(self) -> float | None:
        """Accuracy of the actual answers minus that of the base model."""
        return None if self.base is None or self.served is None else self.served - self.base


def build_summary(
    facts: RunFacts,
    outcomes: Sequence[WindowOutcome],
    scores: Mapping[StreamId, StreamScore],
    sampled: Mapping[StreamId, SampledAccuracy],
) -> dict[str, Any]:
    """Builds the summary as JSON values. The same input gives the same bytes when it is dumped.

    Args:
        facts: of the run.
        outcomes: in any order; a window without one is not listed and does not count.
        scores: of every stream.
        sampled: accuracies on sampled frames, for the streams that have them.
    """
    streams = sorted(scores)
    own = {
        stream: sorted((o for o in outcomes if o.stream == stream), key=lambda o: o.index)
        for stream in streams
    }
    delays_ms = facts.host.swap_delay_ms
    plain = [_mean_of(own[s], scores[s], lambda w: w.accuracy) for s in streams]
    balanced = [_mean_of(own[s], scores[s], lambda w: w.balanced_accuracy) for s in streams]
    ap50 = [_mean_of(own[s], scores[s], lambda w: w.ap50) for s in streams]
    return {
        "world": facts.world,
        "reference": facts.reference,
        "task": "detect" if facts.detects else "classify",
        "scheduler": facts.scheduler,
        "seed": facts.seed,
        "gpus": facts.gpus,
        "window_s": facts.window_s,
        "mean_accuracy": rounded(mean_or_none(plain)),
        "accuracy_margin": rounded(_margin({stream: scores[stream] for stream in streams})),
        "scored_frames": sum(scores[stream].scored_frames for stream in streams) if facts.detects else None,
        "balanced_accuracy": rounded(mean_or_none(balanced)),
        "ap50": rounded(mean_or_none(ap50)),
        "streams": {
            stream: _stream(
                facts, stream, own[stream], scores[stream], sampled.get(stream, SampledAccuracy(None, None))
            )
            for stream in streams
        },
        "frames": _frames([scores[stream].frames for stream in streams], facts.host.late_gpu),
        "retrainings": facts.history.retraining_counts(),
        "promises": [promise_values(promise) for promise in facts.history.promises],
        "profiling_gpu_s": rounded(facts.history.profiling_gpu_s),
        "labelling_gpu_s": rounded(facts.history.labelling_gpu_s),
        "golden_gpu_s": rounded(facts.history.golden_gpu_s),
        "golden": _golden(facts),
        "label_budget_gpu_s": rounded(facts.label_budget_gpu_s),
        "adaptation": asdict(
            judge_adaptation(
                facts.history,
                asked=facts.adapts,
                golden_parts={stream: one.golden_part for stream, one in sampled.items()},
            )
        ),
        "licences": dict(sorted(facts.licences.items())),
        "health": health_values({stream: facts.health.get(stream, ()) for stream in streams}),
        "warnings": [{"text": text, "from": list(sources)} for text, sources in facts.warnings.items()],
        "host": {
            "planning_ms": _spread(facts.host.planning_ms),
            "swap_ms": _spread(facts.host.swap_ms),
            **({} if delays_ms is None else {"swap_delay_ms": _spread(delays_ms)}),
            **facts.host.others,
        },
    }


def _margin(scores: Mapping[StreamId, StreamScore]) -> float | None:
    """Returns half the width of the 95% interval of the mean accuracy; None where all frames are scored."""
    samples = [sample for score in scores.values() for sample in score.samples]
    if all(len(sample.counted) >= sample.frames for sample in samples):
        return None
    return margin_of_mean({stream: score.samples for stream, score in scores.items()})


def _golden(facts: RunFacts) -> dict[str, Any]:
    history = facts.history
    capacity_gpu_s = facts.gpus * history.span_us / US_PER_S
    known = facts.golden_accuracy
    return {
        "labelled_frames": history.labelled_frames if facts.detects else None,
        "device": facts.host.golden_device,
        "accuracy": rounded(known[0]) if known else None,
        "accuracy_interval": [rounded(end) for end in known[1:]] if known else None,
        "calls": history.golden_calls,
        "gpu_s": rounded(history.golden_gpu_s),
        "gpu_share": rounded(history.golden_gpu_s / capacity_gpu_s) if capacity_gpu_s > 0 else None,
    }


def _frames(counts: Sequence[FrameCounts], late_gpu: int | None) -> dict[str, int | None]:
    total = {name: sum(getattr(one, name) for one in counts) for name in _COUNTED}
    late = sum(one.late for one in counts)
    late_gpu = None if late_gpu is None else min(late_gpu, late)
    return {**total, "late_host": late - (late_gpu or 0), "late_gpu": late_gpu}


def _stream(
    facts: RunFacts,
    stream: StreamId,
    outcomes: Sequence[WindowOutcome],
    score: StreamScore,
    sampled: SampledAccuracy,
) -> dict[str, Any]:
    windows = {window.index: window for window in score.windows}
    lost_us = sum(span.end_us - span.start_us for span in facts.history.lost if span.stream == stream)
    return {
        "mean_accuracy": rounded(_mean_of(outcomes, score, lambda w: w.accuracy)),
        "accuracy_margin": rounded(_margin({stream: score})),
        "balanced_accuracy": rounded(_mean_of(outcomes, score, lambda w: w.balanced_accuracy)),
        "ap50": rounded(_mean_of(outcomes, score, lambda w: w.ap50)),
        "validation_accuracy": rounded(mean_or_none([o.validation_accuracy for o in outcomes])),
        "without_retraining": rounded(sampled.base),
        "gain": rounded(sampled.gain),
        **_student(sampled, facts.detects),
        "false_alarm_share": rounded(score.false_alarm_share),
        "counted_objects": score.objects,
        "excluded_objects": score.excluded_objects,
        "damaged_frames": facts.damaged.get(stream, 0),
        "lost_s": round(us_to_seconds(lost_us), 3),
        "set_aside": facts.set_aside.get(stream),
        "analysed_url": facts.analysed_urls.get(stream),
        "drifts": [drift_values(drift) for drift in facts.history.drifts if drift.stream == stream],
        "pooled": [
            pooled_values(event.t_us, event.pooled)
            for event in facts.history.pooled
            if event.stream == stream and event.pooled is not None
        ],
        "windows": [
            window_values(o, windows[o.index].accuracy if o.index in windows else None)
            | {
                "ap50": rounded(windows[o.index].ap50 if o.index in windows else None),
                "validation_accuracy": rounded(o.validation_accuracy),
            }
            for o in outcomes
        ],
    }


def _student(sampled: SampledAccuracy, detects: bool) -> dict[str, Any]:
    """Returns what a detecting student finds by itself on the scored frames."""
    if not detects:
        return dict.fromkeys(("golden_part", "student_accuracy", "student_without_retraining"))
    return {
        "golden_part": rounded(sampled.golden_part),
        "student_accuracy": rounded(sampled.student),
        "student_without_retraining": rounded(sampled.base_alone),
    }


def drift_values(drift: DriftDetected) -> dict[str, Any]:
    """Returns an entry of a stream's ``drifts``."""
    return {
        "at_s": round(us_to_seconds(drift.t_us), 3),
        "since_s": round(us_to_seconds(drift.since_us), 3),
        "reason": drift.reason,
    }


def pooled_values(t_us: int, pooled: PooledLabels) -> dict[str, Any]:
    """Returns an entry of a stream's ``pooled``."""
    return {
        "at_s": round(us_to_seconds(t_us), 3),
        "streams": list(pooled.streams),
        "labels": pooled.labels,
    }


def _mean_of(
    outcomes: Sequence[WindowOutcome],
    score: StreamScore,
    measure: Callable[[WindowScore], float | None],
) -> float | None:
    """Returns the mean over the listed windows, so that the numbers of a summary are consistent."""
    windows = {window.index: window for window in score.windows}
    return mean_or_none([measure(windows[o.index]) for o in outcomes if o.index in windows])


def window_values(outcome: WindowOutcome, accuracy: float | None) -> dict[str, Any]:
    """Returns an entry of a stream's ``windows``."""
    return {
        "index": outcome.index,
        "accuracy": rounded(accuracy),
        "retrained": outcome.retrained,
        "gamma": asdict(outcome.gamma) if outcome.gamma else None,
        "lambda": asdict(outcome.inference) if outcome.inference else None,
        "retrain_share_milli": outcome.retrain_share_milli,
        "inference_share_milli": outcome.inference_share_milli,
        "reason": outcome.reason,
    }


def _spread(values_ms: Sequence[float]) -> dict[str, float | None]:
    if not values_ms:
        return {"p50": None, "max": None}
    return {"p50": round(median(values_ms), 3), "max": round(max(values_ms), 3)}

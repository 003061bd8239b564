"""What happened when: the material of figures and of shares averaged over time."""

from collections.abc import Sequence
from dataclasses import dataclass

from ekya.core.ids import ModelVersion, StreamId
from ekya.measuring.accuracy import ScoreSeries


@dataclass(frozen=True, slots=True)
class ShareSample:
    """From ``t_us`` on a stream's jobs have these shares, until its next sample or the run's end."""

    t_us: int
    stream: StreamId
    retrain_share_milli: int
    inference_share_milli: int


@dataclass(frozen=True, slots=True)
class RetrainSpan:
    """One retraining.

    Attributes:
        stream: whose model was retrained.
        start_us, end_us: run time.
        gamma_name: γ, for people.
        finished: it came to its end; False where it failed or the window ended first.
    """

    stream: StreamId
    start_us: int
    end_us: int
    gamma_name: str
    finished: bool


@dataclass(frozen=True, slots=True)
class PreparationSpan:
    """Labelling and profiling, for all streams together, and the share that was kept for them."""

    start_us: int
    end_us: int
    share_milli: int


@dataclass(frozen=True, slots=True)
class Swap:
    """From ``t_us`` on a stream serves another model."""

    t_us: int
    stream: StreamId
    version: ModelVersion


@dataclass(frozen=True, slots=True)
class WindowSpan:
    """When a window began and ended, in run time."""

    index: int
    start_us: int
    end_us: int


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Accuracy of a stream in one run: second by second, and its mean as the summary has it."""

    series: ScoreSeries
    mean_accuracy: float | None


@dataclass(frozen=True, slots=True, eq=False)
class StreamCurves:
    """What a figure shows of one stream.

    Attributes:
        stream: which.
        measured: in this run.
        without_retraining: of the base model on the sampled frames, where it is known.
    """

    stream: StreamId
    measured: Curve
    without_retraining: Curve | None = None


@dataclass(frozen=True, slots=True, eq=False)
class RunTimeline:
    """Everything that a figure of a run shows.

    Attributes:
        windows: in order.
        streams: in the order in which they are drawn.
        shares, retrainings, swaps, preparations: in rising order of time.
        capacity_milli: share of all GPUs together.
    """

    windows: tuple[WindowSpan, ...]
    streams: tuple[StreamCurves, ...]
    shares: tuple[ShareSample, ...]
    retrainings: tuple[RetrainSpan, ...]
    swaps: tuple[Swap, ...]
    capacity_milli: int
    preparations: tuple[PreparationSpan, ...] = ()

    @property
    def end_us(self) -> int:
        """When the last window ended; 0 without windows."""
        return self.windows[-1].end_us if self.windows else 0


def mean_shares(
    samples: Sequence[ShareSample], stream: StreamId, start_us: int, end_us: int
) -> tuple[int, int]:
    """Retraining and inference share of a stream, averaged over a span of time, in whole thousandths.

    Args:
        samples: of any streams, in rising order of time. Before its first a stream has no share.
        stream: whose.
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
    return (2 * retrain + span_us) // (2 * span_us), (2 * inference + span_us) // (2 * span_us)

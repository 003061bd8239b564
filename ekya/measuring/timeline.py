"""Timeline of a run: data of its figures and of time-averaged shares."""

from collections.abc import Sequence
from dataclasses import dataclass

from ekya.core.ids import ModelVersion, StreamId
from ekya.measuring.accuracy import ScoreSeries


@dataclass(frozen=True, slots=True)
class ShareSample:
    """Shares of a stream's jobs from ``t_us`` until its next sample or the run's end."""

    t_us: int
    stream: StreamId
    retrain_share_milli: int
    inference_share_milli: int


@dataclass(frozen=True, slots=True)
class RetrainSpan:
    """One retraining.

    Attributes:
        stream: the stream of the retrained model.
        start_us, end_us: run time.
        gamma_name: γ, for display.
        finished: True if it completed; False if it failed or the window ended first.
    """

    stream: StreamId
    start_us: int
    end_us: int
    gamma_name: str
    finished: bool


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


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Accuracy of a stream in one run: by second, and its mean as in the summary."""

    series: ScoreSeries
    mean_accuracy: float | None


@dataclass(frozen=True, slots=True, eq=False)
class StreamCurves:
    """Curves of one stream in a figure.

    Attributes:
        stream: the stream.
        measured: in this run.
        without_retraining: of the base model on the sampled frames, if measured.
    """

    stream: StreamId
    measured: Curve
    without_retraining: Curve | None = None


@dataclass(frozen=True, slots=True, eq=False)
class RunTimeline:
    """Data of a figure of a run.

    Attributes:
        windows: in order.
        streams: in the order of drawing.
        shares, retrainings, swaps, preparations: in rising order of time.
        capacity_milli: total share of all GPUs.
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
        """End of the last window; 0 without windows."""
        return self.windows[-1].end_us if self.windows else 0


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
    return (2 * retrain + span_us) // (2 * span_us), (2 * inference + span_us) // (2 * span_us)

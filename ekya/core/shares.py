"""Jobs, and the holders of shares of the GPUs."""

from dataclasses import dataclass
from enum import StrEnum

from ekya.core.units import JobId, StreamId


class Work(StrEnum):
    """Kind of work for which a share is held."""

    INFERENCE = "inference"
    RETRAINING = "retraining"
    PREPARATION = "preparation"


@dataclass(frozen=True, slots=True, order=True)
class Job:
    """One of the two jobs of a stream that a plan gives a share; sorted by stream, inference first."""

    stream: StreamId
    work: Work


@dataclass(frozen=True, slots=True, order=True)
class ShareHolder:
    """A stream's inference, one of its retrainings, or a window's preparation.

    Attributes:
        work: kind of the work.
        stream: stream of the work; None for a preparation, which covers all streams.
        number: number of the retraining's job, or of the preparation's window; 0 for an inference.
        round: number of the preparation within its window.
    """

    work: Work
    stream: StreamId | None = None
    number: int = 0
    round: int = 0


def inference_holder(stream: StreamId) -> ShareHolder:
    """Returns the holder for a stream's inference."""
    return ShareHolder(Work.INFERENCE, stream)


def retraining_holder(stream: StreamId, job: JobId) -> ShareHolder:
    """Returns the holder for one of a stream's retrainings."""
    return ShareHolder(Work.RETRAINING, stream, job)


def preparation_holder(window: int, round: int = 0) -> ShareHolder:
    """Returns the holder for one of a window's preparations."""
    return ShareHolder(Work.PREPARATION, None, window, round)

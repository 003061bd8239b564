"""Who can hold a share of the GPUs."""

from dataclasses import dataclass
from enum import StrEnum

from ekya.core.ids import JobId, StreamId


class Work(StrEnum):
    """What a share is held for."""

    INFERENCE = "inference"
    RETRAINING = "retraining"
    PREPARATION = "preparation"


@dataclass(frozen=True, slots=True, order=True)
class ShareHolder:
    """A stream's inference, one of its retrainings, or a window's preparation.

    Attributes:
        work: which of them.
        stream: whose; None for a preparation, which is of all.
        number: of the retraining's job, or of the preparation's window; 0 for an inference.
    """

    work: Work
    stream: StreamId | None = None
    number: int = 0


def inference_holder(stream: StreamId) -> ShareHolder:
    """A stream's inference."""
    return ShareHolder(Work.INFERENCE, stream)


def retraining_holder(stream: StreamId, job: JobId) -> ShareHolder:
    """One of a stream's retrainings."""
    return ShareHolder(Work.RETRAINING, stream, job)


def preparation_holder(window: int) -> ShareHolder:
    """A window's preparation."""
    return ShareHolder(Work.PREPARATION, None, window)

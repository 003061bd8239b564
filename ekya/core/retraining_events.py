"""Events of retrainings, and of the weights that come into service."""

from dataclasses import dataclass

from ekya.core.gpus import DidNotFit
from ekya.core.units import JobId, ModelVersion, StreamId
from ekya.core.weights import CachedModel


@dataclass(frozen=True, slots=True)
class RetrainProgress:
    """A retraining finished an epoch. ``gpu_s`` is its use so far."""

    t_us: int
    stream: StreamId
    job: JobId
    epoch: int
    validation_accuracy: float
    gpu_s: float


@dataclass(frozen=True, slots=True)
class RetrainFinished:
    """A retraining finished its last epoch; its progress events precede this one."""

    t_us: int
    stream: StreamId
    job: JobId
    gpu_s: float


@dataclass(frozen=True, slots=True)
class RetrainFailed:
    """A retraining failed; its γ is not tried again in this window."""

    t_us: int
    stream: StreamId
    job: JobId
    reason: str


@dataclass(frozen=True, slots=True)
class MemoryShort:
    """A retraining or micro-profile did not fit into its GPU's memory: it was not started, or failed.

    Precedes the RetrainFailed of its job. γ that need at least as much are excluded for the window.

    Attributes:
        what: γ or micro-profile that did not fit.
        reason: in one sentence.
        needed_bytes, free_bytes: estimated, and reported by the driver; None where an attempt failed.
    """

    t_us: int
    stream: StreamId
    window: int
    what: DidNotFit
    reason: str
    needed_bytes: int | None = None
    free_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class MemoryMeasured:
    """Peak GPU memory of a retraining.

    Attributes:
        peak_bytes: of its process, without CUDA's own memory.
    """

    t_us: int
    stream: StreamId
    job: JobId
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class ModelSwapped:
    """Inference serves new weights.

    Attributes:
        validation_accuracy: of these weights, as their job reported it.
        stall_us: time for which the hot swap kept inference from taking a frame.
    """

    t_us: int
    stream: StreamId
    version: ModelVersion
    job: JobId
    validation_accuracy: float
    stall_us: int


@dataclass(frozen=True, slots=True)
class RolledBack:
    """Inference serves earlier weights again.

    Attributes:
        version: their number from now on.
        of: their number when they served before.
        stall_us: time for which the hot swap kept inference from taking a frame.
    """

    t_us: int
    stream: StreamId
    version: ModelVersion
    of: ModelVersion
    stall_us: int


@dataclass(frozen=True, slots=True)
class ModelCached:
    """A model of a stream is now cached and can serve again (paper §6.5)."""

    t_us: int
    stream: StreamId
    model: CachedModel


Swapped = ModelSwapped | RolledBack
"""Events of a hot swap, after which other weights serve."""

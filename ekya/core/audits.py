"""Audits: what the golden model says of answers on frames that nothing learns from."""

from dataclasses import dataclass

from ekya.core.units import StreamId


@dataclass(frozen=True, slots=True)
class AccuracyAudited:
    """The answers of a stream were compared with the golden model on frames that were drawn at random.

    The frames were drawn from all that had arrived since the audit before, each with the same probability.

    Attributes:
        window: in which they were compared.
        arrived: number of frames that they were drawn from.
        correct, counted: of each of them, the parts that are right, and those that count, as in scores:
            objects of a stream that classifies; objects and boxes of one that detects.
        gpu_s: cost.
    """

    t_us: int
    stream: StreamId
    window: int
    arrived: int
    correct: tuple[int, ...]
    counted: tuple[int, ...]
    gpu_s: float

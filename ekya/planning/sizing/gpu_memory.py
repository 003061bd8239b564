"""GPU memory of jobs: estimated before any has run, corrected by the peaks of those that have, and promised.

A retraining holds the whole model, and a gradient and a momentum for each weight that trains. It prepares by
passing every crop through the frozen blocks, and keeps the result for all of its epochs; each step adds what
the backward pass needs of a batch.
"""

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from ekya.core.configs import RetrainConfig
from ekya.core.gpus import Footprint
from ekya.core.profile import Family

CONTEXT_BYTES = 512 << 20
"""Memory that CUDA and its libraries take in a process when it first uses a GPU. A guess, and too low
for an H200, where it was 722 MiB."""

_COPIES = 2
"""Copies of input crops (their pixels are reordered), and of arrays that are put together from parts."""

_STATE = 2
"""Values beside each weight that trains: its gradient and its momentum."""


@dataclass(frozen=True, slots=True)
class JobCrops:
    """Crops that a retraining handles.

    Attributes:
        training: labelled for training, before γ takes its part of them.
        validation, exemplars: of the window, and from the exemplar memory.
    """

    training: int
    validation: int
    exemplars: int = 0


def retraining_bytes(footprint: Footprint, config: RetrainConfig, crops: JobCrops) -> int:
    """Returns the peak memory of a retraining, without what CUDA itself takes."""
    prepared = math.ceil(config.data_fraction * crops.training) + crops.validation + crops.exemplars
    kept = prepared * footprint.boundary_bytes
    passing = footprint.forward_crops * footprint.passing_bytes
    teacher = footprint.trained_bytes
    preparing = prepared * _COPIES * footprint.input_bytes + _COPIES * kept + passing + teacher
    batch = config.batch_size * (footprint.saved_bytes + footprint.passing_bytes)
    training = kept + max(batch, passing) + _STATE * footprint.trained_bytes
    return footprint.model_bytes + max(preparing, training)


def inference_bytes(footprint: Footprint) -> int:
    """Returns the peak memory of a stream's inference: its model, the next one, and a batch of crops."""
    each_crop = footprint.passing_bytes + _COPIES * footprint.input_bytes
    return 2 * footprint.model_bytes + footprint.forward_crops * each_crop


@dataclass(frozen=True, slots=True)
class MemoryMarks:
    """Peak memory of jobs that have run, as parts of what was estimated for them.

    Attributes:
        ratios: the largest of each family.
    """

    ratios: Mapping[Family, float] = field(default_factory=dict)

    def with_mark(self, family: Family, estimated_bytes: int, measured_bytes: int) -> "MemoryMarks":
        """Returns the marks with one more."""
        ratio = max(measured_bytes / max(estimated_bytes, 1), self.ratios.get(family, 0.0))
        return MemoryMarks({**self.ratios, family: ratio})

    def corrected_estimate(self, family: Family, estimated_bytes: int) -> int:
        """Returns an estimate corrected by the peak of its family.

        For a family that never ran, other families' ratios raise the estimate where they are above 1, and
        never lower it.
        """
        ratio = self.ratios.get(family)
        if ratio is None:
            ratio = max(1.0, *self.ratios.values()) if self.ratios else 1.0
        return math.ceil(ratio * estimated_bytes)


@dataclass(frozen=True, slots=True)
class MemoryBook:
    """Memory of admitted jobs that the driver may not report as taken yet.

    A promise is dropped once the driver's figures include it, or never will.

    Attributes:
        promises: GPU, by its position, and bytes of each job, by any key that identifies the job.
    """

    promises: Mapping[Hashable, tuple[int, int]] = field(default_factory=dict)

    def promised_bytes(self, gpu: int) -> int:
        """Returns the bytes promised to all jobs on a GPU."""
        return sum(size_bytes for at, size_bytes in self.promises.values() if at == gpu)

    def has_room(self, gpu: int, size_bytes: int, free_bytes: int) -> bool:
        """Returns whether this size is left of the memory that the driver reports as free."""
        return size_bytes + self.promised_bytes(gpu) <= free_bytes

    def with_claim(self, job: Hashable, gpu: int, size_bytes: int) -> "MemoryBook":
        """Returns the book with a job's claim, its only one."""
        return MemoryBook({**self.promises, job: (gpu, size_bytes)})

    def without_claim(self, job: Hashable) -> "MemoryBook":
        """Returns the book without a job's claim; the same where it has none."""
        return MemoryBook({other: claim for other, claim in self.promises.items() if other != job})

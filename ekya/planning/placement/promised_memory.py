"""Memory promised to jobs on a GPU before the driver reports it as taken."""

from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Claim:
    """Memory of an admitted job that may not have taken it yet.

    Attributes:
        job: any key that identifies the job.
        gpu: position of its GPU.
        size_bytes: memory that it will need.
    """

    job: Hashable
    gpu: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryBook:
    """Claims of admitted jobs; each is dropped once the driver's figures include it, or never will."""

    claims: tuple[Claim, ...] = ()

    def promised_bytes(self, gpu: int) -> int:
        """Returns the bytes promised to all jobs on a GPU."""
        return sum(claim.size_bytes for claim in self.claims if claim.gpu == gpu)

    def has_room(self, gpu: int, size_bytes: int, free_bytes: int) -> bool:
        """Returns whether this size is left of the memory that the driver reports as free."""
        return size_bytes + self.promised_bytes(gpu) <= free_bytes

    def with_claim(self, claim: Claim) -> "MemoryBook":
        """Returns the book with one more claim."""
        return MemoryBook((*self.claims, claim))

    def without_claim(self, job: Hashable) -> "MemoryBook":
        """Returns the book without a job's claim; the same where it has none."""
        return MemoryBook(tuple(claim for claim in self.claims if claim.job != job))

"""Memory that is promised to jobs on a GPU before the driver can see that they have it."""

from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that has been let in and may not have taken its memory yet.

    Attributes:
        job: whatever tells jobs apart.
        gpu: position of its GPU.
        size_bytes: what it will need.
    """

    job: Hashable
    gpu: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryBook:
    """Who was let in. A claim is given up as soon as the driver's figures have it in them, or never will."""

    claims: tuple[Claim, ...] = ()

    def promised_bytes(self, gpu: int) -> int:
        """To all jobs on a GPU."""
        return sum(claim.size_bytes for claim in self.claims if claim.gpu == gpu)

    def fits(self, gpu: int, size_bytes: int, free_bytes: int) -> bool:
        """Whether so much is left of what the driver calls free."""
        return size_bytes + self.promised_bytes(gpu) <= free_bytes

    def with_claim(self, claim: Claim) -> "MemoryBook":
        """With one more job."""
        return MemoryBook((*self.claims, claim))

    def without(self, job: Hashable) -> "MemoryBook":
        """Without a job; the same where it has no claim."""
        return MemoryBook(tuple(claim for claim in self.claims if claim.job != job))

"""What a policy answers: who trains where, on how much, and why."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ekya.fleet.policy.names import JobName, NodeName, SiteName

SERVER_PART = 0.2
"""Of a node's share for the parameter server, where workers are on its node; the rest is theirs, evenly."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a job has on one node.

    Attributes:
        node: where.
        gpus: g, that it has for itself.
        workers: y_i^r(t), how many of them work there.
        chunks: d_i^r(t), data chunks that they go through until the next snapshot; Deep-Edge's shard.
        batch: b_i, samples in a step of a worker; 0 where nobody says.
        share_milli: of the processor time that the workers would take if nobody held them back.
    """

    node: NodeName
    gpus: int = 0
    workers: int = 0
    chunks: int = 0
    batch: int = 0
    share_milli: int = 1000


@dataclass(frozen=True, slots=True)
class Assignment:
    """Of one job, until the policy says otherwise.

    Attributes:
        job: which.
        parts: where it trains; never empty.
        server: node of its parameter server, where it has one.
        moves: g_i^{rr'}(t), chunks from their site to the one that trains them; local ones are listed too.
        reason: one sentence that an operator can read.
    """

    job: JobName
    parts: tuple[Part, ...]
    reason: str = field(compare=False)
    server: NodeName | None = None
    moves: Mapping[tuple[SiteName, SiteName], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decision:
    """For all jobs: who runs, and why the others wait.

    Attributes:
        assignments: of those that run from now on.
        waiting: reasons, of those that do not.
    """

    assignments: tuple[Assignment, ...]
    waiting: Mapping[JobName, str] = field(default_factory=dict)

    def of(self, job: JobName) -> Assignment | None:
        """Its assignment; None where it waits."""
        return next((found for found in self.assignments if found.job == job), None)

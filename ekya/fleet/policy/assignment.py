"""A policy's decision: place and resources of each training, with reasons."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import floor

from ekya.fleet.policy.places import JobName, NodeName, SiteName


@dataclass(frozen=True, slots=True)
class NodePart:
    """Resources and data of a job on one node.

    Attributes:
        node: its name.
        gpus: g, exclusive GPUs.
        workers: y_i^r(t), number of workers.
        chunks: d_i^r(t), data chunks that they train until the next snapshot; Deep-Edge's shard.
        batch: b_i, samples in a step of a worker; 0 where the policy does not choose it.
        share_milli: of the processor time that unthrottled workers would take.
    """

    node: NodeName
    gpus: int = 0
    workers: int = 0
    chunks: int = 0
    batch: int = 0
    share_milli: int = 1000


@dataclass(frozen=True, slots=True)
class JobAssignment:
    """Assignment of one job; holds until the policy changes it.

    Attributes:
        job: its name.
        parts: nodes on which it trains; never empty.
        parameter_server: its node, where there is one.
        moves: g_i^{rr'}(t), chunks by origin and training site, local ones included.
        reason: one sentence for the operator.
    """

    job: JobName
    parts: tuple[NodePart, ...]
    reason: str = field(compare=False)
    parameter_server: NodeName | None = None
    moves: Mapping[tuple[SiteName, SiteName], int] = field(default_factory=dict)


@dataclass(frozen=True)
class Decision:
    """Decision for all jobs.

    Attributes:
        assignments: of the jobs that run from now on.
        waiting: reasons, by job, of the jobs that wait.
    """

    assignments: tuple[JobAssignment, ...]
    waiting: Mapping[JobName, str] = field(default_factory=dict)

    def assignment_of(self, job: JobName) -> JobAssignment | None:
        """Returns the assignment of a job; None where it waits."""
        return self._assignment_of.get(job)

    @cached_property
    def _assignment_of(self) -> Mapping[JobName, JobAssignment]:
        return {assignment.job: assignment for assignment in self.assignments}


def whole(shards: Mapping[NodeName, float], samples: int) -> dict[NodeName, int]:
    """Rounds shards to whole samples that sum to ``samples``, by the largest remainders."""
    rounded = {name: floor(shard) for name, shard in shards.items()}
    rests = sorted(shards, key=lambda name: (rounded[name] - shards[name], name))
    for name in rests[: samples - sum(rounded.values())]:
        rounded[name] += 1
    return rounded

"""ANDREAS's world: a job runs on GPUs of one node as fast as its profile says, with a snapshot an epoch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ekya.fleet.policy.assignment import Assignment
from ekya.fleet.policy.names import JobName
from ekya.fleet.policy.view import FleetView, JobState
from ekya.fleet.sim.physics import Interrupted, Stage


@dataclass(frozen=True, slots=True)
class AndreasPhysics:
    """A stage is all that is left of a job; an epoch within it ends with a snapshot (§V).

    Attributes:
        starts_again_us: a migration or a start after a preemption, before the first epoch goes on.
        snapshots: whether a job that is moved or sent back goes back to the last one. Without, it loses
            nothing: the paper's own simulator, which knows no cost of a reconfiguration (§V.C). When a node
            fails, what was done since the last one is lost in either.
        pace: what an epoch of a job really takes, over what its profile says; 1 where it is missing.
    """

    starts_again_us: int = 0
    snapshots: bool = True
    pace: Mapping[JobName, float] = field(default_factory=dict)

    def faults(self, view: FleetView, assignments: Sequence[Assignment]) -> list[str]:
        """A job is on one node, on as many GPUs as it was profiled with."""
        faults = []
        for assignment in assignments:
            job, part = view.state(assignment.job).job, assignment.parts[0]
            if len(assignment.parts) != 1:
                faults.append(f"{job.name} is on {len(assignment.parts)} nodes")
            elif job.allowed and part.node not in job.allowed:
                faults.append(f"{job.name} may not be on {part.node}")
            elif (kind := view.places.nodes[part.node].kind, part.gpus) not in job.epoch_us:
                faults.append(f"{job.name} has no profile of {part.gpus} GPUs of {kind}")
        return faults

    def stage(
        self, view: FleetView, state: JobState, assignment: Assignment, others: Sequence[Assignment]
    ) -> Stage:
        """Until the job's end; other jobs slow it down nowhere."""
        part, left = assignment.parts[0], state.left
        profiled_us = state.job.epoch_us[view.places.nodes[part.node].kind, part.gpus]
        epoch_us = profiled_us * self.pace.get(state.job.name, 1.0)

        def leaves(worked_us: int, snapshots: bool) -> Interrupted:
            done = left.begun + worked_us / epoch_us
            # Not the last one: an end is no interruption, whatever was rounded.
            whole = min(int(done), left.epochs - 1)
            begun = 0.0 if snapshots else min(done - whole, 1.0)
            lost_us = round((done - whole) * epoch_us) if snapshots else 0
            return Interrupted(replace(left, epochs=left.epochs - whole, begun=begun), lost_us)

        return Stage(
            max(1, round((left.epochs - left.begun) * epoch_us)),
            None,
            kept=lambda worked_us: leaves(worked_us, self.snapshots),
            failed=lambda worked_us: leaves(worked_us, snapshots=True),
        )

    def resume_us(self, view: FleetView, state: JobState, assignment: Assignment) -> int:
        """The container starts and the snapshot is loaded."""
        return self.starts_again_us

"""Physics of ANDREAS's world: a job runs on GPUs of one node by its profile, with a snapshot per epoch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ekya.fleet.policy.assignment import JobAssignment
from ekya.fleet.policy.job import Left
from ekya.fleet.policy.names import JobName
from ekya.fleet.policy.view import FleetView, JobState
from ekya.fleet.sim.physics import Kept, Stage


@dataclass(frozen=True, slots=True)
class AndreasPhysics:
    """ANDREAS's physics: a stage is the remaining work of a job; each epoch in it ends with a snapshot (§V).

    Attributes:
        starts_again_us: time to start the container and load the snapshot after a migration, preemption or
            failure.
        snapshots: whether a moved or preempted job continues from its last snapshot. If not, it loses
            nothing, as in the paper's own simulator, where a reconfiguration costs nothing (§V.C). When a
            node fails, the work since the last snapshot is lost in both cases.
        pace: real time of a job's epoch over the profiled one; 1 where it is missing.
    """

    starts_again_us: int = 0
    snapshots: bool = True
    pace: Mapping[JobName, float] = field(default_factory=dict)

    def faults(self, view: FleetView, assignments: Sequence[JobAssignment]) -> list[str]:
        """Checks that each job is on one allowed node, on a number of GPUs that was profiled."""
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
        self, view: FleetView, state: JobState, assignment: JobAssignment, others: Sequence[JobAssignment]
    ) -> Stage:
        """Returns the stage to the job's end; other jobs do not slow it down."""
        part, left = assignment.parts[0], state.left
        profiled_us = state.job.epoch_us[view.places.nodes[part.node].kind, part.gpus]
        epoch_us = profiled_us * self.pace.get(state.job.name, 1.0)

        def leaves(worked_us: int, snapshots: bool) -> Kept:
            done = left.begun + worked_us / epoch_us
            # An interruption never completes the last epoch, also where rounding says so.
            whole = min(int(done), left.epochs - 1)
            begun = 0.0 if snapshots else min(done - whole, 1.0)
            lost_us = round((done - whole) * epoch_us) if snapshots else 0
            return Kept(Left(left.epochs - whole, left.chunks, begun), lost_us)

        return Stage(
            max(1, round((left.epochs - left.begun) * epoch_us)),
            None,
            kept=lambda worked_us: leaves(worked_us, self.snapshots),
            failed=lambda worked_us: leaves(worked_us, snapshots=True),
            resume_us=self.starts_again_us,
        )

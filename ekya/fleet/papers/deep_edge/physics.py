"""Physics of Deep-Edge's world: cost model and constraints (§III) over the laws; a stage is an epoch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ekya.core.units import FULL_GPU_MILLI, seconds_to_us
from ekya.fleet.papers.deep_edge import laws
from ekya.fleet.papers.deep_edge.devices import BATCH_MAX, BATCH_MIN, PI, WORKERS
from ekya.fleet.policy.assignment import JobAssignment, NodePart
from ekya.fleet.policy.deep_edge.estimates import EdgeTraining
from ekya.fleet.policy.names import NodeName
from ekya.fleet.policy.places import Node, NodeState
from ekya.fleet.policy.view import FleetView, JobState
from ekya.fleet.sim.physics import Stage


@dataclass(frozen=True, slots=True)
class EdgePhysics:
    """Deep-Edge's physics on the true states of the machines, which differ from the measured ones.

    Data transfer and initialisation take no time, as the paper assumes (§III.C). Speeds do not vary within an
    epoch: its length is a sum of a hundred steps.

    Attributes:
        truth: true states of all machines without the fleet's trainings.
    """

    truth: Mapping[NodeName, NodeState]

    def faults(self, view: FleetView, assignments: Sequence[JobAssignment]) -> list[str]:
        """Returns violations of constraints (1) to (3), memory overflows, and machines assigned twice.

        Violations of constraint (4), the deadlines, are counted in the stage instead: the baseline breaks it.
        """
        faults, given = [], set[NodeName]()
        for assignment in assignments:
            samples = sum(view.state(assignment.job).left.chunks.values())
            trained = sum(part.chunks for part in assignment.parts)
            if trained != samples:
                faults.append(f"{assignment.job} trains {trained} of {samples} samples")
            name = assignment.parameter_server
            if name is None or view.places.nodes[name].kind != PI:
                faults.append(f"{assignment.job} has no parameter server")
            for part in assignment.parts:
                faults += self._part_faults(view, part)
                if part.node in given:
                    faults.append(f"{part.node} trains twice")
                given.add(part.node)
        return faults

    def stage(
        self, view: FleetView, state: JobState, assignment: JobAssignment, others: Sequence[JobAssignment]
    ) -> Stage:
        """Returns one epoch, as long as that of the slowest worker."""
        nodes, name = view.places.nodes, assignment.parameter_server
        if name is None:
            raise ValueError(f"{assignment.job} has no parameter server")
        sharing = [assignment, *(other for other in others if other.parameter_server == name)]
        trainings = [self._training(nodes[part.node], part) for one in sharing for part in one.parts]
        updating_s = laws.update_s(trainings, self.truth[name])
        own = list(zip(assignment.parts, trainings, updating_s, strict=False))
        takes_s = max(_shard_s(part.chunks, training, update_s) for part, training, update_s in own)
        late = sum(
            laws.exec_s(training.kind, app.name, laws.state_after(training)) > app.deadline_s
            for part, training, _ in own
            for app in nodes[part.node].apps
        )
        epochs = state.left.epochs - 1
        left = replace(state.left, epochs=epochs) if epochs else None
        return Stage(seconds_to_us(takes_s), left, late_apps=late)

    def _training(self, node: Node, part: NodePart) -> EdgeTraining:
        return EdgeTraining(node.kind, self.truth[node.name], part.batch, part.share_milli)

    def _part_faults(self, view: FleetView, part: NodePart) -> list[str]:
        node = view.places.nodes[part.node]
        if node.kind not in WORKERS:
            return [f"{part.node} does not train"]
        faults = []
        if not BATCH_MIN <= part.batch <= BATCH_MAX:
            faults.append(f"{part.node} has batches of {part.batch}, outside {BATCH_MIN} to {BATCH_MAX}")
        elif laws.state_after(self._training(node, part)).mem > 1:
            faults.append(f"{part.node} has no memory for batches of {part.batch}")
        if part.chunks < 1:
            faults.append(f"{part.node} has nothing to train")
        if not 0 < part.share_milli <= FULL_GPU_MILLI:
            faults.append(f"{part.node} has a share of {part.share_milli} thousandths")
        return faults


def _shard_s(samples: int, training: EdgeTraining, update_s: float) -> float:
    """Returns epochTime_i of a shard, in whole steps; a smaller last batch takes a full update."""
    whole, rest = divmod(samples, training.batch)
    takes_s = whole * (training.batch * laws.compute_s(training) + update_s)
    if rest:
        takes_s += rest * laws.compute_s(replace(training, batch=rest)) + update_s
    return takes_s

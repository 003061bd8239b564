"""Physics of Deep-Edge's world: cost model and constraints (§III) over the laws; a stage is an epoch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ekya.core.units import FULL_GPU_MILLI, seconds_to_us
from ekya.fleet.papers.deep_edge import laws
from ekya.fleet.papers.deep_edge.devices import BATCH_MAX, BATCH_MIN, PARAMETER_SERVERS, SIFT, WORKERS
from ekya.fleet.policy.assignment import Assignment, Part
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

    def faults(self, view: FleetView, assignments: Sequence[Assignment]) -> list[str]:
        """Returns violations of constraints (1) to (3), memory overflows, and machines assigned twice.

        Violations of constraint (4), the deadlines, are counted in the stage instead: the baseline breaks it.
        """
        faults, given = [], set[NodeName]()
        for assignment in assignments:
            samples = sum(view.state(assignment.job).left.chunks.values())
            trained = sum(part.chunks for part in assignment.parts)
            if trained != samples:
                faults.append(f"{assignment.job} trains {trained} of {samples} samples")
            if (
                assignment.parameter_server is None
                or view.places.nodes[assignment.parameter_server].kind not in PARAMETER_SERVERS
            ):
                faults.append(f"{assignment.job} has no parameter server")
            for part in assignment.parts:
                faults += self._part_faults(view, part)
                if part.node in given:
                    faults.append(f"{part.node} trains twice")
                given.add(part.node)
        return faults

    def stage(
        self, view: FleetView, state: JobState, assignment: Assignment, others: Sequence[Assignment]
    ) -> Stage:
        """Returns one epoch, as long as that of the slowest worker."""
        nodes = view.places.nodes
        takes_s = max(self.epoch_s(nodes, assignment, others))
        late = sum(
            self.exec_s(nodes[part.node], part, app.name) > app.deadline_s
            for part in assignment.parts
            for app in nodes[part.node].apps
        )
        epochs = state.left.epochs - 1
        left = replace(state.left, epochs=epochs) if epochs else None
        return Stage(seconds_to_us(takes_s), left, late_apps=late)

    def resume_us(self, view: FleetView, state: JobState, assignment: Assignment) -> int:
        """Returns 0: transfer and initialisation are neglected (§III.C)."""
        return 0

    def epoch_s(
        self, nodes: Mapping[NodeName, Node], assignment: Assignment, others: Sequence[Assignment] = ()
    ) -> list[float]:
        """Returns epochTime_i of each part, in whole steps; a smaller last batch takes a full update."""
        sharing = [
            assignment,
            *(other for other in others if other.parameter_server == assignment.parameter_server),
        ]
        parts = [part for one in sharing for part in one.parts]
        computing_s = [self.compute_s(nodes[part.node], part) for part in parts]
        steps = [
            (part.batch * each_s, self._after(nodes[part.node], part).cpu)
            for part, each_s in zip(parts, computing_s, strict=True)
        ]
        name = assignment.parameter_server
        if name is None:
            raise ValueError(f"{assignment.job} has no parameter server")
        updating_s = laws.update_s(PARAMETER_SERVERS[nodes[name].kind], self.truth[name].cpu, steps)
        return [
            self._shard_s(nodes[part.node], part, update_s)
            for part, update_s in zip(assignment.parts, updating_s, strict=False)
        ]

    def compute_s(self, node: Node, part: Part) -> float:
        """Returns t_i^compute of a part, for one sample."""
        return laws.compute_s(
            WORKERS[node.kind], self.truth[node.name], part.batch, part.share_milli / FULL_GPU_MILLI
        )

    def exec_s(self, node: Node, part: Part, app: str) -> float:
        """Returns the execution time of an application beside a part, at the 95th percentile."""
        if app != SIFT:
            raise ValueError(f"{app} is no application of this world; there is {SIFT}")
        return laws.sift_s(WORKERS[node.kind], self._after(node, part))

    def _shard_s(self, node: Node, part: Part, update_s: float) -> float:
        whole, rest = divmod(part.chunks, part.batch)
        takes_s = whole * (part.batch * self.compute_s(node, part) + update_s)
        if rest:
            takes_s += rest * self.compute_s(node, replace(part, batch=rest)) + update_s
        return takes_s

    def _after(self, node: Node, part: Part) -> NodeState:
        share = part.share_milli / FULL_GPU_MILLI
        return laws.state_after(WORKERS[node.kind], self.truth[node.name], part.batch, share)

    def _part_faults(self, view: FleetView, part: Part) -> list[str]:
        node = view.places.nodes.get(part.node)
        if node is None or node.kind not in WORKERS:
            return [f"{part.node} does not train"]
        faults = []
        if not BATCH_MIN <= part.batch <= BATCH_MAX:
            faults.append(f"{part.node} has batches of {part.batch}, outside {BATCH_MIN} to {BATCH_MAX}")
        elif self._after(node, part).mem > 1:
            faults.append(f"{part.node} has no memory for batches of {part.batch}")
        if part.chunks < 1:
            faults.append(f"{part.node} has nothing to train")
        if not 0 < part.share_milli <= FULL_GPU_MILLI:
            faults.append(f"{part.node} has a share of {part.share_milli} thousandths")
        return faults

"""Fleet policy that spreads one update after the other with one of Deep-Edge's solvers."""

from collections.abc import Mapping
from dataclasses import dataclass

from ekya.fleet.policy.assignment import Decision, JobAssignment
from ekya.fleet.policy.deep_edge.estimates import ANY_EDGE, EdgeEstimates, EdgeLimits
from ekya.fleet.policy.deep_edge.task import EdgePlan, EdgeTask, Solver
from ekya.fleet.policy.names import NodeName
from ekya.fleet.policy.places import Node
from ekya.fleet.policy.strikes import STRIKES
from ekya.fleet.policy.view import FleetView, JobState


@dataclass(frozen=True, slots=True)
class EdgePolicy:
    """Spreads each training over the workers that are free when it arrives, and leaves it there.

    A training is spread again when a machine fails under it. A machine can be a worker or the parameter
    server of a job if its capacity covers the job's ``worker`` or ``parameter_server`` needs.
    """

    name: str
    solver: Solver
    estimates: EdgeEstimates
    limits: EdgeLimits = ANY_EDGE
    on_events: bool = True
    every_us: None = None

    def decide(self, view: FleetView) -> Decision:
        """Keeps running trainings; spreads the others over free machines, in the order of arrival."""
        given = [state.assignment for state in view.jobs if state.assignment is not None]
        waiting = {}
        for state in sorted(view.jobs, key=lambda state: (state.job.arrives_us, state.job.name)):
            if state.assignment is None:
                found = self._spread(view, state, {part.node for one in given for part in one.parts})
                if isinstance(found, JobAssignment):
                    given.append(found)
                else:
                    waiting[state.job.name] = found
        return Decision(tuple(given), waiting)

    def _spread(self, view: FleetView, state: JobState, taken: set[NodeName]) -> JobAssignment | str:
        job, nodes = state.job, [node for _, node in sorted(view.places.nodes.items())]
        parameter_server = next(
            (node for node in nodes if _holds(node, job.parameter_server) and state.may_use(node.name)), None
        )
        if parameter_server is None:
            return "no machine that could be the parameter server works"
        left_out = {
            node.name: f"it has failed {STRIKES} times under this training"
            for node in nodes
            if node.name in state.strikes.out
        }
        workers = tuple(
            node
            for node in nodes
            if _holds(node, job.worker) and node.name not in taken and state.may_use(node.name)
        )
        samples = sum(state.left.chunks.values())
        plan = self.solver(EdgeTask(workers, parameter_server.state, samples, self.estimates, self.limits))
        left_out |= plan.left_out
        if not plan.parts:
            return f"no worker is free for it{_told(left_out)}"
        return JobAssignment(
            job.name, plan.parts, _reason(plan, samples, left_out), parameter_server.name, mode="asynchronous"
        )


def _holds(node: Node, needs: Mapping[str, float]) -> bool:
    return bool(needs) and all(node.capacity.get(resource, 0.0) >= need for resource, need in needs.items())


def _reason(plan: EdgePlan, samples: int, left_out: dict[NodeName, str]) -> str:
    parts = ", ".join(
        f"{part.node} {part.chunks} in batches of {part.batch}"
        + (f" at {part.share_milli / 10:g}% of its processor" if part.share_milli < 1000 else "")
        for part in plan.parts
    )
    return f"of {samples} samples {parts}, so that an epoch takes {plan.epoch_s:.0f} s{_told(left_out)}"


def _told(left_out: dict[NodeName, str]) -> str:
    return "".join(f"; not {name}: {why}" for name, why in sorted(left_out.items()))

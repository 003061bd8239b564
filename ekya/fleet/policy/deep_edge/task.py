"""Input, output and protocol of Deep-Edge's solvers, which spread one update over machines."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ekya.core.units import FULL_GPU_MILLI
from ekya.fleet.policy.assignment import Decision, JobAssignment, NodePart
from ekya.fleet.policy.deep_edge.estimates import ANY_EDGE, EdgeEstimates, EdgeLimits, EdgeTraining
from ekya.fleet.policy.places import Node, NodeName, NodeState
from ekya.fleet.policy.view import FleetView, JobState


def training_on(node: Node, batch: int, share_milli: int) -> EdgeTraining:
    """Returns the estimators' input for a training on a node."""
    return EdgeTraining(node.kind, node.state, batch, share_milli)


@dataclass(frozen=True, slots=True)
class EdgeTask:
    """A training, and the machines that are free for it.

    Attributes:
        workers: W, with their states.
        parameter_server: X_ps.
        samples: |M|.
    """

    workers: tuple[Node, ...]
    parameter_server: NodeState
    samples: int
    estimates: EdgeEstimates
    limits: EdgeLimits = ANY_EDGE

    def max_batch(self, node: Node, share_milli: int = FULL_GPU_MILLI) -> int:
        """Returns GetMaxBatchSize, the largest batch that fits by EstState^mem; 0 where b_min does not fit.

        A binary search, as the paper's function uses EstState^mem recursively.
        """
        limits = self.limits

        def fits(batch: int) -> bool:
            after = self.estimates.state_after(training_on(node, batch, share_milli))
            return after.mem * (1 + limits.mem_error) <= limits.mem

        if not fits(limits.batch_min):
            return 0
        low, high = limits.batch_min, limits.batch_max
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if fits(middle) else (low, middle - 1)
        return low

    def sample_s(self, workers: Sequence[tuple[Node, int, int]]) -> list[float]:
        """Returns t_i^total = t_i^compute + t_i^update / b_i of workers with their batches and shares."""
        trainings = [training_on(*worker) for worker in workers]
        updates_s = self.estimates.update_s(trainings, self.parameter_server)
        return [
            self.estimates.compute_s(training) + update_s / training.batch
            for training, update_s in zip(trainings, updates_s, strict=True)
        ]

    def pressure(self, node: Node, batch: int, share_milli: int = FULL_GPU_MILLI) -> str | None:
        """Returns why a background application would be late; None where none would (constraint 4)."""
        after = self.estimates.state_after(training_on(node, batch, share_milli))
        for app in node.apps:
            takes_s = self.estimates.exec_s(node.kind, app.name, after)
            if takes_s * (1 + self.limits.exec_error) > app.deadline_s:
                return (
                    f"{app.name} would take {1000 * takes_s:.0f} of its {1000 * app.deadline_s:.0f} ms there"
                )
        return None


@dataclass(frozen=True, slots=True)
class EdgePlan:
    """Shards, batches and shares.

    Attributes:
        parts: of the workers that train; empty where none can.
        epoch_s: estimated length of an epoch.
        left_out: reasons of the workers that do not train.
    """

    parts: tuple[NodePart, ...]
    epoch_s: float
    left_out: Mapping[NodeName, str] = field(default_factory=dict)


Solver = Callable[[EdgeTask], EdgePlan]
"""Gives all samples to workers that may train, or returns an empty plan; deterministic."""

NO_MEMORY = "its memory has no room for the smallest batch"


@dataclass(frozen=True, slots=True)
class EdgePolicy:
    """Spreads each training over the workers that are free when it arrives, and leaves it there.

    A machine can be a worker or the parameter
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
        parameter_server = next((node for node in nodes if _holds(node, job.parameter_server)), None)
        if parameter_server is None:
            return "no machine can be the parameter server"
        workers = tuple(node for node in nodes if _holds(node, job.worker) and node.name not in taken)
        samples = sum(state.left.chunks.values())
        plan = self.solver(EdgeTask(workers, parameter_server.state, samples, self.estimates, self.limits))
        if not plan.parts:
            return f"no worker is free for it{_told(plan.left_out)}"
        return JobAssignment(job.name, plan.parts, _reason(plan, samples), parameter_server.name)


def _holds(node: Node, needs: Mapping[str, float]) -> bool:
    return bool(needs) and all(node.capacity.get(resource, 0.0) >= need for resource, need in needs.items())


def _reason(plan: EdgePlan, samples: int) -> str:
    parts = ", ".join(
        f"{part.node} {part.chunks} in batches of {part.batch}"
        + (f" at {part.share_milli / 10:g}% of its processor" if part.share_milli < 1000 else "")
        for part in plan.parts
    )
    return f"of {samples} samples {parts}, so that an epoch takes {plan.epoch_s:.0f} s{_told(plan.left_out)}"


def _told(left_out: Mapping[NodeName, str]) -> str:
    return "".join(f"; not {name}: {why}" for name, why in sorted(left_out.items()))

"""The laws as estimates without an error: for solvers that know."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ekya.core.units import FULL_GPU_MILLI
from ekya.fleet.policy.deep_edge.estimates import Training
from ekya.fleet.policy.names import NodeName
from ekya.fleet.policy.places import NodeState, Places
from ekya.fleet.sim.deep_edge import laws
from ekya.fleet.sim.deep_edge.devices import PI, SERVERS, SIFT, WORKERS


class Truth:
    """The laws, as far as a solver can ask for them."""

    def compute_s(self, worker: Training) -> float:
        """t_i^compute."""
        share = worker.share_milli / FULL_GPU_MILLI
        return laws.compute_s(WORKERS[worker.kind], worker.state, worker.batch, share)

    def update_s(self, workers: Sequence[Training], server: NodeState) -> list[float]:
        """t_i^update, of a Pi."""
        steps = [(one.batch * self.compute_s(one), self.state_after(one).cpu) for one in workers]
        return laws.update_s(SERVERS[PI], server.cpu, steps)

    def state_after(self, worker: Training) -> NodeState:
        """X_i^new."""
        share = worker.share_milli / FULL_GPU_MILLI
        return laws.state_after(WORKERS[worker.kind], worker.state, worker.batch, share)

    def exec_s(self, kind: str, app: str, state: NodeState) -> float:
        """What SIFT takes."""
        if app != SIFT:
            raise ValueError(f"{app} is no application of this world; there is {SIFT}")
        return laws.sift_s(WORKERS[kind], state)


def as_it_is(places: Places, truth: Mapping[NodeName, NodeState]) -> Places:
    """The same machines, with their states as they are instead of as measured."""
    return replace(
        places, nodes={name: replace(node, state=truth[name]) for name, node in places.nodes.items()}
    )

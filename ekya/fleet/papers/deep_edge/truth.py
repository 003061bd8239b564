"""The laws as error-free estimates, for solvers with perfect knowledge."""

from collections.abc import Sequence

from ekya.core.units import FULL_GPU_MILLI
from ekya.fleet.papers.deep_edge import laws
from ekya.fleet.papers.deep_edge.devices import PARAMETER_SERVERS, PI, SIFT, WORKERS
from ekya.fleet.policy.deep_edge.estimates import Training
from ekya.fleet.policy.places import NodeState


class Truth:
    """Implements ``EdgeEstimates`` with the laws."""

    def compute_s(self, worker: Training) -> float:
        """Returns t_i^compute."""
        share = worker.share_milli / FULL_GPU_MILLI
        return laws.compute_s(WORKERS[worker.kind], worker.state, worker.batch, share)

    def update_s(self, workers: Sequence[Training], parameter_server: NodeState) -> list[float]:
        """Returns t_i^update with a Pi as parameter server."""
        steps = [(one.batch * self.compute_s(one), self.state_after(one).cpu) for one in workers]
        return laws.update_s(PARAMETER_SERVERS[PI], parameter_server.cpu, steps)

    def state_after(self, worker: Training) -> NodeState:
        """Returns X_i^new."""
        share = worker.share_milli / FULL_GPU_MILLI
        return laws.state_after(WORKERS[worker.kind], worker.state, worker.batch, share)

    def exec_s(self, kind: str, app: str, state: NodeState) -> float:
        """Returns the execution time of SIFT."""
        if app != SIFT:
            raise ValueError(f"{app} is no application of this world; there is {SIFT}")
        return laws.sift_s(WORKERS[kind], state)

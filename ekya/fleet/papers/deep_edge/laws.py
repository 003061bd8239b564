"""True times of steps, updates and applications. Policies do not see them; they have estimates.

Deep-Edge §V.B lists observations; each function names the ones that it reproduces.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import sqrt

from ekya.core.units import FULL_GPU_MILLI
from ekya.fleet.papers.deep_edge.devices import (
    LINK_S,
    PARAMETER_SERVERS,
    PI,
    SIFT,
    WORKERS,
    ParameterServer,
    Worker,
)
from ekya.fleet.policy.deep_edge.estimates import Training
from ekya.fleet.policy.names import NodeName
from ekya.fleet.policy.places import NodeState, Places

_KNEE = 4
"""Exponent that sets how sharply utilisation saturates near 1."""


def saturated(demand: float) -> float:
    """Returns a resource's utilisation for a demand: the demand itself while it is small, at most 1."""
    return demand / _stretch(demand)


def compute_s(worker: Worker, state: NodeState, batch: int, share: float = 1.0) -> float:
    """Returns t_i^compute = forward_i + backward_i / b_i, for one sample (§III.A).

    Grows with GPU and CPU utilisation, falls with the batch (Figures 9a to 9c), does not depend on memory.

    Args:
        state: X_i^initial.
        batch: b_i.
        share: part of ``cpu_demand`` that the training may use; it stretches the processor's part of a step.
    """
    gpu_slower = 1 + worker.gpu_stress * state.gpu**2
    at_rest = _stretch(worker.rest.cpu + worker.cpu_demand)
    cpu_slower = _stretch(state.cpu + share * worker.cpu_demand) / at_rest / share
    slower = (1 - worker.cpu_part) * gpu_slower + worker.cpu_part * cpu_slower
    return slower * (worker.forward_s + worker.backward_s / batch)


def update_s(kind: ParameterServer, cpu: float, steps: Sequence[tuple[float, float]]) -> list[float]:
    """Returns t_i^update of each worker: its own part, and the parameter server's.

    Workers that compute, then queue for the parameter server, are a closed queueing network. By Schweitzer's
    mean value analysis the time there is the service time times one plus the number of other workers there.
    So it grows with the number of workers and its CPU utilisation (Figure 9f), and falls with batch sizes,
    because the other workers then push less often (Figure 9e).

    Args:
        cpu: X_ps^cpu.
        steps: for each worker, seconds to compute a step, and its machine's CPU utilisation while it trains.
    """
    service_s = kind.service_s * (1 + kind.cpu_stress * cpu**2)
    links_s = [LINK_S * (1 + cpu) for _, cpu in steps]
    away_s = [computing_s + link_s for (computing_s, _), link_s in zip(steps, links_s, strict=True)]
    there_s = [service_s] * len(steps)
    for _ in range(60):
        present = [there / (away + there) for there, away in zip(there_s, away_s, strict=True)]
        everyone = sum(present)
        there_s = [service_s * (1 + everyone - one) for one in present]
    return [link + there for link, there in zip(links_s, there_s, strict=True)]


def state_after(worker: Worker, state: NodeState, batch: int, share: float = 1.0) -> NodeState:
    """Returns X_i^new while a training runs (Figure 5).

    Memory grows with the batch (Figure 9d); above 1 the operating system kills the training.
    """
    return NodeState(
        cpu=saturated(state.cpu + share * worker.cpu_demand),
        gpu=saturated(state.gpu + worker.gpu_demand),
        mem=state.mem + worker.model_mem + worker.sample_mem * batch,
    )


def after_updates(kind: ParameterServer, state: NodeState, steps: Sequence[tuple[float, float]]) -> NodeState:
    """Returns the state of the parameter server while workers push to it."""
    updates_s = update_s(kind, state.cpu, steps)
    busy = sum(
        kind.service_s / (computing_s + updating_s)
        for (computing_s, _), updating_s in zip(steps, updates_s, strict=True)
    )
    cpu = saturated(state.cpu + kind.cpu_demand * min(1.0, busy))
    return NodeState(cpu, 0.0, state.mem + kind.model_mem + kind.worker_mem * len(steps))


def sift_s(worker: Worker, state: NodeState) -> float:
    """Returns the execution time of SIFT on a machine in a state, at the 95th percentile.

    SIFT waits for a core by Sakasegawa's formula for M/M/c, half of it because of time slices; GPU use takes
    memory bandwidth from it; and above nine tenths of the memory paging begins.
    """
    cpu = min(state.cpu, 0.99)
    waits = cpu ** (sqrt(2 * (worker.cores + 1)) - 1) / (worker.cores * (1 - cpu))
    pages = max(0.0, state.mem - 0.9)
    return float(worker.sift_s * (1 + 0.5 * waits + 0.15 * state.gpu**2 + 0.5 * pages))


def _stretch(demand: float) -> float:
    return float((1 + demand**_KNEE) ** (1 / _KNEE))


class Truth:
    """Implements ``EdgeEstimates`` with these laws, for solvers with perfect knowledge."""

    def compute_s(self, worker: Training) -> float:
        """Returns t_i^compute."""
        share = worker.share_milli / FULL_GPU_MILLI
        return compute_s(WORKERS[worker.kind], worker.state, worker.batch, share)

    def update_s(self, workers: Sequence[Training], parameter_server: NodeState) -> list[float]:
        """Returns t_i^update with a Pi as parameter server."""
        steps = [(one.batch * self.compute_s(one), self.state_after(one).cpu) for one in workers]
        return update_s(PARAMETER_SERVERS[PI], parameter_server.cpu, steps)

    def state_after(self, worker: Training) -> NodeState:
        """Returns X_i^new."""
        share = worker.share_milli / FULL_GPU_MILLI
        return state_after(WORKERS[worker.kind], worker.state, worker.batch, share)

    def exec_s(self, kind: str, app: str, state: NodeState) -> float:
        """Returns the execution time of SIFT."""
        if app != SIFT:
            raise ValueError(f"{app} is no application of this world; there is {SIFT}")
        return sift_s(WORKERS[kind], state)


def as_it_is(places: Places, truth: Mapping[NodeName, NodeState]) -> Places:
    """Returns the machines with their true states instead of the measured ones."""
    return replace(
        places, nodes={name: replace(node, state=truth[name]) for name, node in places.nodes.items()}
    )

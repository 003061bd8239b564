"""True times of steps, updates and applications. Policies do not see them; they have estimates.

Deep-Edge §V.B lists observations; each function names the ones that it reproduces. The module is itself an
``EdgeEstimates``, for solvers with perfect knowledge, with a Pi as parameter server.
"""

from collections.abc import Sequence
from math import sqrt

from ekya.core.units import FULL_GPU_MILLI
from ekya.fleet.papers.deep_edge.devices import LINK_S, SERVER, SIFT, WORKERS
from ekya.fleet.policy.deep_edge.estimates import EdgeTraining
from ekya.fleet.policy.places import NodeState

_KNEE = 4
"""Exponent that sets how sharply utilisation saturates near 1."""


def saturated(demand: float) -> float:
    """Returns a resource's utilisation for a demand: the demand itself while it is small, at most 1."""
    return demand / _stretch(demand)


def compute_s(worker: EdgeTraining) -> float:
    """Returns t_i^compute = forward_i + backward_i / b_i, for one sample (§III.A).

    Grows with GPU and CPU utilisation, falls with the batch (Figures 9a to 9c), does not depend on memory. A
    share of the processor stretches its part of a step.
    """
    law, share = WORKERS[worker.kind], worker.share_milli / FULL_GPU_MILLI
    gpu_slower = 1 + law.gpu_stress * worker.state.gpu**2
    at_rest = _stretch(law.rest.cpu + law.cpu_demand)
    cpu_slower = _stretch(worker.state.cpu + share * law.cpu_demand) / at_rest / share
    slower = (1 - law.cpu_part) * gpu_slower + law.cpu_part * cpu_slower
    return slower * (law.forward_s + law.backward_s / worker.batch)


def update_s(workers: Sequence[EdgeTraining], parameter_server: NodeState) -> list[float]:
    """Returns t_i^update of each worker: its own part, and the parameter server's.

    Workers that compute, then queue for the parameter server, are a closed queueing network. By Schweitzer's
    mean value analysis the time there is the service time times one plus the number of other workers there.
    So it grows with the number of workers and its CPU utilisation (Figure 9f), and falls with batch sizes,
    because the other workers then push less often (Figure 9e).
    """
    service_s = SERVER.service_s * (1 + SERVER.cpu_stress * parameter_server.cpu**2)
    links_s = [LINK_S * (1 + state_after(worker).cpu) for worker in workers]
    away_s = [_step_s(worker) + link_s for worker, link_s in zip(workers, links_s, strict=True)]
    there_s = [service_s] * len(workers)
    for _ in range(60):
        present = [there / (away + there) for there, away in zip(there_s, away_s, strict=True)]
        everyone = sum(present)
        there_s = [service_s * (1 + everyone - one) for one in present]
    return [link + there for link, there in zip(links_s, there_s, strict=True)]


def state_after(worker: EdgeTraining) -> NodeState:
    """Returns X_i^new while a training runs (Figure 5).

    Memory grows with the batch (Figure 9d); above 1 the operating system kills the training.
    """
    law, share = WORKERS[worker.kind], worker.share_milli / FULL_GPU_MILLI
    return NodeState(
        cpu=saturated(worker.state.cpu + share * law.cpu_demand),
        gpu=saturated(worker.state.gpu + law.gpu_demand),
        mem=worker.state.mem + law.model_mem + law.sample_mem * worker.batch,
    )


def after_updates(workers: Sequence[EdgeTraining], parameter_server: NodeState) -> NodeState:
    """Returns the state of the parameter server while workers push to it."""
    updates_s = update_s(workers, parameter_server)
    busy = sum(
        SERVER.service_s / (_step_s(worker) + updating_s)
        for worker, updating_s in zip(workers, updates_s, strict=True)
    )
    cpu = saturated(parameter_server.cpu + SERVER.cpu_demand * min(1.0, busy))
    mem = parameter_server.mem + SERVER.model_mem + SERVER.worker_mem * len(workers)
    return NodeState(cpu, 0.0, mem)


def exec_s(kind: str, app: str, state: NodeState) -> float:
    """Returns the execution time of SIFT on a machine in a state, at the 95th percentile.

    SIFT waits for a core by Sakasegawa's formula for M/M/c, half of it because of time slices; GPU use takes
    memory bandwidth from it; and above nine tenths of the memory paging begins.
    """
    if app != SIFT:
        raise ValueError(f"{app} is no application of this world; there is {SIFT}")
    law, cpu = WORKERS[kind], min(state.cpu, 0.99)
    waits = cpu ** (sqrt(2 * (law.cores + 1)) - 1) / (law.cores * (1 - cpu))
    pages = max(0.0, state.mem - 0.9)
    return float(law.sift_s * (1 + 0.5 * waits + 0.15 * state.gpu**2 + 0.5 * pages))


def _step_s(worker: EdgeTraining) -> float:
    return worker.batch * compute_s(worker)


def _stretch(demand: float) -> float:
    return float((1 + demand**_KNEE) ** (1 / _KNEE))

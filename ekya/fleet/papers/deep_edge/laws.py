"""True performance laws of Deep-Edge's testbed (§V.A), as an ``EdgeEstimates``, and its machines' parameters.

§V.B lists observations; each function names the ones that it reproduces. Policies do not see the laws; they
have estimates.

From the paper's text: step times of 1.89 s (TX2) and 2.69 s (Nano), read as those of the whole idle cluster,
all four at a batch of 32; almost a fifth more at a GPU utilisation of 88% and 66%; cores and applications.
Its figures have not survived, so all other values are ours, chosen before any policy was run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from ekya.core.units import FULL_GPU_MILLI
from ekya.fleet.policy.deep_edge.estimates import ANY_EDGE, EdgeTraining
from ekya.fleet.policy.places import NodeState

TX2, NANO, PI = "tx2", "nano", "pi4"
SIFT = "sift"

BATCH_MIN, BATCH_MAX = ANY_EDGE.batch_min, ANY_EDGE.batch_max
"""b_min and b_max: 32 fits on an idle Nano, and the paper compares step times of both kinds at one size."""


@dataclass(frozen=True, slots=True)
class WorkerLaw:
    """A kind of machine that trains.

    Attributes:
        cores: of its processor.
        forward_s: forward_i, for one sample on an idle machine.
        backward_s: backward_i, for one step, independent of the batch size (§III.A).
        cpu_part: part of the compute time spent on the processor: decoding, and launching kernels.
        cpu_demand, gpu_demand: parts of its processor and GPU that a training demands (95th percentile).
        gpu_stress: slow-down of the GPU's part by utilisation: 1 + stress * utilisation².
        model_mem, sample_mem: parts of its memory for framework and model, and per sample of a batch.
        rest: its state with the background application alone.
        sift_s: execution time of SIFT on the otherwise idle machine.
    """

    cores: int
    forward_s: float
    backward_s: float
    cpu_part: float
    cpu_demand: float
    gpu_demand: float
    gpu_stress: float
    model_mem: float
    sample_mem: float
    rest: NodeState
    sift_s: float


@dataclass(frozen=True, slots=True)
class ParameterServerLaw:
    """The machine that runs the parameter server.

    Attributes:
        service_s: exclusive service time of one update on an idle server.
        cpu_stress: slow-down of the service by utilisation: 1 + stress * utilisation².
        cpu_demand: part of its processor in use while it serves without a pause.
        model_mem, worker_mem: parts of its memory for the model, and per worker.
        rest: its idle state.
    """

    service_s: float
    cpu_stress: float
    cpu_demand: float
    model_mem: float
    worker_mem: float
    rest: NodeState


WORKERS = {
    TX2: WorkerLaw(
        cores=6,
        forward_s=0.0326,
        backward_s=0.30,
        cpu_part=0.40,
        cpu_demand=0.30,
        gpu_demand=0.90,
        gpu_stress=0.58,
        model_mem=0.20,
        sample_mem=0.005,
        rest=NodeState(0.12, 0.0, 0.18),
        sift_s=0.075,
    ),
    NANO: WorkerLaw(
        cores=4,
        forward_s=0.0519,
        backward_s=0.45,
        cpu_part=0.40,
        cpu_demand=0.45,
        gpu_demand=0.90,
        gpu_stress=0.97,
        model_mem=0.35,
        sample_mem=0.010,
        rest=NodeState(0.20, 0.0, 0.30),
        sift_s=0.095,
    ),
}

SERVER = ParameterServerLaw(
    service_s=0.30,
    cpu_stress=0.8,
    cpu_demand=0.5,
    model_mem=0.12,
    worker_mem=0.02,
    rest=NodeState(0.05, 0.0, 0.15),
)
"""The Pi."""

LINK_S = 0.06
"""A worker's part of an update on an idle machine, in which the server is free for other workers."""


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

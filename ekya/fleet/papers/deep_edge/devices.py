"""Parameters of the machines of Deep-Edge's testbed (§V.A), for the functions of ``laws``.

From the paper's text: step times of 1.89 s (TX2) and 2.69 s (Nano), read as those of the whole idle cluster,
all four at a batch of 32; almost a fifth more at a GPU utilisation of 88% and 66%; cores and applications.
Its figures have not survived, so all other values are ours, chosen before any policy was run.
"""

from dataclasses import dataclass

from ekya.fleet.policy.places import NodeState

TX2, NANO, PI = "tx2", "nano", "pi4"
SIFT = "sift"

BATCH_MIN, BATCH_MAX = 2, 32
"""b_min and b_max: 32 fits on an idle Nano, and the paper compares step times of both kinds at one size."""

MEM_LIMIT = 0.97
"""Upper bound of memory utilisation with a training."""


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

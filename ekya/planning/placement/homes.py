"""Shares on GPUs where no job can move: a process that has begun to use a GPU stays there while it lives."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ekya.core.shares import Job
from ekya.core.units import StreamId
from ekya.planning.placement.pack import Packing, Placed, free_milli_by_gpu, pack_shares
from ekya.planning.placement.rounding import ShareSteps

PREPARATION_GPU = 0
"""Home of the preparation: no GPU has more capacity than this one."""


@dataclass(frozen=True, slots=True)
class JobPlaces:
    """GPUs of the jobs, as positions among those of the run.

    Attributes:
        streams: inference and retraining of each stream.
        preparation: labelling and profiling of all of them.
    """

    streams: Mapping[StreamId, int]
    preparation: int


class Processes(StrEnum):
    """Sharing of processes by the streams of a live run; inferences and retrainings never share one."""

    AUTO = "auto"
    """``stream`` on GPUs under MPS, where clients, cores and memory suffice for it; ``gpu`` elsewhere."""

    STREAM = "stream"
    """No sharing: each stream has two processes, so that a fault ends one stream's only."""

    GPU = "gpu"
    """All streams at home on a GPU (or on a core where cores stand for GPUs) share a process for inference,
    whose models run in one batch, and one for retraining, or two to six under MPS."""


OTHER_PROCESSES = 2
"""Processes on a GPU beside those of its streams: micro-profiler and spare inference."""


@dataclass(frozen=True, slots=True)
class ProcessRoom:
    """Room on a machine for processes that compute.

    Attributes:
        clients: number of processes that MPS takes on a GPU; None without MPS.
        cores: CPU cores.
        host_bytes: free memory of the machine.
        gpu_bytes: free memory of each GPU; the smallest one's, None if unknown.
        host_process_bytes, gpu_process_bytes: what one process takes of both.
    """

    clients: int | None
    cores: float
    host_bytes: int
    gpu_bytes: int | None
    host_process_bytes: int
    gpu_process_bytes: int


def choose_processes(streams_by_gpu: Sequence[int], room: ProcessRoom) -> tuple[Processes, str]:
    """Returns whether streams share processes, and the reason as a clause.

    Each stream has its own where everything suffices for two of them a stream. More processes than cores
    make frames wait for a core while the GPU is idle.

    Args:
        streams_by_gpu: number of streams at home on each GPU.
        room: of the machine.
    """
    most, two_each = max(streams_by_gpu, default=0), 2 * sum(streams_by_gpu)
    on_gpu = 2 * most + OTHER_PROCESSES
    host_bytes = (two_each + OTHER_PROCESSES) * room.host_process_bytes
    lacks = [
        (room.clients is None, "without MPS processes take turns on a GPU"),
        (
            room.clients is not None and on_gpu > room.clients,
            f"MPS takes {room.clients} processes on a GPU, and two a camera are {on_gpu}",
        ),
        (two_each > room.cores, f"two a camera are {two_each} on {room.cores:.3g} cores"),
        (host_bytes > room.host_bytes, f"two a camera need {_in_gib(host_bytes)} of memory"),
        (
            room.gpu_bytes is not None and on_gpu * room.gpu_process_bytes > room.gpu_bytes,
            f"two a camera need {_in_gib(on_gpu * room.gpu_process_bytes)} of a GPU's memory",
        ),
    ]
    why = next((why for is_short, why in lacks if is_short), None)
    if why is None:
        return Processes.STREAM, "MPS, cores and memory suffice for two a camera"
    return Processes.GPU, why


def _in_gib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 30):.0f} GiB"


def assign_home_gpus(streams: int, capacity_milli: int) -> tuple[int, ...]:
    """Returns the home GPU of every stream: each in turn is dealt with ``home_of_next``.

    Args:
        streams: number of streams.
        capacity_milli: total over all GPUs; a part of a GPU is the last one's.
    """
    living = Counter[int]()
    homes = []
    for _ in range(streams):
        homes.append(home_of_next(living, capacity_milli))
        living[homes[-1]] += 1
    return tuple(homes)


def home_of_next(living: Mapping[int, int], capacity_milli: int) -> int:
    """Returns the GPU with most capacity for one more stream.

    Args:
        living: number of streams at home on each GPU.
        capacity_milli: total over all GPUs; a part of a GPU is the last one's.
    """
    free = free_milli_by_gpu(max(capacity_milli, 1), ())
    return max(range(len(free)), key=lambda gpu: (free[gpu] / (living.get(gpu, 0) + 1), -gpu))


def pools_of_nodes(capacity_milli: int, nodes: Sequence[str]) -> tuple[int, ...]:
    """Returns the capacity of each of several nodes; none where cores of one alone are used.

    Args:
        capacity_milli: total over all cores; a part of a core is the last one's.
        nodes: the node of each core; those of a node follow each other.
    """
    pools = Counter[str]()
    for node, milli in zip(nodes, free_milli_by_gpu(capacity_milli, ()), strict=False):
        pools[node] += milli
    return tuple(pools.values()) if len(pools) > 1 else ()


def most_processes(processes: Processes, homes: Sequence[int]) -> int:
    """Returns the largest number of processes that a run has on one GPU, guests' not counted.

    These are an inference and a retraining for each stream or for all, a spare inference process, and on one
    GPU the micro-profiler.

    Args:
        processes: grouping of streams, not ``auto``.
        homes: the GPU of every stream.
    """
    streams = Counter(homes)
    return max(
        2 * (count if processes is Processes.STREAM else 1) + 1 + (gpu == PREPARATION_GPU)
        for gpu, count in streams.items()
    )


def guests_gpu(capacity_milli: int) -> int:
    """Returns the home GPU of other servers' jobs: the last one of those with most capacity.

    So lent capacity comes off one GPU, no guest runs on two, and with several GPUs it is not the
    preparation's.

    Args:
        capacity_milli: total over all GPUs; a part of a GPU is the last one's.
    """
    free = free_milli_by_gpu(max(capacity_milli, 1), ())
    return max(range(len(free)), key=lambda gpu: (free[gpu], gpu))


class AtHome:
    """Granted shares, packed on each GPU, or node, for the jobs at home there; they grow only there."""

    def __init__(
        self,
        packing: Packing,
        shares: Mapping[Job, int],
        home: Callable[[Job], int],
        gpus_milli: Sequence[int],
        steps: ShareSteps,
    ) -> None:
        """Packs the shares.

        Args:
            packing: method, on each GPU.
            shares: the share asked for by each job, in thousandths of a GPU; equal ones keep their order.
            home: returns the GPU of a job, also of one that is not in ``shares``.
            gpus_milli: capacity of each GPU, or of all cores of each node.
            steps: what can be granted.

        Raises:
            ValueError: a negative share.
        """
        self._home = home
        self._jobs = tuple(shares)
        self._gpus = [
            pack_shares(
                packing,
                {job: share for job, share in shares.items() if home(job) == gpu},
                capacity_milli=milli,
                held_milli=(),
                steps=steps,
            )
            for gpu, milli in enumerate(gpus_milli)
        ]

    @property
    def spare_milli(self) -> int:
        """Spare capacity over all GPUs."""
        return sum(gpu.spare_milli for gpu in self._gpus)

    @property
    def gpus(self) -> Mapping[Job, int]:
        """The GPU of every job that holds a share."""
        return {job: self._home(job) for job in self._jobs if self.share_milli(job) > 0}

    def share_milli(self, job: Job) -> int:
        """Returns the share of a job; 0 for a job that was not asked for."""
        return self._gpus[self._home(job)].share_milli(job)

    def fitting_milli(self, job: Job, wanted_milli: int) -> int | None:
        """Returns the smallest share from ``wanted_milli`` on to which a job can grow; None if none fits."""
        return self._gpus[self._home(job)].fitting_milli(job, wanted_milli)

    def grow_job(self, job: Job, share_milli: int) -> None:
        """Gives a job a share that ``fitting_milli`` returned."""
        self._gpus[self._home(job)].grow_job(job, share_milli)


Grants = Placed | AtHome
"""Granted shares that may still grow into spare capacity, and the GPU of each job."""

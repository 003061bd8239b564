"""Shares on GPUs where no job can move: a process that has begun to use a GPU stays there while it lives."""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Generic, TypeVar

from ekya.core.units import FULL_GPU_MILLI
from ekya.placement.pack import Packing, Placed, pack, rooms_milli
from ekya.placement.steps import Steps

JobT = TypeVar("JobT")

PREPARATION_GPU = 0
"""Where the preparation is at home: the GPU of which there is always as much as of any other."""


class Processes(StrEnum):
    """Which streams share a process of a live run, their inferences one and their retrainings another."""

    AUTO = "auto"
    """``stream`` on GPUs under MPS, where there is memory for it; ``gpu`` elsewhere."""

    STREAM = "stream"
    """None: each has two of its own, and a fault ends one stream's."""

    GPU = "gpu"
    """All that are at home on a GPU, or on a core where cores stand for GPUs: models are asked together."""


def deal(streams: int, capacity_milli: int) -> tuple[int, ...]:
    """The GPU of every stream: each in turn is at home where there is most room for one more.

    Args:
        streams: how many there are.
        capacity_milli: what there is over all GPUs; a part of a GPU is the last one's.
    """
    rooms = rooms_milli(max(capacity_milli, 1), ())
    living = [0] * len(rooms)
    homes = []
    for _ in range(streams):
        gpu = max(range(len(rooms)), key=lambda one: (rooms[one] / (living[one] + 1), -one))
        living[gpu] += 1
        homes.append(gpu)
    return tuple(homes)


def guests_gpu(capacity_milli: int) -> int:
    """The GPU on which jobs of other servers are at home: of those with most room the last one.

    So what is lent comes off one GPU, no guest stands on two, and of several it is not the preparation's.

    Args:
        capacity_milli: what there is over all GPUs; a part of a GPU is the last one's.
    """
    rooms = rooms_milli(max(capacity_milli, 1), ())
    return max(range(len(rooms)), key=lambda gpu: (rooms[gpu], gpu))


class AtHome(Generic[JobT]):
    """Granted shares of which each GPU packs those of its own jobs; they grow where they are."""

    def __init__(
        self,
        packing: Packing,
        shares: Mapping[JobT, int],
        home: Callable[[JobT], int],
        gpus_milli: Sequence[int],
        steps: Steps[JobT],
    ) -> None:
        """Packs.

        Args:
            packing: how, on each GPU.
            shares: the share asked for by each job, in thousandths of a GPU; equal ones keep their order.
            home: the GPU of a job, also of one that is not among these.
            gpus_milli: what each GPU has, 0 to 1000.
            steps: what can be granted.

        Raises:
            ValueError: a negative share, or more than a GPU in one.
        """
        if any(milli > FULL_GPU_MILLI for milli in gpus_milli):
            raise ValueError(f"no GPU has more than {FULL_GPU_MILLI} thousandths")
        self._home = home
        self._jobs = tuple(shares)
        self._gpus: list[Placed[JobT]] = [
            pack(
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
        """What nobody holds, over all GPUs."""
        return sum(gpu.spare_milli for gpu in self._gpus)

    @property
    def gpus(self) -> Mapping[JobT, int]:
        """The GPU of every job that holds a share."""
        return {job: self._home(job) for job in self._jobs if self.share_milli(job) > 0}

    def share_milli(self, job: JobT) -> int:
        """What a job holds; 0 for one that was not asked for."""
        return self._gpus[self._home(job)].share_milli(job)

    def fitting_milli(self, job: JobT, wanted_milli: int) -> int | None:
        """The smallest share of at least ``wanted_milli`` that the job can grow to; None if none fits."""
        return self._gpus[self._home(job)].fitting_milli(job, wanted_milli)

    def grow(self, job: JobT, share_milli: int) -> None:
        """Gives a job a share that ``fitting_milli`` named."""
        self._gpus[self._home(job)].grow(job, share_milli)

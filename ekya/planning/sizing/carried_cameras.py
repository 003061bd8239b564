"""Counts the cameras like a fleet's that the cores of a machine carry, and those that its GPUs do."""

from dataclasses import dataclass

from ekya.core.host import HostCosts

CORES_PART = 0.85
"""Part of the cores that cameras may take; the rest plans, labels and serves pages."""


@dataclass(frozen=True, slots=True)
class CarriedCameras:
    """Numbers of cameras, each like the mean of a fleet's, all of whose frames are analysed.

    Attributes:
        by_cores: whose frames the cores read, and without a GPU also analyse; None if that was not measured.
        by_gpu: whose frames each GPU analyses, with nothing left for retraining; None without a GPU.
        cores: number of cores.
        gpus: number of GPUs.
        fps: frames a second of a camera.
        resolution: at which they are analysed, the finest λ of the edge model; pixels.
        reading_ms: of a core, to read a frame.
        analysing_ms: of a GPU, or without one of a core, to analyse it.
    """

    by_cores: int | None
    by_gpu: int | None
    cores: float
    gpus: int
    fps: float
    resolution: int
    reading_ms: float
    analysing_ms: float

    @property
    def by_gpus(self) -> int | None:
        """Cameras of all GPUs together; one camera's inference is on one of them."""
        return None if self.by_gpu is None else self.by_gpu * self.gpus

    @property
    def limit(self) -> str | None:
        """What carries fewer, ``cores`` or ``gpus``; None where only one of them is known."""
        if self.by_cores is None or self.by_gpus is None:
            return None
        return "cores" if self.by_cores <= self.by_gpus else "gpus"

    @property
    def sentence(self) -> str:
        """The numbers and what they assume, in words."""
        reading = f"{self.reading_ms:.2g} ms of a core to read it"
        kept = f"{1.0 - CORES_PART:.0%} of {self.cores:g} cores kept for the rest"
        carried, of = f"the cores carry {_in_words(self.by_cores)}", "a core"
        if self.by_gpu is not None:
            each = f"each of {self.gpus} GPUs {self.by_gpu}, all {self.by_gpus}"
            carried += f", {each if self.gpus > 1 else f'the GPU {self.by_gpu}'}"
            carried += f": the {'GPUs bind' if self.limit == 'gpus' else 'cores bind'}" if self.limit else ""
            kept, of = f"{kept}, nothing of a GPU for retraining", "a GPU"
        return (
            f"{carried}. Assumed is {self.fps:.3g} frames a second, each analysed at {self.resolution} px: "
            f"{reading} and {self.analysing_ms:.2g} ms of {of} to analyse it; {kept}"
        )


def count_carried_cameras(costs: HostCosts, gpus: int) -> CarriedCameras:
    """Returns how many cameras like those that were measured a machine carries.

    Args:
        costs: of at least one camera, as they were measured on the machine.
        gpus: number of its GPUs; 0 where cores do the work of the models too.
    """
    streams = costs.streams.values()
    fps = sum(of.fps for of in streams)
    finest = max(max(of.frame_gpu_s) for of in streams)
    analysing_gpu_s = sum(of.fps * of.frame_gpu_s[max(of.frame_gpu_s)] for of in streams)
    core_s = costs.reading_cores + (0.0 if gpus else analysing_gpu_s)
    measured = all(of.reading_s > 0.0 for of in streams)
    return CarriedCameras(
        by_cores=int(CORES_PART * costs.cores * len(streams) / core_s) if measured else None,
        by_gpu=int(len(streams) / analysing_gpu_s) if gpus else None,
        cores=costs.cores,
        gpus=gpus,
        fps=fps / len(streams),
        resolution=finest,
        reading_ms=1e3 * costs.reading_cores / fps,
        analysing_ms=1e3 * analysing_gpu_s / fps,
    )


def _in_words(cameras: int | None) -> str:
    if cameras is None:
        return "an unknown number, since no frame could be read"
    return f"{cameras} camera{'' if cameras == 1 else 's'} like these"

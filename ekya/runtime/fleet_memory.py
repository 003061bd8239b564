"""GPU memory of a fleet's jobs, and the check before the start that its inference fits."""

from functools import partial

from ekya.config import FleetConfig
from ekya.core.profile import Family
from ekya.errors import UserError
from ekya.measuring.energy import JobPlaces
from ekya.placement.homes import Processes
from ekya.profiling.memory import CONTEXT_BYTES, inference_bytes
from ekya.runtime.budget import FreeMemory, JobSizes, in_mib
from ekya.setup import crop_side

_ANY_FAMILY = Family(0, 0, 16)
"""Placeholder for inference, which trains nothing."""


def job_sizes(fleet: FleetConfig) -> JobSizes:
    """Returns the estimates for the fleet's edge model, crops and labels."""
    from ekya.learning.footprint import footprint_of
    from ekya.learning.memory import DEFAULT_BUDGET_CROPS

    return JobSizes(
        partial(footprint_of, side=crop_side(fleet), architecture=fleet.edge.model),
        fleet.golden.labels_per_window,
        DEFAULT_BUDGET_CROPS,
    )


def require_inference(
    fleet: FleetConfig, processes: Processes, places: JobPlaces, memory: FreeMemory
) -> None:
    """Checks that the inference processes, with a model for each stream, and the micro-profiler fit.

    Raises:
        UserError: they do not.
    """
    from ekya.learning.footprint import footprint_of

    footprint = footprint_of(_ANY_FAMILY, crop_side(fleet), fleet.edge.model)
    lent = fleet.hand_over == "cuda-ipc"
    each_by_itself = processes is Processes.STREAM
    for gpu in sorted({*places.streams.values(), places.preparation}):
        streams = sum(place == gpu for place in places.streams.values())
        # The micro-profiler holds a model of every stream.
        profiler = CONTEXT_BYTES + len(places.streams) * footprint.model_bytes
        there = streams if each_by_itself else min(streams, 1)
        needed = there * CONTEXT_BYTES + streams * inference_bytes(footprint, lent)
        needed += profiler if gpu == places.preparation else 0
        free = memory.free_bytes(gpu)
        if free is not None and needed > free:
            raise UserError(
                f"key 'streams': to serve {streams} of them GPU {gpu} needs about {in_mib(needed)}, and "
                f"{in_mib(free)} are free; use fewer streams, more 'gpus' or a smaller 'edge.model', or end "
                "what else uses the GPU."
            )

"""Model of the energy that each job cost; a GPU has one meter for all that runs on it.

Of a window's energy the *idle* part is what the GPU would have drawn without work: the lowest power read in
the run so far, over the measured time. The rest is divided by the GPU time that each job used (its measured
share times the time over which it was measured). So a job that draws more power than another in the same GPU
time is charged too little, and the work of other programs on the GPU is charged to Ekya's jobs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ekya.core import events as ev
from ekya.core.gpu_use import GpuUse
from ekya.core.ids import StreamId
from ekya.core.turns import StepRecord
from ekya.core.units import FULL_GPU_MILLI, us_to_seconds

Job = tuple[StreamId, str]
"""A stream, and the work for it: ``inference``, ``retraining`` or ``preparation``."""

PREPARATION = "preparation"


@dataclass(frozen=True, slots=True)
class ModelledEnergy:
    """Energy of one GPU in one window, divided by the model above.

    Attributes:
        window, gpu: index of the window; position of the GPU among those of the run.
        idle_j: energy that the GPU would have drawn without work.
        jobs_j: of each job that used the GPU.
        unexplained_j: energy above idle in a window in which no job's use was measured.
    """

    window: int
    gpu: int
    idle_j: float
    jobs_j: Mapping[Job, float]
    unexplained_j: float


@dataclass(frozen=True, slots=True)
class _Used:
    """GPU time that a job used, as reported at one moment."""

    t_us: int
    job: Job
    gpu_s: float


@dataclass(frozen=True, slots=True)
class JobPlaces:
    """GPUs of the jobs, as positions among those of the run.

    Attributes:
        streams: inference and retraining of each stream.
        preparation: labelling and profiling of all of them.
    """

    streams: Mapping[StreamId, int]
    preparation: int

    def of(self, job: Job) -> int | None:
        """Returns the GPU of a job; None for a stream that is not of the run."""
        return self.preparation if job[1] == PREPARATION else self.streams.get(job[0])


def modelled_energy(turns: Sequence[StepRecord], places: JobPlaces) -> tuple[ModelledEnergy, ...]:
    """Returns the modelled energy of each window and GPU whose energy and power were measured."""
    uses = list(_uses(turns))
    shared = []
    since_us = 0
    for turn in turns:
        for event in turn.events:
            if isinstance(event, ev.GpuMeasured):
                for gpu in event.gpus:
                    own = [
                        use
                        for use in uses
                        if since_us < use.t_us <= event.t_us and places.of(use.job) == gpu.gpu
                    ]
                    if (energy := _shared_out(event.window, gpu, own)) is not None:
                        shared.append(energy)
                since_us = event.t_us
    return tuple(shared)


def _shared_out(window: int, gpu: GpuUse, uses: Iterable[_Used]) -> ModelledEnergy | None:
    if gpu.energy_j is None or gpu.least_power_w is None:
        return None
    idle_j = min(gpu.energy_j, gpu.least_power_w * us_to_seconds(gpu.covered_us))
    gpu_s: dict[Job, float] = {}
    for use in uses:
        gpu_s[use.job] = gpu_s.get(use.job, 0.0) + use.gpu_s
    used_s = sum(gpu_s.values())
    rest_j = gpu.energy_j - idle_j
    jobs_j = {job: rest_j * own_s / used_s for job, own_s in sorted(gpu_s.items()) if own_s > 0.0}
    return ModelledEnergy(window, gpu.gpu, idle_j, jobs_j, 0.0 if jobs_j else rest_j)


def _uses(turns: Sequence[StepRecord]) -> Iterable[_Used]:
    """Yields all measurements of jobs' use. A share holds for the time since the last one of its worker."""
    told_us: dict[Job, int] = {}
    for turn in turns:
        for event in turn.events:
            match event:
                case ev.StreamAdded():
                    for role in ev.Role:
                        told_us[event.stream, str(role)] = event.t_us
                case ev.ShareMeasured():
                    job = (event.stream, str(event.role))
                    passed_s = us_to_seconds(event.t_us - told_us.get(job, 0))
                    told_us[job] = event.t_us
                    yield _Used(event.t_us, job, passed_s * event.share_milli / FULL_GPU_MILLI)
                case ev.LabelsReady() | ev.InferenceProfiled() | ev.ProfileReady():
                    yield _Used(event.t_us, (event.stream, PREPARATION), event.gpu_s)

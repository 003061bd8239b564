"""Share backend of green contexts: dedicated SMs for jobs that share a process."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from ekya.core.units import FULL_GPU_MILLI
from ekya.gpu.backends.backend import Capability, Grants, ShareHandle, ShareJob, round_down
from ekya.gpu.green.green_context_pool import GreenProcesses
from ekya.gpu.green.handle import GreenHandle
from ekya.gpu.green.sm_layout import SmReport, coarsest, quantise_sms
from ekya.gpu.nvml import GpuInventory

_APART = (
    "its jobs run in processes of their own, which take turns on the GPU without MPS: green contexts share "
    "out SMs only within one process"
)

_OWN = "training has multiprocessors of its own, and inference shares what is left"


@dataclass(frozen=True, slots=True)
class GreenShares:
    """Assigns dedicated SMs to jobs.

    Attributes:
        inventory: the GPUs.
        report: reads how the driver splits them; makes no context.
        one_process: whether all jobs run in one process, or concurrently under MPS.
        processes: this process's resources on each GPU.
    """

    inventory: GpuInventory
    report: Callable[[], SmReport]
    one_process: bool = False
    processes: GreenProcesses = field(default_factory=GreenProcesses, compare=False)

    def probe(self) -> Capability:
        """Reports the backend usable if the driver makes green contexts and all jobs share a process."""
        report = self.report() if self.inventory.gpus else SmReport((), self.inventory.why)
        usable = bool(report.layouts) and self.one_process
        return Capability(
            usable=usable,
            enforcement="hard",
            device="cuda",
            capacity_milli=len(report.layouts) * FULL_GPU_MILLI if usable else 0,
            step_milli=1,
            groups=coarsest(report.layouts) if report.layouts else None,
            live_resize=True,
            why=self._why(report),
        )

    def _why(self, report: SmReport) -> str:
        if not report.layouts:
            return report.why
        return f"{report.why}; {_OWN}" if self.one_process else _APART

    def quantise(self, shares: Mapping[str, int]) -> Grants:
        """Rounds shares down to whole groups of SMs and places them; a share below one group is kept."""
        layouts = self.report().layouts
        capped = round_down(shares, 1, len(layouts) * FULL_GPU_MILLI)
        if not layouts:
            return capped
        least_milli = coarsest(layouts).share_milli(1)
        large = {job: share for job, share in capped.share_milli.items() if share >= least_milli}
        own = quantise_sms(large, layouts)
        granted = {**capped.share_milli, **own.share_milli}
        return Grants(granted, sum(shares.values()) - sum(granted.values()), own.spans)

    @contextmanager
    def open(self, gpus: int) -> Iterator["GreenShares"]:
        """Yields an opened backend; starts nothing, and destroys this process's resources at the end."""
        opened = replace(self, processes=GreenProcesses(self.processes.make))
        try:
            yield opened
        finally:
            opened.processes.close()

    def actor_env(self, job: ShareJob) -> Mapping[str, str]:
        """Returns no variables: the process sees all GPUs, and each job names its own."""
        return {}

    def attach(self, job: ShareJob) -> ShareHandle:
        """Returns a handle of the job's SMs; a process's first call starts CUDA and makes levels ahead."""
        return self.attach_on(job, job.gpu)

    def attach_on(self, job: ShareJob, device: int) -> GreenHandle:
        """Attaches to a GPU given by its CUDA index in this process; see ``attach``."""
        process = self.processes.of(device)
        return GreenHandle(process.levels, process.streams, process.claims(), job)

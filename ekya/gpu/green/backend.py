"""Share backend of green contexts in MPS clients: dedicated multiprocessors (SMs) for jobs in processes."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from ekya.gpu.backends.backend import Capability, ShareHandle, ShareJob
from ekya.gpu.green.green_context_pool import GreenShares
from ekya.gpu.green.sm_driver import SmReport, coarsest
from ekya.gpu.mps.backend import PERCENTAGE, MpsShares

_OWN = "training has multiprocessors of its own, and inference shares what is left"


@dataclass(frozen=True, slots=True)
class MpsGreenShares:
    """Combines MPS, which runs processes concurrently, with green contexts, which assign their SMs live.

    Attributes:
        mps: runs the daemons and makes clients; its percentages are not used, since they would hide SMs.
        split_sms: asks the driver how it splits the GPUs; makes no context.
        green: assigns SMs in the process of a job.
    """

    mps: MpsShares
    split_sms: Callable[[], SmReport]
    green: GreenShares = field(default_factory=GreenShares, compare=False)

    def probe_machine(self) -> Capability:
        """Reports the backend usable if MPS is and the driver makes green contexts."""
        clients = self.mps.probe_machine()
        report = self.split_sms() if clients.usable else SmReport((), clients.why)
        usable = bool(report.layouts)
        return Capability(
            usable=usable,
            enforcement="hard",
            device="cuda",
            capacity_milli=clients.capacity_milli if usable else 0,
            step_milli=1,
            groups=coarsest(report.layouts) if usable else None,
            why=f"{clients.why}; {report.why}; {_OWN}" if usable else report.why,
        )

    @contextmanager
    def open(self, gpus: int) -> Iterator["MpsGreenShares"]:
        """Yields the backend with an MPS daemon for each GPU."""
        with self.mps.open(gpus) as mps:
            yield replace(self, mps=mps)

    def actor_env(self, job: ShareJob) -> Mapping[str, str]:
        """Returns the environment of an MPS client on the job's GPU that may use all SMs."""
        return {**self.mps.actor_env(job), PERCENTAGE: "100"}

    def attach_job(self, job: ShareJob) -> ShareHandle:
        """Returns a handle of the job's SMs, on the only GPU that its process sees.

        Raises:
            UserError: this process is not a client of exactly one MPS server, or no level can be used.
        """
        self.mps.require_client(job)
        return self.green.attach_job(job)

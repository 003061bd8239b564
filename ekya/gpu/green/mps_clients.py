"""Share backend of green contexts inside MPS clients: dedicated SMs for jobs in separate processes."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ekya.gpu.backends.backend import Capability, Grants, ShareHandle, ShareJob
from ekya.gpu.green.backend import GreenShares
from ekya.gpu.mps.backend import PERCENTAGE, MpsShares


@dataclass(frozen=True, slots=True)
class MpsGreenShares:
    """Combines MPS, which runs processes concurrently, with green contexts, which assign their SMs live.

    Attributes:
        mps: runs the daemons and makes clients; its percentages are not used, since they would hide SMs.
        green: assigns SMs.
    """

    mps: MpsShares
    green: GreenShares

    def probe(self) -> Capability:
        """Reports the backend usable if MPS is and the driver makes green contexts."""
        clients = self.mps.probe()
        capability = replace(self.green, one_process=True).probe()
        if not clients.usable:
            return replace(capability, usable=False, capacity_milli=0, why=clients.why)
        if not capability.usable:
            return capability
        return replace(capability, why=f"{clients.why}; {capability.why}")

    def quantise(self, shares: Mapping[str, int]) -> Grants:
        """Rounds shares down to whole groups of SMs and places them."""
        return self.green.quantise(shares)

    @contextmanager
    def open(self, gpus: int) -> Iterator["MpsGreenShares"]:
        """Opens MPS, then green contexts."""
        with self.mps.open(gpus) as mps, self.green.open(gpus) as green:
            yield MpsGreenShares(mps, green)

    def actor_env(self, job: ShareJob) -> Mapping[str, str]:
        """Returns the environment of an MPS client on the job's GPU that may use all SMs."""
        return {**self.mps.actor_env(job), PERCENTAGE: "100"}

    def attach(self, job: ShareJob) -> ShareHandle:
        """Returns a handle of the job's SMs, on the only GPU that its process sees.

        Raises:
            UserError: this process is not a client of exactly one MPS server, or no level can be used.
        """
        self.mps.require_client(job)
        return self.green.attach_on(job, 0)

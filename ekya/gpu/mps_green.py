"""SMs of its own for a job in a process of its own: green contexts inside MPS clients (DESIGN §6)."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ekya.gpu.green import GreenShares
from ekya.gpu.mps import PERCENTAGE, MpsShares
from ekya.gpu.protocol import Capability, Grants, ShareHandle, ShareJob


@dataclass(frozen=True, slots=True)
class MpsGreenShares:
    """MPS lets processes run beside each other; green contexts say where, and change in a running process.

    Attributes:
        mps: runs the daemon and makes clients; its percentages are not used, for they would hide SMs.
        green: shares out SMs.
    """

    mps: MpsShares
    green: GreenShares

    def probe(self) -> Capability:
        """Usable where MPS is and the driver makes green contexts."""
        clients = self.mps.probe()
        capability = replace(self.green, one_process=True).probe()
        if not clients.usable:
            return replace(capability, usable=False, capacity_milli=0, why=clients.why)
        if not capability.usable:
            return capability
        return replace(capability, why=f"{clients.why}; {capability.why}")

    def quantise(self, shares: Mapping[str, int]) -> Grants:
        """To whole groups of SMs, with the groups of each job."""
        return self.green.quantise(shares)

    @contextmanager
    def open(self, gpus: int) -> Iterator["MpsGreenShares"]:
        """As MPS, then as green contexts."""
        with self.mps.open(gpus) as mps, self.green.open(gpus) as green:
            yield MpsGreenShares(mps, green)

    def actor_env(self, job: ShareJob) -> Mapping[str, str]:
        """A client of the daemon on the job's GPU that may use all SMs."""
        return {**self.mps.actor_env(job), PERCENTAGE: "100"}

    def attach(self, job: ShareJob) -> ShareHandle:
        """A handle on the job's SMs, on the only GPU that its process sees.

        Raises:
            UserError: this process is not a client of exactly one MPS server, or no level can be used.
        """
        self.mps.require_client(job)
        return self.green.attach_on(job, 0)

"""Registry of share backends, and the choice of one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ekya.core.errors import UserError
from ekya.core.units import FULL_GPU_MILLI
from ekya.gpu.backends.backend import Capability, ShareBackend
from ekya.gpu.backends.cpu import CpuShares
from ekya.gpu.backends.duty_cycle import DutyCycleShares
from ekya.gpu.mps.backend import MpsShares
from ekya.gpu.mps.service import FindMps, find_mps
from ekya.gpu.nvml import GpuInventory, list_gpus
from ekya.system.host import cpu_limit


@dataclass(frozen=True, slots=True)
class Machine:
    """Properties of the machine that backends need.

    Attributes:
        cores: CPU cores that this process may use; can be a fraction in a container.
        inventory: the GPUs.
        find_mps_of: finds MPS.
    """

    cores: float
    inventory: GpuInventory
    find_mps_of: FindMps = find_mps


SHARE_BACKENDS: Mapping[str, Callable[[Machine], ShareBackend]] = {
    "mps": lambda machine: MpsShares(machine.inventory, machine.find_mps_of),
    "duty-cycle": lambda machine: DutyCycleShares(machine.inventory),
    "cpu": lambda machine: CpuShares(machine.cores),
}
"""Backends by name, in the order in which ``auto`` tries them."""

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class ChosenBackend:
    """The backend of a run.

    Attributes:
        name: key of ``SHARE_BACKENDS``.
        backend: the backend.
        capability: its capabilities on this machine.
        reasons: why this backend, and why none of those before it; a sentence each.
        cores: CPU cores for all of the run.
    """

    name: str
    backend: ShareBackend
    capability: Capability
    reasons: tuple[str, ...]
    cores: float

    @property
    def gpus(self) -> int:
        """Number of GPUs that the backend uses; 0 on CPU cores."""
        return max(1, self.capability.capacity_milli // FULL_GPU_MILLI) if self.on_gpus else 0

    @property
    def on_gpus(self) -> bool:
        """True if the backend computes on GPUs."""
        return self.capability.device == "cuda"

    @property
    def why(self) -> str:
        """All reasons in one line."""
        return "; ".join(self.reasons)


def choose_backend(name: str = AUTO, machine: Machine | None = None) -> ChosenBackend:
    """Returns the backend with this name, or for ``auto`` the first usable one.

    Raises:
        UserError: no backend has this name, or none that may be used works here.
    """
    machine = machine or Machine(cpu_limit(), list_gpus())
    if name == AUTO:
        return _first_usable(machine)
    if name not in SHARE_BACKENDS:
        known, gone = ", ".join((AUTO, *SHARE_BACKENDS)), " any more" if name == "mps+green" else ""
        raise UserError(f"--shares {name}: there is no such share backend{gone}; use one of {known}")
    backend = SHARE_BACKENDS[name](machine)
    capability = backend.probe_machine()
    if not capability.usable:
        raise UserError(f"--shares {name}: {capability.why}; use --shares {AUTO} to take what works here")
    return ChosenBackend(
        name, backend, capability, (f"{name} was asked for: {capability.why}",), machine.cores
    )


def _first_usable(machine: Machine) -> ChosenBackend:
    refused: list[str] = []
    for name, make in SHARE_BACKENDS.items():
        backend = make(machine)
        capability = backend.probe_machine()
        if capability.usable:
            reasons = (f"{name}: {capability.why}", *refused)
            return ChosenBackend(name, backend, capability, reasons, machine.cores)
        refused.append(f"not {name}: {capability.why}")
    raise UserError("--shares auto: no share backend works on this machine; " + "; ".join(refused))

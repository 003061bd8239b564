"""Share backends by name, and which of them to use."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ekya.core.units import FULL_GPU_MILLI
from ekya.errors import UserError
from ekya.gpu.cores import cpu_limit
from ekya.gpu.cpu import CpuShares
from ekya.gpu.cuda_driver import read_layouts
from ekya.gpu.duty_cycle import DutyCycleShares
from ekya.gpu.green import GreenShares
from ekya.gpu.mps import MpsShares
from ekya.gpu.mps_green import MpsGreenShares
from ekya.gpu.mps_service import LookForMps, look_for_mps
from ekya.gpu.nvml import GpuInventory, list_gpus
from ekya.gpu.protocol import Capability, ShareBackend
from ekya.gpu.sm_layout import SmReport


@dataclass(frozen=True, slots=True)
class Machine:
    """What backends need to know of the machine.

    Attributes:
        cores: CPU cores that this process may use; a container may leave a part of one.
        inventory: the GPUs.
        look_mps: says what there is of MPS.
        split_sms: asks the driver how it splits the GPUs' multiprocessors.
        one_process: whether all jobs will run in one process; those of a run do not.
    """

    cores: float
    inventory: GpuInventory
    look_mps: LookForMps = look_for_mps
    split_sms: Callable[[], SmReport] = read_layouts
    one_process: bool = False


def this_machine() -> Machine:
    """The machine that this runs on."""
    return Machine(cpu_limit(), list_gpus())


def _mps(machine: Machine) -> MpsShares:
    # Actors live for the whole run and their shares change, which the percentage alone cannot follow.
    return MpsShares(machine.inventory, machine.look_mps, duty_cycle=True)


def _green(machine: Machine) -> GreenShares:
    return GreenShares(machine.inventory, machine.split_sms, machine.one_process)


SHARE_BACKENDS: Mapping[str, Callable[[Machine], ShareBackend]] = {
    "mps+green": lambda machine: MpsGreenShares(_mps(machine), _green(machine)),
    "mps": _mps,
    "green": _green,
    "duty-cycle": lambda machine: DutyCycleShares(machine.inventory),
    "cpu": lambda machine: CpuShares(machine.cores),
}
"""By name, in the order in which ``auto`` tries them."""

MPS_BACKENDS = frozenset({"mps+green", "mps"})
"""Those under which kernels of several processes run on a GPU at the same time."""

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class ChosenBackend:
    """The backend of a run.

    Attributes:
        name: key of ``SHARE_BACKENDS``.
        backend: it.
        capability: what it can do here.
        reasons: why this one, and why none that comes before it; a sentence each.
    """

    name: str
    backend: ShareBackend
    capability: Capability
    reasons: tuple[str, ...]

    @property
    def gpus(self) -> int:
        """How many GPUs it computes on; none where cores stand for them."""
        return max(1, self.capability.capacity_milli // FULL_GPU_MILLI) if self.on_gpus else 0

    @property
    def on_gpus(self) -> bool:
        """Whether it computes on GPUs."""
        return self.capability.device == "cuda"

    @property
    def why(self) -> str:
        """All reasons in one line."""
        return "; ".join(self.reasons)


def choose_backend(name: str = AUTO, machine: Machine | None = None) -> ChosenBackend:
    """The backend with this name, or with ``auto`` the first that works.

    Raises:
        UserError: no backend has this name, or the named one cannot work here.
    """
    machine = machine or this_machine()
    if name == AUTO:
        return _first_usable(machine)
    if name not in SHARE_BACKENDS:
        known = ", ".join((AUTO, *SHARE_BACKENDS))
        raise UserError(f"--shares {name}: there is no such share backend; use one of {known}")
    backend = SHARE_BACKENDS[name](machine)
    capability = backend.probe()
    if not capability.usable:
        raise UserError(f"--shares {name}: {capability.why}; use --shares {AUTO} to take what works here")
    return ChosenBackend(name, backend, capability, (f"{name} was asked for: {capability.why}",))


def _first_usable(machine: Machine) -> ChosenBackend:
    refused: list[str] = []
    for name, make in SHARE_BACKENDS.items():
        backend = make(machine)
        capability = backend.probe()
        if capability.usable:
            return ChosenBackend(name, backend, capability, (f"{name}: {capability.why}", *refused))
        refused.append(f"not {name}: {capability.why}")
    raise UserError("--shares auto: no share backend works on this machine; " + "; ".join(refused))

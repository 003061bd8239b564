"""Charges work of a job to its share if it runs on the share's own device."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceScopes:
    """Contexts of a job's work, by the device that does it: only work on the share's own is charged to it.

    What a CPU does beside a GPU would be measured as the GPU's time, and hold up its other jobs. On a machine
    without a GPU the CPU is the share's device, and all work is charged. So a step of the CPU that calls a
    network on a GPU enters ``host`` around all of it, and ``scope`` around the network only: they never nest
    in one share.

    Attributes:
        device: torch's name of the share's device.
        scope: of work on it; waits for the share.
        beside: of work on another device.
    """

    device: str = "cpu"
    scope: Callable[[], AbstractContextManager[None]] = nullcontext
    beside: Callable[[], AbstractContextManager[None]] = nullcontext

    def charges(self, device: str) -> bool:
        """Returns whether work on a torch device is done on the share's device."""
        return device.partition(":")[0] == self.device.partition(":")[0]

    def scope_on(self, device: str) -> AbstractContextManager[None]:
        """Returns the context of work on a torch device."""
        return self.scope() if self.charges(device) else self.beside()

    def host(self) -> AbstractContextManager[None]:
        """Returns the context of work on the CPU."""
        return self.scope_on("cpu")


UNCHARGED = DeviceScopes()
"""Of work that nothing waits for or measures, wherever it is done."""

"""Interface to the part of the CUDA driver that assigns SMs; implemented by ``cuda_driver``."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ekya.core.errors import UserError
from ekya.gpu.green.sm_layout import SmLayout


class SmDriverError(RuntimeError):
    """A driver call failed; the message names the call and its error."""


class NoSmDriverError(UserError):
    """No driver here can make green contexts; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class SmGroup:
    """SMs as a resource of the driver.

    Attributes:
        sms: number of SMs.
        resource: opaque object of the driver.
    """

    sms: int
    resource: object = field(compare=False, repr=False)


class SmDriver(Protocol):
    """One GPU. Every method raises SmDriverError if its driver call fails."""

    @property
    def uuid(self) -> str:
        """The GPU's UUID in hexadecimal digits."""

    def whole(self) -> SmGroup:
        """Returns all SMs of the GPU. Makes no context."""

    def split(self, whole: SmGroup) -> tuple[tuple[SmGroup, ...], SmGroup | None]:
        """Returns the smallest possible groups, all of one size, and the rest."""

    def make_context(self, groups: Sequence[SmGroup]) -> object:
        """Makes a green context of groups of one split, through one descriptor."""

    def context_sms(self, context: object) -> int:
        """Returns the number of SMs that the context was granted."""

    def make_stream(self, context: object) -> int:
        """Makes a stream on the context's SMs, independent of the current context; returns its address."""

    def is_on(self, stream: int, context: object) -> bool:
        """Returns whether the stream belongs to the green context."""

    def synchronise(self, stream: int) -> None:
        """Waits for all work on the stream."""

    def destroy_stream(self, stream: int) -> None:
        """Destroys the stream; its address is invalid afterwards."""

    def destroy_context(self, context: object) -> None:
        """Destroys the context; its streams must be destroyed before."""

    def close(self) -> None:
        """Releases the GPU; all contexts must be destroyed before."""


def layout_of(driver: SmDriver) -> SmLayout:
    """Returns how the GPU is split.

    Raises:
        SmDriverError: the driver makes no groups.
    """
    groups, rest = driver.split(driver.whole())
    if not groups:
        raise SmDriverError("the driver splits this GPU into no groups of SMs")
    return SmLayout(groups[0].sms, len(groups), 0 if rest is None else rest.sms)

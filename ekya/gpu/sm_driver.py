"""The part of the CUDA driver that shares out SMs, as a seam: the real one is ``cuda_driver``."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ekya.errors import UserError
from ekya.gpu.sm_layout import SmLayout


class SmDriverError(RuntimeError):
    """A call of the driver failed; says which, and with what."""


class NoSmDriverError(UserError):
    """There is no driver here that can make green contexts; says what is missing."""


@dataclass(frozen=True, slots=True)
class SmGroup:
    """SMs, as a resource that the driver hands out.

    Attributes:
        sms: how many.
        resource: the driver's own; nobody else looks inside.
    """

    sms: int
    resource: object = field(compare=False, repr=False)


class SmDriver(Protocol):
    """One GPU. Every method but ``uuid`` raises SmDriverError where the driver refuses."""

    @property
    def uuid(self) -> str:
        """Of the GPU, in hexadecimal digits."""

    def whole(self) -> SmGroup:
        """All SMs of the GPU. Makes no context."""

    def split(self, whole: SmGroup) -> tuple[tuple[SmGroup, ...], SmGroup | None]:
        """The smallest groups there are, all of one size, and what is left over."""

    def make_context(self, groups: Sequence[SmGroup]) -> object:
        """A green context of groups of one split, through one descriptor."""

    def context_sms(self, context: object) -> int:
        """The SMs that it really got."""

    def make_stream(self, context: object) -> int:
        """A stream whose kernels run on the context's SMs, whichever context is current. Its address."""

    def is_on(self, stream: int, context: object) -> bool:
        """Whether the stream belongs to the green context."""

    def synchronise(self, stream: int) -> None:
        """Waits until all work on the stream is done."""

    def destroy_stream(self, stream: int) -> None:
        """After this its address means nothing."""

    def destroy_context(self, context: object) -> None:
        """Its streams must be destroyed before."""

    def close(self) -> None:
        """Lets go of the GPU; all contexts must be destroyed before."""


def layout_of(driver: SmDriver) -> SmLayout:
    """How the GPU is split.

    Raises:
        SmDriverError: the driver makes no groups.
    """
    groups, rest = driver.split(driver.whole())
    if not groups:
        raise SmDriverError("the driver splits this GPU into no groups of SMs")
    return SmLayout(groups[0].sms, len(groups), 0 if rest is None else rest.sms)

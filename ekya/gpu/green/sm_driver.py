"""The part of the CUDA driver that divides a GPU's multiprocessors (SMs), and its division into groups.

The driver is called through ``cuda.bindings`` (included in torch's CUDA builds).
"""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ekya.core.errors import UserError
from ekya.core.gpus import GpuGroups
from ekya.core.units import FULL_GPU_MILLI


@dataclass(frozen=True, slots=True)
class SmLayout:
    """Division of one GPU into groups of SMs.

    Attributes:
        group_sms: SMs of a group; 8 on an H200, 2 or 4 on Ampere and Ada.
        groups: number of groups.
        rest_sms: SMs left over from whole groups; they belong to the last group.
    """

    group_sms: int
    groups: int
    rest_sms: int = 0

    @property
    def sms(self) -> int:
        """Number of SMs of the GPU."""
        return self.group_sms * self.groups + self.rest_sms

    @property
    def grouping(self) -> GpuGroups:
        """Conversion between groups and shares."""
        return GpuGroups(self.group_sms, self.sms)

    def share_milli(self, sms: int) -> int:
        """Returns these SMs as a share of this GPU, rounded up as the share of groups is."""
        return -(-FULL_GPU_MILLI * sms // self.sms)

    def groups_for(self, share_milli: int) -> int:
        """Returns the most groups that a share pays for; a full share pays for all."""
        return min(self.grouping.groups_for(share_milli), self.groups)


@dataclass(frozen=True, slots=True)
class SmReport:
    """Result of asking the driver how it splits the GPUs.

    Attributes:
        layouts: one per GPU, in CUDA's order; empty where green contexts cannot be made.
        why: reason, in one sentence.
    """

    layouts: tuple[SmLayout, ...]
    why: str


def coarsest(layouts: Sequence[SmLayout]) -> GpuGroups:
    """Returns the groups of the GPU on which one group is the largest part.

    Shares are granted in these groups on every GPU.
    """
    return max((layout.grouping for layout in layouts), key=lambda one: one.group_sms / one.sms)


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

    def split_groups(self, whole: SmGroup) -> tuple[tuple[SmGroup, ...], SmGroup | None]:
        """Returns the smallest possible groups, all of one size, and the rest."""

    def make_context(self, groups: Sequence[SmGroup]) -> object:
        """Makes a green context of groups of one split, through one descriptor."""

    def context_sms(self, context: object) -> int:
        """Returns the number of SMs that the context was granted."""

    def make_stream(self, context: object) -> int:
        """Makes a stream on the context's SMs, independent of the current context; returns its address."""

    def is_on(self, stream: int, context: object) -> bool:
        """Returns whether the stream belongs to the green context."""

    def destroy_stream(self, stream: int) -> None:
        """Destroys the stream; its address is invalid afterwards."""

    def destroy_context(self, context: object) -> None:
        """Destroys the context; its streams must be destroyed before."""


def layout_of(driver: SmDriver) -> SmLayout:
    """Returns how the GPU is split.

    Raises:
        SmDriverError: the driver makes no groups.
    """
    groups, rest = driver.split_groups(driver.whole())
    if not groups:
        raise SmDriverError("the driver splits this GPU into no groups of SMs")
    return SmLayout(groups[0].sms, len(groups), 0 if rest is None else rest.sms)


class CudaCalls:
    """Calls functions of ``cuda.bindings.driver``, which return an error code first."""

    def __init__(self, bindings: Any = None) -> None:
        """Starts the driver; makes no context.

        Args:
            bindings: replaces the library's module.

        Raises:
            NoSmDriverError: there are no bindings or no driver.
        """
        self.names = _bindings() if bindings is None else bindings
        try:
            self("cuInit", 0)
        except SmDriverError as error:
            raise NoSmDriverError(f"CUDA does not start here ({error})") from error

    def __call__(self, name: str, *arguments: object) -> Any:
        """Returns the outputs of a call.

        Raises:
            SmDriverError: the call failed, or the bindings do not have it.
        """
        function = getattr(self.names, name, None)
        if function is None:
            raise SmDriverError(f"these cuda.bindings have no {name}")
        try:
            error, *outputs = function(*arguments)
        except RuntimeError as missing:
            # Raised by the bindings if the driver's library is missing or too old for the call.
            raise SmDriverError(f"{name}: {str(missing).splitlines()[0]}") from missing
        if error != self.names.CUresult.CUDA_SUCCESS:
            raise SmDriverError(f"{name}: {getattr(error, 'name', error)}")
        return outputs[0] if len(outputs) == 1 else outputs


class CudaDriver:
    """One GPU that is visible to this process. An ``SmDriver``.

    The primary context is retained with the first green context, as long as the process lives: otherwise the
    driver would set it up and tear it down with each.
    """

    def __init__(self, calls: CudaCalls, device: int = 0) -> None:
        """Makes no context.

        Raises:
            SmDriverError: there is no such visible GPU.
        """
        self._call = calls
        self._cuda = calls.names
        self._device = calls("cuDeviceGet", device)
        self._retained = False

    @property
    def uuid(self) -> str:
        return bytes(self._call("cuDeviceGetUuid", self._device).bytes).hex()

    def whole(self) -> SmGroup:
        kind = self._cuda.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
        return _group(self._call("cuDeviceGetDevResource", self._device, kind))

    def split_groups(self, whole: SmGroup) -> tuple[tuple[SmGroup, ...], SmGroup | None]:
        """Requests groups of one SM, which the driver rounds up to the smallest possible size."""
        made, count, rest = self._call("cuDevSmResourceSplitByCount", whole.sms, whole.resource, 0, 1)
        groups = tuple(_group(resource) for resource in made[:count])
        is_some = rest.type == self._cuda.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM and rest.sm.smCount > 0
        return groups, _group(rest) if is_some else None

    def make_context(self, groups: Sequence[SmGroup]) -> object:
        if not self._retained:
            self._call("cuDevicePrimaryCtxRetain", self._device)
            self._retained = True
        description = self._call("cuDevResourceGenerateDesc", [one.resource for one in groups], len(groups))
        # The driver requires this flag, although the context's default stream is not used.
        flag = self._cuda.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
        return self._call("cuGreenCtxCreate", description, self._device, flag)

    def context_sms(self, context: object) -> int:
        kind = self._cuda.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
        return _group(self._call("cuGreenCtxGetDevResource", context, kind)).sms

    def make_stream(self, context: object) -> int:
        """Makes a non-blocking stream (never waits for the default stream), the only kind allowed here."""
        flag = self._cuda.CUstream_flags.CU_STREAM_NON_BLOCKING
        return int(self._call("cuGreenCtxStreamCreate", context, flag, 0))

    def is_on(self, stream: int, context: object) -> bool:
        owner: Any = self._call("cuStreamGetGreenCtx", stream)
        expected: Any = context
        # The bindings return a new object with each call; the addresses are compared.
        return int(owner) == int(expected)

    def destroy_stream(self, stream: int) -> None:
        self._call("cuStreamDestroy", stream)

    def destroy_context(self, context: object) -> None:
        self._call("cuGreenCtxDestroy", context)


def read_layouts(bindings: Any = None) -> SmReport:
    """Returns how the visible GPUs can be split. Makes no context; reports driver errors in ``why``."""
    try:
        calls = CudaCalls(bindings)
        count = int(calls("cuDeviceGetCount"))
        layouts = tuple(layout_of(CudaDriver(calls, device)) for device in range(count))
    except (NoSmDriverError, SmDriverError) as error:
        return SmReport((), str(error))
    if not layouts:
        return SmReport((), "CUDA shows no GPU to this process")
    sizes = ", ".join(f"{one.sms} SMs in steps of {one.group_sms}" for one in layouts)
    return SmReport(layouts, f"the driver can split {sizes}")


def _group(resource: Any) -> SmGroup:
    return SmGroup(int(resource.sm.smCount), resource)


def _bindings() -> Any:
    try:
        return importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise NoSmDriverError(
            "the library cuda.bindings is not installed (torch's CUDA builds bring it)"
        ) from error

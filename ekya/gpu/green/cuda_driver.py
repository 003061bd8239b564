"""The CUDA driver's green contexts, through ``cuda.bindings`` (included in torch's CUDA builds)."""

import importlib
from collections.abc import Sequence
from typing import Any

from ekya.gpu.green.sm_driver import NoSmDriverError, SmDriverError, SmGroup, layout_of
from ekya.gpu.green.sm_layout import SmReport


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

    The primary context is retained with the first green context and released by ``close``: otherwise the
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
        """The GPU's UUID in hexadecimal digits."""
        return bytes(self._call("cuDeviceGetUuid", self._device).bytes).hex()

    def whole(self) -> SmGroup:
        """Returns all SMs of the GPU. Makes no context."""
        kind = self._cuda.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
        return _group(self._call("cuDeviceGetDevResource", self._device, kind))

    def split(self, whole: SmGroup) -> tuple[tuple[SmGroup, ...], SmGroup | None]:
        """Requests groups of one SM, which the driver rounds up to the smallest possible size."""
        made, count, rest = self._call("cuDevSmResourceSplitByCount", whole.sms, whole.resource, 0, 1)
        groups = tuple(_group(resource) for resource in made[:count])
        is_some = rest.type == self._cuda.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM and rest.sm.smCount > 0
        return groups, _group(rest) if is_some else None

    def make_context(self, groups: Sequence[SmGroup]) -> object:
        """Makes a green context of groups of one split, through one descriptor."""
        if not self._retained:
            self._call("cuDevicePrimaryCtxRetain", self._device)
            self._retained = True
        description = self._call("cuDevResourceGenerateDesc", [one.resource for one in groups], len(groups))
        flag = self._cuda.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
        return self._call("cuGreenCtxCreate", description, self._device, flag)

    def context_sms(self, context: object) -> int:
        """Returns the number of SMs that the context was granted."""
        kind = self._cuda.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
        return _group(self._call("cuGreenCtxGetDevResource", context, kind)).sms

    def make_stream(self, context: object) -> int:
        """Makes a non-blocking stream (never waits for the default stream), the only kind allowed here."""
        flag = self._cuda.CUstream_flags.CU_STREAM_NON_BLOCKING
        return int(self._call("cuGreenCtxStreamCreate", context, flag, 0))

    def is_on(self, stream: int, context: object) -> bool:
        """Returns whether the stream belongs to the green context."""
        owner: Any = self._call("cuStreamGetGreenCtx", stream)
        expected: Any = context
        return int(owner) == int(expected)

    def synchronise(self, stream: int) -> None:
        """Waits for all work on the stream."""
        self._call("cuStreamSynchronize", stream)

    def destroy_stream(self, stream: int) -> None:
        """Destroys the stream; its address is invalid afterwards."""
        self._call("cuStreamDestroy", stream)

    def destroy_context(self, context: object) -> None:
        """Destroys the context; its streams must be destroyed before."""
        self._call("cuGreenCtxDestroy", context)

    def close(self) -> None:
        """Releases the primary context if it was retained."""
        if self._retained:
            self._retained = False
            self._call("cuDevicePrimaryCtxRelease", self._device)


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

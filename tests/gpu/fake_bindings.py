"""Fake of `cuda.bindings.driver` for machines without a GPU."""

import enum
from types import SimpleNamespace


class Result(enum.Enum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_OUT_OF_MEMORY = 2


SM, INVALID = "SM", "INVALID"


def sms(count, kind=SM):
    return SimpleNamespace(type=kind, sm=SimpleNamespace(smCount=count))


class FakeBindings:
    """Replies of ``cuda.bindings.driver`` on a GPU of 132 SMs, error code first."""

    CUresult = Result
    CUdevResourceType = SimpleNamespace(CU_DEV_RESOURCE_TYPE_SM=SM)
    CUgreenCtxCreate_flags = SimpleNamespace(CU_GREEN_CTX_DEFAULT_STREAM=1)
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)

    def __init__(self, fails=(), gpus=1):
        self.fails, self.gpus = dict.fromkeys(fails, Result.CUDA_ERROR_OUT_OF_MEMORY), gpus
        self.calls = []
        self.retained = 0

    def _answer(self, name, *outputs):
        self.calls.append(name)
        return (self.fails.get(name, Result.CUDA_SUCCESS), *outputs)


def answering(name, make):
    def function(self, *arguments):
        return self._answer(name, *make(self, *arguments))

    return function


def retain(self, device):
    self.retained += 1
    return ("primary",)


ANSWERS = {
    "cuInit": lambda self, flags: (),
    "cuDeviceGetCount": lambda self: (self.gpus,),
    "cuDeviceGet": lambda self, place: (f"device {place}",),
    "cuDeviceGetUuid": lambda self, device: (SimpleNamespace(bytes=b"\x01" * 16),),
    "cuDeviceGetDevResource": lambda self, device, kind: (sms(132),),
    # The array has the requested length; only the first groups were made.
    "cuDevSmResourceSplitByCount": lambda self, most, whole, flags, least: (
        [sms(8)] * 16 + [sms(0, INVALID)] * (most - 16),
        16,
        sms(4),
    ),
    "cuDevicePrimaryCtxRetain": retain,
    "cuDevResourceGenerateDesc": lambda self, resources, count: (
        ("description", sum(one.sm.smCount for one in resources[:count])),
    ),
    "cuGreenCtxCreate": lambda self, description, device, flags: (7_000 + description[1],),
    "cuGreenCtxGetDevResource": lambda self, context, kind: (sms(context - 7_000),),
    "cuGreenCtxStreamCreate": lambda self, context, flags, priority: (context + 1_000,),
    "cuStreamGetGreenCtx": lambda self, stream: (stream - 1_000,),
    "cuStreamDestroy": lambda self, stream: (),
    "cuGreenCtxDestroy": lambda self, context: (),
}
for name, make in ANSWERS.items():
    setattr(FakeBindings, name, answering(name, make))

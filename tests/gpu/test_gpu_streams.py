import sys

import pytest
import torch
from fake_bindings import FakeBindings

from ekya.gpu.backends.backend import ShareJob
from ekya.gpu.backends.gpu_streams import TorchStreams
from ekya.gpu.green import green_context_pool
from ekya.gpu.green.green_context_pool import open_process
from ekya.gpu.green.handle import GreenHandle
from ekya.system import numeric_check as gate
from ekya.system.numeric_check import GateSizes, NumericGate


class FakeEvent:
    def __init__(self, enable_timing):
        assert enable_timing
        self.stream, self.at_ms, self.done = None, None, False

    def record(self, stream):
        self.stream, self.at_ms = stream, stream.at_ms

    def query(self):
        return self.done

    def synchronize(self):
        self.done = True

    def elapsed_time(self, later):
        return later.at_ms - self.at_ms


class FakeStream:
    def __init__(self, address, device):
        self.cuda_stream, self.device, self.at_ms, self.synchronised = address, device, 0.0, 0

    def synchronize(self):
        self.synchronised += 1


class FakeTorchCuda:
    """Fake of ``torch.cuda`` for one thread."""

    Event = FakeEvent

    def __init__(self):
        self.made, self.now, self.started = [], FakeStream(0, 0), False
        self.ExternalStream = self.wrap
        self.default = self.now

    def default_stream(self, device):
        assert device == 0
        return self.default

    def init(self):
        self.started = True

    def wrap(self, address, device):
        self.made.append(FakeStream(address, device))
        return self.made[-1]

    def set_stream(self, stream):
        self.now = stream

    def current_stream(self, device):
        assert device == self.now.device
        return self.now


@pytest.fixture
def cuda(monkeypatch):
    fake = FakeTorchCuda()
    for name in (name for name in dir(fake) if not name.startswith("_")):
        if hasattr(torch.cuda, name):
            monkeypatch.setattr(torch.cuda, name, getattr(fake, name))
    return fake


def test_torch_streams_thread_stays_on_entered_stream(cuda):
    streams = TorchStreams()
    assert cuda.started
    streams.enter_stream(4096)
    assert (streams.current(), cuda.now.cuda_stream) == (4096, 4096)
    streams.enter_stream(8192)
    streams.enter_stream(4096)
    assert [one.cuda_stream for one in cuda.made] == [4096, 8192], "a stream is wrapped once"
    streams.wait_for_stream(8192)
    assert [one.synchronised for one in cuda.made] == [0, 1]
    streams.wait_for_stream(0)
    assert cuda.default.synchronised == 1
    streams.enter_stream(0)
    assert cuda.now is cuda.default


def test_torch_streams_marks_are_timed_events(cuda):
    streams = TorchStreams()
    streams.enter_stream(4096)
    began = streams.record_mark()
    cuda.now.at_ms = 2.5
    ended = streams.record_mark()
    assert not ended.reached()
    ended.wait()
    assert ended.reached()
    assert ended.ns_since(began) == 2_500_000
    assert ended.event.stream.cuda_stream == 4096
    with pytest.raises(TypeError):
        ended.ns_since(object())


def test_torch_streams_torch_has_every_call_used():
    for name in ("init", "set_stream", "current_stream", "ExternalStream", "Event", "default_stream"):
        assert callable(getattr(torch.cuda, name))
    assert {"record", "query", "synchronize", "elapsed_time"} <= set(dir(torch.cuda.Event))


@pytest.mark.parametrize("has_bfloat16", [True, False])
def test_green_process_prepares_and_checks_its_levels(cuda, monkeypatch, tmp_path, has_bfloat16):
    bindings = FakeBindings()
    asked = []

    def on_the_cpu(device, dtypes):
        asked.append((device, tuple(dtypes)))
        return NumericGate("cpu", dtypes, sizes=GateSizes(8, 1, 1, 4))

    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", bindings)
    monkeypatch.setattr(gate, "NumericGate", on_the_cpu)
    monkeypatch.setattr(green_context_pool, "claims_folder", lambda: tmp_path)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has_bfloat16)
    process = open_process()
    used = (torch.float32, torch.float16, torch.bfloat16)
    assert asked == [("cuda:0", used if has_bfloat16 else used[:2])]
    assert bindings.calls.count("cuDevSmResourceSplitByCount") == 1
    assert sorted(process.levels.failed) == [32, 36, 64, 68, 96, 100, 132]
    made = bindings.calls.count("cuGreenCtxCreate")
    handle = GreenHandle(process.levels, process.streams, process.claims(), ShareJob("a", "retraining", 500))
    with handle.scope():
        assert cuda.now.cuda_stream == handle.level.stream
    # At most one more than those made ahead: the single group of a job without a share.
    assert bindings.calls.count("cuGreenCtxCreate") <= made + 1
    handle.release()

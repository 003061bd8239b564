"""GPU memory shared with another process over CUDA IPC, on a fake GPU."""

import ctypes

import pytest
from fake_ipc import FakeGpu

from ekya.gpu.green.sm_driver import SmDriverError

BYTES = bytes(range(256)) * 40


@pytest.fixture
def gpu():
    return FakeGpu()


@pytest.fixture
def lender(gpu):
    return gpu.process()


@pytest.fixture
def taker(gpu):
    return gpu.process()


def address_of(memory):
    return ctypes.addressof(memory)


def lend(process):
    own = ctypes.create_string_buffer(BYTES, len(BYTES))
    return process.ipc().lend(address_of(own), len(BYTES))


def take(process, handle):
    own = ctypes.create_string_buffer(len(BYTES))
    process.ipc().take(handle, address_of(own), len(BYTES))
    return own.raw


def test_ipc_shared_memory_is_read_and_freed(lender, taker):
    loan = lend(lender)
    assert isinstance(loan.handle, bytes)
    assert take(taker, loan.handle) == BYTES
    loan.end()
    assert (lender.memory, taker.opened) == ({}, set())
    assert (lender.contexts, taker.contexts) == ([], [])
    assert (lender.copied, taker.copied) == (1, 1), "a copy that nobody waits for may come too late"


def test_ipc_shared_memory_has_driver_blocks_of_its_own(lender):
    lend(lender)
    (memory,) = lender.memory.values()
    assert len(memory) % (1 << 21) == 0


def test_ipc_memory_of_dead_owner_cannot_be_opened(lender, taker):
    freed, left = lend(lender), lend(lender)
    freed.end()
    with pytest.raises(SmDriverError, match="cuIpcOpenMemHandle"):
        take(taker, freed.handle)
    assert take(taker, left.handle) == BYTES
    lender.die()
    with pytest.raises(SmDriverError, match="cuIpcOpenMemHandle"):
        take(taker, left.handle)
    assert (taker.opened, taker.contexts) == (set(), [])


@pytest.mark.parametrize("fails", ["cuMemcpyDtoDAsync", "cuIpcGetMemHandle"])
def test_ipc_failed_share_frees_its_memory(lender, fails):
    lender.fails[fails] = "no"
    with pytest.raises(SmDriverError, match=fails):
        lend(lender)
    assert (lender.memory, lender.contexts) == ({}, [])


def test_ipc_failed_copy_closes_the_handle(lender, taker):
    loan = lend(lender)
    taker.fails["cuMemcpyDtoDAsync"] = "no"
    with pytest.raises(SmDriverError, match="cuMemcpyDtoDAsync"):
        take(taker, loan.handle)
    assert (taker.opened, taker.contexts) == (set(), [])


def test_ipc_invalid_handle_never_reaches_the_driver(taker):
    with pytest.raises(ValueError, match="64 bytes and not 3"):
        take(taker, b"abc")
    assert taker.calls == ["cuInit", "cuDeviceGet"]

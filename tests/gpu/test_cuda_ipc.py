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


def test_what_one_process_lends_another_has_and_nothing_stays_behind(lender, taker):
    loan = lend(lender)
    assert isinstance(loan.handle, bytes)
    assert take(taker, loan.handle) == BYTES
    loan.end()
    assert (lender.memory, taker.opened) == ({}, set())
    assert (lender.contexts, taker.contexts) == ([], [])
    assert (lender.copied, taker.copied) == (1, 1), "a copy that nobody waits for may come too late"


def test_memory_that_is_lent_shares_no_block_with_other_memory(lender):
    lend(lender)
    (memory,) = lender.memory.values()
    assert len(memory) % (1 << 21) == 0


def test_a_dead_owners_memory_and_what_was_freed_cannot_be_had(lender, taker):
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
def test_what_cannot_be_lent_is_freed(lender, fails):
    lender.fails[fails] = "no"
    with pytest.raises(SmDriverError, match=fails):
        lend(lender)
    assert (lender.memory, lender.contexts) == ({}, [])


def test_what_cannot_be_copied_is_left_alone(lender, taker):
    loan = lend(lender)
    taker.fails["cuMemcpyDtoDAsync"] = "no"
    with pytest.raises(SmDriverError, match="cuMemcpyDtoDAsync"):
        take(taker, loan.handle)
    assert (taker.opened, taker.contexts) == (set(), [])


def test_what_is_no_handle_is_not_shown_to_the_driver(taker):
    with pytest.raises(ValueError, match="64 bytes and not 3"):
        take(taker, b"abc")
    assert taker.calls == ["cuInit", "cuDeviceGet"]

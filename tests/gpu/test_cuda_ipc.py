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
def owner(gpu):
    return gpu.process()


@pytest.fixture
def reader(gpu):
    return gpu.process()


def address_of(memory):
    return ctypes.addressof(memory)


def shared_by(process):
    own = ctypes.create_string_buffer(BYTES, len(BYTES))
    return process.ipc().share(address_of(own), len(BYTES))


def take(process, handle):
    own = ctypes.create_string_buffer(len(BYTES))
    process.ipc().read(handle, address_of(own), len(BYTES))
    return own.raw


def test_ipc_shared_memory_is_read_and_freed(owner, reader):
    block = shared_by(owner)
    assert isinstance(block.handle, bytes)
    assert take(reader, block.handle) == BYTES
    block.end()
    assert (owner.memory, reader.opened) == ({}, set())
    assert (owner.contexts, reader.contexts) == ([], [])
    assert (owner.copied, reader.copied) == (1, 1), "a copy that is not waited for may come too late"


def test_ipc_shared_memory_has_driver_blocks_of_its_own(owner):
    shared_by(owner)
    (memory,) = owner.memory.values()
    assert len(memory) % (1 << 21) == 0


def test_ipc_memory_of_dead_owner_cannot_be_opened(owner, reader):
    freed, left = shared_by(owner), shared_by(owner)
    freed.end()
    with pytest.raises(SmDriverError, match="cuIpcOpenMemHandle"):
        take(reader, freed.handle)
    assert take(reader, left.handle) == BYTES
    owner.die()
    with pytest.raises(SmDriverError, match="cuIpcOpenMemHandle"):
        take(reader, left.handle)
    assert (reader.opened, reader.contexts) == (set(), [])


@pytest.mark.parametrize("fails", ["cuMemcpyDtoDAsync", "cuIpcGetMemHandle"])
def test_ipc_failed_share_frees_its_memory(owner, fails):
    owner.fails[fails] = "no"
    with pytest.raises(SmDriverError, match=fails):
        shared_by(owner)
    assert (owner.memory, owner.contexts) == ({}, [])


def test_ipc_failed_copy_closes_the_handle(owner, reader):
    block = shared_by(owner)
    reader.fails["cuMemcpyDtoDAsync"] = "no"
    with pytest.raises(SmDriverError, match="cuMemcpyDtoDAsync"):
        take(reader, block.handle)
    assert (reader.opened, reader.contexts) == (set(), [])


def test_ipc_invalid_handle_never_reaches_the_driver(reader):
    with pytest.raises(ValueError, match="64 bytes and not 3"):
        take(reader, b"abc")
    assert reader.calls == ["cuInit", "cuDeviceGet"]

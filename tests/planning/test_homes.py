"""Tests of the choice between processes of a stream and processes of a GPU."""

from dataclasses import replace

import pytest

from ekya.planning.placement.homes import Processes, ProcessRoom, choose_processes

GIB = 1 << 30
ROOM = ProcessRoom(
    clients=48,
    cores=16,
    host_bytes=256 * GIB,
    gpu_bytes=140 * GIB,
    host_process_bytes=3 * GIB,
    gpu_process_bytes=GIB,
)


@pytest.mark.parametrize(
    ("streams_by_gpu", "lacks", "why"),
    [
        ((8,), {"clients": None}, "without MPS processes take turns on a GPU"),
        ((16,), {}, "two a camera are 32 on 16 cores"),
        ((24,), {"cores": 64}, "MPS takes 48 processes on a GPU, and two a camera are 50"),
        ((8,), {"host_bytes": 53 * GIB}, "two a camera need 54 GiB of memory"),
        ((5, 3), {"gpu_bytes": 11 * GIB}, "two a camera need 12 GiB of a GPU's memory"),
    ],
)
def test_streams_share_processes_where_anything_lacks_for_two_each(streams_by_gpu, lacks, why):
    assert choose_processes(streams_by_gpu, replace(ROOM, **lacks)) == (Processes.GPU, why)


def test_each_stream_has_its_processes_where_all_suffices():
    for streams_by_gpu, more in (((8,), {}), ((23,), {"cores": 46}), ((4, 4), {"gpu_bytes": None})):
        assert choose_processes(streams_by_gpu, replace(ROOM, **more))[0] is Processes.STREAM

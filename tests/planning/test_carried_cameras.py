"""Numbers of cameras that cores and GPUs carry, from made-up costs."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekya.core.host import HostCosts, StreamCosts
from ekya.planning.sizing.carried_cameras import CORES_PART, count_carried_cameras

CAMERA = StreamCosts(10.0, {352: 0.002, 160: 0.001}, reading_s=0.005)


def costs_of(*cameras, cores=16.0):
    return HostCosts({f"cam-{at}": camera for at, camera in enumerate(cameras)}, 0.01, (), cores)


def test_on_a_gpu_server_cores_read_and_each_gpu_analyses():
    found = count_carried_cameras(costs_of(CAMERA), 2)
    assert (found.by_cores, found.by_gpu, found.by_gpus) == (272, 50, 100)
    assert found.limit == "gpus"
    assert found.sentence == (
        "the cores carry 272 cameras like these, each of 2 GPUs 50, all 100: the GPUs bind. Assumed is "
        "10 frames a second, each analysed at 352 px: 5 ms of a core to read it and 2 ms of a GPU to "
        "analyse it; 15% of 16 cores kept for the rest, nothing of a GPU for retraining"
    )


def test_few_cores_bind_and_the_mean_camera_counts():
    large = replace(CAMERA, fps=30.0, reading_s=0.010)
    found = count_carried_cameras(costs_of(CAMERA, large, cores=4.0), 1)
    assert (found.by_cores, found.by_gpu, found.limit) == (19, 25, "cores")
    assert (found.fps, found.reading_ms) == (20.0, pytest.approx(8.75))
    assert "the cores carry 19 cameras like these, the GPU 25: the cores bind." in found.sentence


def test_without_a_gpu_cores_do_both():
    found = count_carried_cameras(costs_of(CAMERA, cores=2.0), 0)
    assert (found.by_cores, found.by_gpu, found.by_gpus, found.limit) == (24, None, None, None)
    assert "the cores carry 24 cameras like these. Assumed" in found.sentence
    assert "2 ms of a core to analyse it" in found.sentence


def test_cameras_that_were_not_read_leave_the_cores_unknown():
    found = count_carried_cameras(costs_of(CAMERA, replace(CAMERA, reading_s=0.0)), 1)
    assert (found.by_cores, found.by_gpu, found.limit) == (None, 50, None)
    assert "an unknown number" in found.sentence


times = st.floats(1e-5, 0.1)


@given(st.lists(st.tuples(st.floats(1.0, 60.0), times, times), min_size=1, max_size=5), st.floats(1.0, 128.0))
def test_so_many_fit_and_not_one_more(cameras, cores):
    costs = costs_of(*(StreamCosts(fps, {32: gpu_s}, reading_s=s) for fps, gpu_s, s in cameras), cores=cores)
    found = count_carried_cameras(costs, 1)
    each = costs.reading_cores / len(cameras)
    assert (
        found.by_cores * each <= CORES_PART * cores * (1 + 1e-9) <= (found.by_cores + 1) * each * (1 + 2e-9)
    )

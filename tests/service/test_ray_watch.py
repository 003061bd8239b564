"""A service process ends when a process of its Ray dies."""

import queue
import subprocess

import pytest

from ekya.service.ray_watch import ended_with_ray


@pytest.fixture
def ray_process():
    """Starts processes that are called like Ray's."""
    started = []

    def start(name):
        process = subprocess.Popen([name, "60"], executable="/bin/sleep")
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize("name", ["raylet", "gcs_server"])
def test_death_of_a_process_of_ray_ends_the_service(ray_process, name):
    ended = queue.Queue()
    processes = {one: ray_process(one) for one in ("raylet", "gcs_server")}
    with ended_with_ray(ended.put):
        processes[name].kill()
        assert ended.get(timeout=5) == 1


def test_nothing_ends_while_ray_lives_or_after_it_was_shut_down(ray_process):
    ended = queue.Queue()
    raylet, other = ray_process("raylet"), ray_process("another")
    with ended_with_ray(ended.put):
        other.kill()
        with pytest.raises(queue.Empty):
            ended.get(timeout=0.5)
    raylet.kill()
    with pytest.raises(queue.Empty):
        ended.get(timeout=0.3)

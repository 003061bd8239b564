"""A service process ends when a process of its Ray dies or hangs."""

import queue
import signal
import subprocess
import sys

import pytest

from ekya.service.ray_watch import ended_with_ray

ANSWERING = """
import socket
server = socket.create_server(("127.0.0.1", 0))
print("listens", flush=True)
while True:
    connection, _ = server.accept()
    with connection:
        if connection.recv(99).startswith(b"PRI * HTTP/2.0"):
            connection.sendall(bytes(9))
"""


@pytest.fixture
def ray_process():
    """Starts processes that are called like Ray's, and that answer at a port where they are to."""
    started = []

    def start(name, answers=False):
        command = [name, "-c", ANSWERING] if answers else [name, "60"]
        process = subprocess.Popen(
            command, executable=sys.executable if answers else "/bin/sleep", stdout=subprocess.PIPE
        )
        started.append(process)
        if answers:
            process.stdout.readline()
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


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


@pytest.mark.parametrize("name", ["raylet", "gcs_server"])
def test_a_process_of_ray_that_hangs_ends_the_service(ray_process, name):
    ended = queue.Queue()
    processes = {one: ray_process(one, answers=True) for one in ("raylet", "gcs_server")}
    with ended_with_ray(ended.put, answer_s=0.1):
        processes[name].send_signal(signal.SIGSTOP)
        assert ended.get(timeout=20) == 1


def test_nothing_ends_while_ray_answers_or_after_it_was_stopped_for_a_moment(ray_process):
    ended = queue.Queue()
    raylet = ray_process("raylet", answers=True)
    with ended_with_ray(ended.put, answer_s=0.1):
        raylet.send_signal(signal.SIGSTOP)
        with pytest.raises(queue.Empty):
            ended.get(timeout=2.5)
        raylet.send_signal(signal.SIGCONT)
        with pytest.raises(queue.Empty):
            ended.get(timeout=3.0)

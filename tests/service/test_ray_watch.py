"""A service process ends when a process of its Ray dies or hangs."""

import queue
import signal
import subprocess
import sys
import threading

import pytest
from waiting import HANG_GUARD_S, wait_until

from ekya.service import ray_watch
from ekya.service.ray_watch import ended_with_ray
from ekya.system.processes import still_runs

ANSWERING = """
import socket
server = socket.create_server(("127.0.0.1", 0))
print("listens", flush=True)
while True:
    connection, _ = server.accept()
    with connection:
        if connection.recv(99).startswith(b"PRI * HTTP/2.0"):
            connection.sendall(bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
"""


@pytest.fixture
def ray_process():
    """Starts processes that are called like Ray's, and that answer at a port where they are to."""
    started = []

    def start(name, answers=False):
        command = [name, "-c", ANSWERING] if answers else [name, "infinity"]
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
        assert ended.get(timeout=HANG_GUARD_S) == 1


def test_nothing_ends_while_ray_lives_or_after_it_was_shut_down(ray_process, monkeypatch):
    ended, looks = queue.Queue(), []
    monkeypatch.setattr(ray_watch, "still_runs", lambda one: looks.append(one) or still_runs(one))
    _raylet, other = ray_process("raylet"), ray_process("another")
    with ended_with_ray(ended.put):
        other.kill()
        other.wait()
        looks.clear()
        wait_until(lambda: len(looks) > 2)
    assert ended.empty()
    assert "ray-watch" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("name", ["raylet", "gcs_server"])
def test_a_process_of_ray_that_hangs_ends_the_service(ray_process, name, monkeypatch):
    ended = queue.Queue()
    processes = {one: ray_process(one, answers=True) for one in ("raylet", "gcs_server")}
    port_of = ray_watch._port_of
    monkeypatch.setattr(ray_watch, "_port_of", lambda process, _: port_of(process, HANG_GUARD_S))
    with ended_with_ray(ended.put, answer_s=0.1):
        processes[name].send_signal(signal.SIGSTOP)
        assert ended.get(timeout=HANG_GUARD_S) == 1


def test_nothing_ends_while_ray_answers_or_after_it_was_stopped_for_a_moment(ray_process, monkeypatch):
    ended, over = queue.Queue(), threading.Event()
    answers = [True, *([False] * 4), True, *([False] * 4), True]

    def answer(*_):
        if not answers:
            over.set()
        return answers.pop(0) if answers else True

    monkeypatch.setattr(ray_watch, "_answers", answer)
    for name in ("_ASK_EVERY_S", "_ASK_AGAIN_S"):
        monkeypatch.setattr(ray_watch, name, 0.001)
    ray_process("raylet", answers=True)
    with ended_with_ray(ended.put):
        assert over.wait(HANG_GUARD_S)
    assert ended.empty()

"""Tests of real Ray actors: the GPU and niceness of each, and when the end of one is reported."""

import logging
import os
import signal
import threading
from pathlib import Path

import pytest
import ray
from ray.exceptions import RayActorError

from ekya.core.events import Warned
from ekya.runtime.actors.actor_messages import reporting_user_errors
from ekya.runtime.driver.actor_processes import EVENTS, GPU_PART, SHARES, end_process, make_actor

pytestmark = pytest.mark.live

UUID = "GPU-1f0c0000-0000-0000-0000-000000000000"


class Worker:
    """Actor class that reports its environment."""

    def ready(self):
        """Returns the environment variable that is set before anything is imported."""
        return os.environ.get("CUDA_VISIBLE_DEVICES")

    def niceness(self):
        """Returns the niceness of its process."""
        return os.getpriority(os.PRIO_PROCESS, 0)

    def process(self):
        """Returns the process id."""
        return os.getpid()

    def join(self):
        """Does not return."""
        threading.Event().wait()

    def worry(self):
        logging.getLogger("ekya.somewhere").warning("memory is short")

    def poll(self, timeout_s):
        return []


@pytest.fixture(scope="module")
def two_gpus():
    ray.init(
        "local",
        num_cpus=1,
        num_gpus=2,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=10**8,
    )
    yield
    ray.shutdown()


def test_actors_have_the_gpu_and_niceness_of_their_environment(two_gpus):
    workers = [
        make_actor(
            reporting_user_errors(Worker, f"worker-{number}"),
            f"worker-{number}",
            {"CUDA_VISIBLE_DEVICES": f"{UUID}-{number}"},
            GPU_PART,
        )
        for number in range(4)
    ]
    assert ray.get([worker.ready.remote() for worker in workers]) == [f"{UUID}-{n}" for n in range(4)]
    assert ray.available_resources()["GPU"] == pytest.approx(2 - 4 * GPU_PART)
    # Not Ray's own 15, also in a cluster that others began: each kind of actor chooses its own.
    assert ray.get(workers[0].niceness.remote()) == os.getpriority(os.PRIO_PROCESS, 0)


def test_poll_of_a_real_actor_returns_its_warnings(two_gpus):
    worker = make_actor(reporting_user_errors(Worker, "worried"), "worried", {}, 0.0)
    ray.get([worker.worry.remote(), worker.worry.remote()])
    events = ray.get(worker.poll.options(concurrency_group=EVENTS).remote(0.0))
    assert events == [Warned(0, "worried", "memory is short")]
    ray.kill(worker)


def is_gone(pid):
    """Returns whether a process has ended; its parent may not have reaped it yet."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


def test_death_of_a_stopped_process_is_reported_when_it_is_gone(two_gpus):
    worker = make_actor(reporting_user_errors(Worker, "stopped"), "stopped", {}, 0.0)
    number = worker.process.remote()
    pid = ray.get(number)
    os.kill(pid, signal.SIGSTOP)
    asked = worker.ready.remote()
    end_process(worker, number)
    with pytest.raises(RayActorError):
        ray.get(asked, timeout=120)
    assert is_gone(pid)
    end_process(worker, number)


def test_share_orders_do_not_wait_behind_joining_streams(two_gpus):
    worker = make_actor(reporting_user_errors(Worker, "busy"), "busy", {}, 0.0)
    joining = [worker.join.remote() for _ in range(20)]
    order = worker.process.options(concurrency_group=SHARES)
    assert ray.get(order.remote(), timeout=120) > 0
    assert ray.wait(joining, num_returns=1, timeout=0)[0] == []
    ray.kill(worker)

"""Test of the processes in which recipes run their cases."""

import multiprocessing
import time

import psutil
from cases import end_with_parent
from waiting import wait_until

FORKED = multiprocessing.get_context("fork")


def recipe(pipe):
    """Starts a worker, says which it is, and goes on."""
    worker = FORKED.Process(target=end_with_parent)
    worker.start()
    pipe.send(worker.pid)
    time.sleep(600)


def is_gone(process):
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_worker_of_a_killed_recipe_ends():
    here, there = FORKED.Pipe()
    killed = FORKED.Process(target=recipe, args=(there,))
    killed.start()
    worker = psutil.Process(here.recv())
    killed.kill()
    killed.join()
    wait_until(lambda: is_gone(worker))

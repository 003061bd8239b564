"""Places of a run's actors on the nodes of Ray, and what is called there: it loads this module alone."""

import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

ENDED_WITHIN_S = 5.0
"""Timeout for processes that Ray ends; afterwards the kernel kills them."""

_LISTENS_S = 1.0
"""Time for a node to accept a connection."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where actors on a GPU or core of a run are.

    Attributes:
        strategy: Ray's scheduling strategy; None for the node of this process.
        node: Ray's id of their node where it is another than this process's; else empty.
        ahead_ns: how far the monotonic clock there is ahead of this process's.
    """

    strategy: Any = None
    node: str = ""
    ahead_ns: int = 0


PlaceAt = Callable[[int], Place]
"""Returns the place of a GPU or core, by its position among those of the run."""


def on_this_node(_gpu: int) -> Place:
    """Has an actor placed on the node of this process, as everything of one server is."""
    return Place()


def call_on_node(node: str, function: Callable[..., Any], *arguments: object) -> Any:
    """Calls a function in a process of a node, and returns the reference of its result."""
    remote: Any = ray.remote
    at = NodeAffinitySchedulingStrategy(node, soft=False)
    return remote(num_cpus=0, max_retries=0, scheduling_strategy=at)(function).remote(*arguments)


def kill_pid(pid: int) -> None:
    """Has the kernel kill a process of this machine.

    Raises:
        ProcessLookupError: there is none.
    """
    os.kill(pid, signal.SIGKILL)


def wait_gone(pids: Sequence[int]) -> None:
    """Waits until processes of this machine are gone; the kernel kills those that take too long."""
    ends_s = time.monotonic() + ENDED_WITHIN_S
    for pid in pids:
        with suppress(ProcessLookupError):
            while time.monotonic() < ends_s:
                os.kill(pid, 0)
                time.sleep(0.01)
            kill_pid(pid)


def is_node_lost(node: str) -> bool:
    """Returns whether a node of the cluster is gone, which Ray itself notices within half a minute.

    Args:
        node: Ray's id of it.
    """
    table: Any = ray.nodes  # Untyped in Ray.
    known = next((one for one in table() if one["NodeID"] == node), None)
    if known is None or not known["Alive"]:
        return True
    try:
        socket.create_connection((known["NodeManagerAddress"], known["NodeManagerPort"]), _LISTENS_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        pass  # It may be busy; Ray decides.
    return False

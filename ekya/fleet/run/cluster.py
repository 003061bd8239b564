"""A Ray cluster that somebody has begun: this process as one of its drivers."""

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

from ekya.errors import UserError

ANSWERS_WITHIN_S = 5.0
"""Ray itself would try for a minute, and tell a page about it."""

RAY_SETS_NO_GPU = {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}
"""Environment of an actor whose ``CUDA_VISIBLE_DEVICES`` Ray leaves alone."""


@contextmanager
def joined_cluster(address: str) -> Iterator[None]:
    """Connected to it as long as the block lasts.

    Args:
        address: ``HOST:PORT`` of its head; ``auto`` finds one on this machine.

    Raises:
        UserError: there is no cluster.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal():
        _require_answer(address, host, int(port))
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise _none_at(address, str(error).splitlines()[0]) from error
    try:
        yield
    finally:
        ray.shutdown()


def alive_nodes() -> list[dict[str, Any]]:
    """What Ray says of each node that is there; ``NodeName`` is what ``ray start --node-name`` called it."""
    listed: Any = ray.nodes  # Ray does not say what it gives.
    return [node for node in listed() if node["Alive"]]


def _require_answer(address: str, host: str, port: int) -> None:
    try:
        socket.create_connection((host, port), timeout=ANSWERS_WITHIN_S).close()
    except OSError as error:
        raise _none_at(address, error.strerror or str(error)) from error


def _none_at(address: str, why: str) -> UserError:
    return UserError(
        f"--address {address}: there is no Ray cluster ({why}); begin one with: ray start --head"
    )

"""Connection of this process, as a driver, to a running Ray cluster."""

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

from ekya.core.errors import UserError
from ekya.system.ray_environment import set_ray_environment

ANSWERS_WITHIN_S = 5.0
"""Shorter than Ray's own attempt, which lasts a minute and prints a long message."""


@contextmanager
def joined_cluster(address: str) -> Iterator[None]:
    """Connects this process to a Ray cluster for the duration of the block.

    Args:
        address: ``HOST:PORT`` of its head; ``auto`` finds one on this machine.

    Raises:
        UserError: there is no cluster at the address.
    """
    set_ray_environment()
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
    """Returns Ray's records of the live nodes; ``NodeName`` is the value of ``ray start --node-name``."""
    listed: Any = ray.nodes  # Untyped in Ray.
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

"""Joins a Ray cluster that runs already: which one, whether a run can be there, and the sentence if not."""

import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import ray
from ray._private import services
from ray.exceptions import GetTimeoutError

from ekya import __version__
from ekya.core.errors import UserError
from ekya.runtime.driver.local_ray import set_ray_environment
from ekya.runtime.driver.places import call_on_node
from ekya.system.files import user_errors
from ekya.system.http2 import speaks_http2

_LOG = logging.getLogger(__name__)

AUTO = "auto"

_ADDRESS = "RAY_ADDRESS"

_IN_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Set in the process that ``ray job submit`` starts on a cluster."""

_CONNECT_S = 4.0

_ATTEMPTS = {"RAY_gcs_server_port_wait_time_s": "3"}
"""Has Ray try less often where it is refused: by default for 20 s."""

_NODE_ANSWERS_S = 15.0
"""A node starts a process for the first question."""

_CLOCK_LOOKS = 5
"""Questions for the time of a node; that with the fastest answer counts."""


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A node of a Ray cluster.

    Attributes:
        id: Ray's.
        address: IP address.
        cores, gpus: whole ones that Ray counts there, used or not.
    """

    id: str
    address: str
    cores: int
    gpus: int


def address_to_join(address: str | None) -> str | None:
    """Returns the address of the cluster of a run; None for a Ray of its own on this machine.

    ``RAY_ADDRESS`` is followed inside a Ray job; elsewhere a warning says that it is not.

    Args:
        address: as the user gave it.
    """
    named = os.environ.get(_ADDRESS, "")
    if address is None and named:
        if _IN_JOB in os.environ:
            return AUTO
        _LOG.warning("RAY_ADDRESS=%s is ignored: --address auto would follow it", named)
    return address


@contextmanager
def joined_cluster(address: str, namespace: str) -> Iterator[tuple[tuple[ClusterNode, ...], str]]:
    """Connects this process to a cluster for the block; yields its nodes, and its dashboard's URL.

    The first node is that of this process, which has this version of Ekya.

    Args:
        address: HOST:PORT of its head, or ``auto``: that of ``RAY_ADDRESS``, else of this machine.
        namespace: Ray's namespace for this process's actors.

    Raises:
        UserError: there is no such cluster, it refuses, or has another Ray, Python or Ekya, or none.
    """
    set_ray_environment()
    _require_cluster(address)
    try:
        url = str(_connect(address, namespace).dashboard_url or "")
        nodes = _list_nodes()
        require_ekya(nodes[0])
        yield nodes, url
    finally:
        ray.shutdown()


def _require_cluster(address: str) -> None:
    """Refuses an address without a Ray, or whose cluster this machine is not in: Ray would try for minutes.

    Raises:
        UserError: says which.
    """
    named = os.environ.get(_ADDRESS, AUTO) if address == AUTO else address
    if "://" in named or named == "local" or (named != AUTO and not named.rpartition(":")[2].isdecimal()):
        raise UserError(
            f"--address {named}: write auto, or HOST:PORT of the cluster's head, such as 10.0.0.1:6379"
        )
    nodes: Any = services.find_gcs_addresses  # Untyped in Ray: the heads of the nodes on this machine.
    try:
        found = str(services.canonicalize_bootstrap_address(address))
        host, port = _resolved(found)
        speaks = speaks_http2(host, port, _CONNECT_S)
        is_node = (host, port) in map(_resolved, nodes())
    except OSError as error:
        raise UserError(
            f"--address {named}: nothing answers there ({str(error).partition('.')[0]}); start the cluster "
            "with ray start --head, or correct the address"
        ) from None
    if not speaks and not os.environ.get("RAY_USE_TLS"):
        raise UserError(f"--address {named}: what answers there is no Ray; name the port of ray start --head")
    if not is_node:
        raise UserError(
            f"--address {named}: this machine is no node of that cluster; run ray start --address={found} "
            "here first"
        )


def _resolved(address: str) -> tuple[str, int]:
    """Returns the IP address and the port of a HOST:PORT.

    Raises:
        OSError: there is no such host.
    """
    host, _, port = address.rpartition(":")
    ip, number = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0][4][:2]
    return str(ip), int(number)


def _connect(address: str, namespace: str) -> Any:
    """Connects to a cluster.

    Raises:
        UserError: says why not.
    """
    os.environ.update({name: value for name, value in _ATTEMPTS.items() if name not in os.environ})
    try:
        return ray.init(
            address=address,
            namespace=namespace,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=True,
        )
    except Exception as error:  # Ray has no narrower types for these
        raise UserError(
            f"--address {address}, a Ray cluster: {_in_words(f'{error} {error.__cause__}')}"
        ) from error


_TOKEN = "copy ~/.ray/auth_token of its head, and set RAY_AUTH_MODE=token"
_REFUSALS = {
    "Version mismatch": "it has another Ray or Python ({}); use the same ones on all of its machines",
    "authentication token was found": f"it asks for Ray's token, and there is none here; {_TOKEN}",
    "InvalidAuthToken": f"it refuses Ray's token, or was given none; {_TOKEN}",
}
"""What Ray's errors about a cluster mean, by words in them."""


def _in_words(said: str) -> str:
    for words, meaning in _REFUSALS.items():
        if words in said:
            versions = [line.strip() for line in said.splitlines() if line.startswith("    ")]
            return meaning.format(", ".join(versions))
    return f"Ray could not join it ({' '.join(said.split())[:200]}); see ray status"


def _list_nodes() -> tuple[ClusterNode, ...]:
    """Returns the living nodes of the cluster, that of this process first."""
    table: Any = ray.nodes  # Untyped in Ray.
    here = ray.get_runtime_context().get_node_id()
    nodes = []
    for node in sorted(table(), key=lambda node: node["NodeID"] != here):
        cores, gpus = (int(node["Resources"].get(unit, 0)) for unit in ("CPU", "GPU"))
        if node["Alive"]:
            nodes.append(ClusterNode(node["NodeID"], node["NodeManagerAddress"], cores, gpus))
    return tuple(nodes)


def require_ekya(node: ClusterNode) -> None:
    """Requires that a node has this version of Ekya.

    Raises:
        UserError: it does not answer, or has no Ekya, or another version of it.
    """

    # A function in a function travels as code: the node may lack the module that it is from.
    def version() -> str:
        try:
            return str(import_module("ekya").__version__)
        except ImportError:
            return ""

    there = _ask(node, version)
    if there != __version__:
        has = f"Ekya {there}" if there else "no Ekya"
        raise UserError(
            f"Ray: its node {node.address} has {has}, and {__version__} is here; run ray start in this Python"
        )


def require_shared(folder: Path, node: ClusterNode) -> None:
    """Requires that a node, which has Ekya, can write into a folder of this one; makes the folder.

    Raises:
        UserError: it cannot.
    """
    with user_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(prefix=".ekya-", dir=folder) as token:
            is_shared = _ask(node, _may_write, token.name)
    if not is_shared:
        raise UserError(
            f"{folder}: Ray's node {node.address} has no such folder, or may not write there; name one on "
            "storage that the nodes share by --runs, or set gpus to what is free on this node alone"
        )


def _may_write(path: str) -> bool:
    return os.access(path, os.R_OK | os.W_OK)


def measure_ahead_ns(node: ClusterNode) -> int:
    """Returns how far the monotonic clock of a node, which has Ekya, is ahead of this process's."""
    looks = list[tuple[int, int]]()
    for _ in range(_CLOCK_LOOKS):
        asked_ns = time.monotonic_ns()
        there_ns = _ask(node, _read_clock_ns)
        answered_ns = time.monotonic_ns()
        looks.append((answered_ns - asked_ns, there_ns - (asked_ns + answered_ns) // 2))
    return min(looks)[1]


def _read_clock_ns() -> int:
    return time.monotonic_ns()


def _ask(node: ClusterNode, function: Callable[..., Any], *arguments: object) -> Any:
    """Returns what a function returns on a node.

    Raises:
        UserError: it does not answer.
    """
    try:
        return ray.get(call_on_node(node.id, function, *arguments), timeout=_NODE_ANSWERS_S)
    except GetTimeoutError:
        raise UserError(
            f"Ray: its node {node.address} starts no process within {_NODE_ANSWERS_S:g} s; see ray status"
        ) from None

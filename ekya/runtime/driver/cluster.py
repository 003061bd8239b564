"""Joins a Ray cluster that runs already: which one, whether a run can be there, and the sentence if not."""

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import ray
from ray._private import services
from ray.exceptions import GetTimeoutError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ekya import __version__
from ekya.core.errors import UserError
from ekya.runtime.driver.local_ray import set_ray_environment
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


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A node of a Ray cluster that has this version of Ekya.

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
def joined_cluster(address: str, namespace: str) -> Iterator[tuple[ClusterNode, str]]:
    """Connects this process to a cluster for the block; yields its node here, and its dashboard's URL.

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
        yield _ask_this_node(), url
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


def _ask_this_node() -> ClusterNode:
    """Returns the node of the cluster that this process is on.

    Raises:
        UserError: it does not answer, or has no Ekya, or another version of it.
    """

    # A function in a function travels as code: the node may lack the module that it is from.
    def version() -> str:
        try:
            return str(import_module("ekya").__version__)
        except ImportError:
            return ""

    table: Any = ray.nodes  # Untyped in Ray.
    here = ray.get_runtime_context().get_node_id()
    node = next(node for node in table() if node["NodeID"] == here)
    address, resources = node["NodeManagerAddress"], node["Resources"]
    remote: Any = ray.remote
    ask = remote(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False))(version)
    try:
        there = ray.get(ask.remote(), timeout=_NODE_ANSWERS_S)
    except GetTimeoutError:
        raise UserError(
            f"Ray: its node {address} starts no process within {_NODE_ANSWERS_S:g} s; see ray status"
        ) from None
    if there != __version__:
        has = f"Ekya {there}" if there else "no Ekya"
        raise UserError(
            f"Ray: its node {address} has {has}, and {__version__} is here; run ray start in this Python"
        )
    return ClusterNode(here, address, int(resources.get("CPU", 0)), int(resources.get("GPU", 0)))

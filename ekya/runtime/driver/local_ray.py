"""A Ray on this machine and for this user alone: its environment, its address and token, its object store."""

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ekya.core.errors import UserError
from ekya.system.files import expand_home, user_errors

_LOG = logging.getLogger(__name__)

_NICENESS = {"RAY_worker_niceness": "0"}
"""Ray starts workers at niceness 15: any other program starves them, and they could hardly differ."""

_LOGS = {"RAY_ROTATION_MAX_BYTES": str(8 << 20), "RAY_ROTATION_BACKUP_COUNT": "1"}
"""Each log of Ray's keeps 16 MiB at most: by default it is 3 GB, which a service for months would fill."""

_CLUSTER_VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    **_LOGS,
    **_NICENESS,
}

ACTOR_VARIABLES = {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1", **_NICENESS}
"""Of an actor's process: Ray chooses neither its GPU, which its own environment names, nor its niceness."""

STORE_BYTES = 1024**3
"""Size of a run's store where shared memory is large enough."""

_LEAST_BYTES = 75 * 1024**2
"""Lower bound of Ray on the size of a store."""

_KEPT_FREE = 0.05
"""Part of the free shared memory that is left for other programs."""

_SHARED = Path("/dev/shm")


def set_ray_environment() -> None:
    """Sets what this process's environment leaves open; call it before Ray is started or joined."""
    for name, value in _CLUSTER_VARIABLES.items():
        os.environ.setdefault(name, value)


@contextmanager
def private_ray() -> Iterator[None]:
    """Has a Ray that is started in the block listen on loopback alone, and ask for this user's token.

    Ray's processes unpickle what they receive: who reaches their ports and has the token runs code. Ray asks
    for the token by itself, unless ``RAY_AUTH_MODE`` turns that off.

    Raises:
        UserError: the file of the token cannot be made or changed, or Ray's processes were slower to start
            than it allows.
    """
    from ray._private import ray_constants

    set_ray_environment()
    _keep_token_private()
    # Ray's switch for systems where it makes no cluster: the node's address is 127.0.0.1, and all processes
    # listen there alone. Given as the address of a node, Ray would replace 127.0.0.1 by that of a network.
    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    except Exception as error:  # Ray has no narrower type for it
        if "timed out during startup" not in str(error):
            raise
        raise UserError(
            "Ray: its processes did not start within the 30 s that it gives them; end other programs on this "
            "machine and try again"
        ) from error
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def _keep_token_private() -> None:
    """Makes the file of Ray's token readable by this user alone; Ray would let its umask decide."""
    if os.environ.keys() & {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}:
        return
    path = expand_home(Path("~/.ray/auth_token"))
    with user_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Ray writes the token into the file that is there.
        path.touch(mode=0o600)
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """Ray's object store on this machine.

    Attributes:
        size_bytes: size to request from Ray.
        slow: one sentence on why Ray keeps the store on disk and how to avoid it; empty for shared memory.
    """

    size_bytes: int
    slow: str = ""


def fit_object_store(wanted_bytes: int = STORE_BYTES, shared: Path = _SHARED) -> ObjectStore:
    """Returns a store of the wanted size, or as large as shared memory allows.

    Args:
        wanted_bytes: size if there is enough memory.
        shared: folder of the shared memory.
    """
    free = _free_bytes(shared)
    if free >= wanted_bytes:
        return ObjectStore(wanted_bytes)
    if free * (1 - _KEPT_FREE) >= _LEAST_BYTES:
        return ObjectStore(int(free * (1 - _KEPT_FREE)))
    return ObjectStore(
        wanted_bytes,
        f"{shared} has {free / 1e6:.0f} MB free, too little for Ray's object store: it is kept on disk, and "
        "slower; in a container use docker run --shm-size=2g",
    )


def object_store_bytes(wanted_bytes: int = STORE_BYTES) -> int:
    """Returns the size to request from Ray; logs a warning if the store will be slow."""
    store = fit_object_store(wanted_bytes)
    if store.slow:
        _LOG.warning("%s", store.slow)
    return store.size_bytes


def _free_bytes(folder: Path) -> int:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0

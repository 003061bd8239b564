"""Where Ray keeps the objects that its processes share: in shared memory, or on disk where that is small."""

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

_LOG = logging.getLogger(__name__)

STORE_BYTES = 1024**3
"""A run's store, where shared memory has room for it."""

_LEAST_BYTES = 75 * 1024**2
"""Ray makes no smaller store."""

_KEPT_FREE = 0.05
"""Of what shared memory has, for whoever else uses it."""

_SHARED = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """Ray's object store on this machine.

    Attributes:
        size_bytes: what to ask Ray for.
        slow: why Ray keeps it on disk and what to do, as one sentence; empty where it is in memory.
    """

    size_bytes: int
    slow: str = ""


def fit_object_store(wanted_bytes: int = STORE_BYTES, shared: Path = _SHARED) -> ObjectStore:
    """As large as wanted, or as shared memory has room for.

    Args:
        wanted_bytes: where there is room.
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
    """What to ask Ray for; warns where it will be slow."""
    store = fit_object_store(wanted_bytes)
    if store.slow:
        _LOG.warning("%s", store.slow)
    return store.size_bytes


def _free_bytes(folder: Path) -> int:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0

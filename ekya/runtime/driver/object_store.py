"""Size and place of Ray's object store: in shared memory, or on disk where that is too small."""

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

_LOG = logging.getLogger(__name__)

STORE_BYTES = 1024**3
"""Size of a run's store where shared memory is large enough."""

_LEAST_BYTES = 75 * 1024**2
"""Lower bound of Ray on the size of a store."""

_KEPT_FREE = 0.05
"""Part of the free shared memory that is left for other programs."""

_SHARED = Path("/dev/shm")


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

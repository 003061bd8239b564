"""What a process has loaded stays, and Python's collector need not look at it again."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


def keep_loaded() -> None:
    """Takes everything that is loaded by now off the collector's list, for as long as this process lives.

    When an object store fills, Ray has every process of the cluster collect, all at the same time. Each would
    go through the hundreds of thousands of objects of torch and Ray, and until two dozen processes have, a
    small machine's cameras skip all their frames.
    """
    gc.collect()
    gc.freeze()


@contextmanager
def loaded_kept() -> Iterator[None]:
    """As ``keep_loaded``, around a run in a process that ends by itself: then libraries must be freed."""
    keep_loaded()
    try:
        yield
    finally:
        gc.unfreeze()

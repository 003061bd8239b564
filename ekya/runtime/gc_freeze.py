"""Excludes loaded objects from Python's garbage collection."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


def freeze_loaded() -> None:
    """Freezes everything that is loaded so far, for the lifetime of this process.

    When an object store fills, Ray has every process of the cluster collect at the same time. Each would
    traverse the hundreds of thousands of objects of torch and Ray, and until two dozen processes have, a
    small machine's cameras skip all their frames.
    """
    gc.collect()
    gc.freeze()


@contextmanager
def loaded_frozen() -> Iterator[None]:
    """Does ``freeze_loaded`` around a run, and unfreezes after it so that libraries are freed at exit."""
    freeze_loaded()
    try:
        yield
    finally:
        gc.unfreeze()

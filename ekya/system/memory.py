"""Memory of this process: returned to the operating system, and excluded from garbage collection."""

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager


def give_back_freed() -> None:
    """Calls ``malloc_trim`` if the C library has it.

    glibc keeps freed blocks of a few megabytes (kernels, activations) for later allocations: without this a
    process that trained a dozen models stays at its peak size.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


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

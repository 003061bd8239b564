"""Returns freed memory to the operating system."""

import ctypes


def give_back_freed() -> None:
    """Calls ``malloc_trim`` if the C library has it.

    glibc keeps freed blocks of a few megabytes (kernels, activations) for later allocations: without this a
    process that trained a dozen models stays at its peak size.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)

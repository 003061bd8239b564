"""Memory that nothing uses any more, back to the machine."""

import ctypes


def give_back_freed() -> None:
    """Asks the C library for it, where there is a way to.

    glibc keeps freed pieces of a few megabytes, as kernels and activations are, for whoever wants as many
    again: a process that trained a dozen models would stay as large as it ever was.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)

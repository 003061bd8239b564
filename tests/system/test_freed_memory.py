"""Tests that memory freed by a process is returned to the operating system."""

import resource
import sys
from pathlib import Path

import pytest

from ekya.system.host import give_back_freed

PIECE, PIECES = 100_000, 1000
"""Pieces small enough that the C library keeps them when they are freed; 100 MB in total."""


def resident_bytes():
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts pages as Linux does")
def test_give_back_freed_returns_fragmented_memory():
    pieces = [bytes(bytearray(b"x") * PIECE) for _ in range(PIECES)]
    held = resident_bytes()
    used = pieces[::10]
    del pieces
    give_back_freed()
    assert resident_bytes() < held - 0.8 * PIECE * PIECES
    assert all(len(piece) == PIECE for piece in used)

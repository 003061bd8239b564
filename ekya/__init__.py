"""Ekya keeps a fleet of cameras' models accurate on the GPU that is there (NSDI'22)."""

__version__ = "0.1.0"

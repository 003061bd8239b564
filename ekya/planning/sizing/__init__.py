"""Sizes of a fleet that fit the machine, and the GPU memory of its jobs."""

"""Scale of the pixels that enter an edge model."""

INPUT_MEAN = 0.45
INPUT_SCALE = 0.25
"""Pixels in [0, 1] enter a model minus the mean and divided by the scale."""

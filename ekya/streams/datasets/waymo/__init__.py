"""Waymo Open Dataset (perception), versions 1 and 2, as streams of one camera each (paper §6.1)."""

from ekya.streams.datasets.waymo.dataset import WaymoSpec

__all__ = ["WaymoSpec"]

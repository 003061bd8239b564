"""Synthetic city: rendered streets with exact ground truth and scripted drift (paper §2.3)."""

from ekya.streams.synthetic.scene import KINDS, StreetScene
from ekya.streams.synthetic.source import CitySpec

__all__ = ["KINDS", "CitySpec", "StreetScene"]

"""Synthetic city: rendered streets with exact ground truth and scripted drift (paper §2.3)."""

from ekya.streams.city.scene import KINDS, Scene
from ekya.streams.city.source import CitySpec

__all__ = ["KINDS", "CitySpec", "Scene"]

"""A synthetic city: rendered streets whose truth is known and whose drift is scripted (paper §2.3)."""

from ekya.streams.city.scene import KINDS, Scene
from ekya.streams.city.source import CitySpec

__all__ = ["KINDS", "CitySpec", "Scene"]

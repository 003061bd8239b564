"""Every data set that ``ekya prepare`` knows, by its name."""

from collections.abc import Mapping

from ekya.streams.dataset import Dataset

DATASETS: Mapping[str, Dataset] = {}
"""A new data set adds itself here."""

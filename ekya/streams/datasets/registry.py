"""Registry of the data sets that ``ekya prepare`` supports, by name."""

from collections.abc import Mapping

from ekya.streams.datasets.cityscapes import CityscapesDataset
from ekya.streams.datasets.dataset import Dataset
from ekya.streams.datasets.image_folder import ImageFolderDataset
from ekya.streams.datasets.sample_list_dataset import SampleListDataset
from ekya.streams.datasets.waymo.dataset import WaymoDataset

_ALL: tuple[Dataset, ...] = (CityscapesDataset(), SampleListDataset(), ImageFolderDataset(), WaymoDataset())
"""Add new data sets here."""

DATASETS: Mapping[str, Dataset] = {dataset.name: dataset for dataset in _ALL}

"""Registry of the data sets that ``ekya prepare`` supports, by name."""

from collections.abc import Mapping

from ekya.streams.cityscapes_dataset import CityscapesDataset
from ekya.streams.dataset import Dataset
from ekya.streams.image_folder_dataset import ImageFolderDataset
from ekya.streams.sample_list_dataset import SampleListDataset
from ekya.streams.waymo.dataset import WaymoDataset

_ALL: tuple[Dataset, ...] = (CityscapesDataset(), SampleListDataset(), ImageFolderDataset(), WaymoDataset())
"""Add new data sets here."""

DATASETS: Mapping[str, Dataset] = {dataset.name: dataset for dataset in _ALL}

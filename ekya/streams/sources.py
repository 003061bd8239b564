"""All kinds of sources in a fleet file, and all data sets of ``ekya prepare``.

The rest of the system uses a source only through ``SourceSpec`` (``streams/ingest/process.py``).
"""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, SerializeAsAny

from ekya.core.plug_ins import PlugInGroup, or_plug_in
from ekya.streams.datasets.cityscapes import CITYSCAPES, CityscapesSpec
from ekya.streams.datasets.dataset import Dataset
from ekya.streams.datasets.image_folder import IMAGE_FOLDER, ImageFolderSpec
from ekya.streams.datasets.sample_list import SAMPLE_LIST, SampleListSpec
from ekya.streams.datasets.waymo import WaymoSpec
from ekya.streams.datasets.waymo.dataset import WAYMO
from ekya.streams.ingest.camera import CameraSpec
from ekya.streams.ingest.video import VideoSpec
from ekya.streams.synthetic import CitySpec

AnySource = Annotated[
    CameraSpec | CitySpec | VideoSpec | CityscapesSpec | WaymoSpec | SampleListSpec | ImageFolderSpec,
    Field(discriminator="kind"),
    SerializeAsAny(),
    or_plug_in(PlugInGroup.SOURCES),
]
"""Sources, distinguished by the key ``kind``. Add the specification of a new source here, and the source to
``tests/streams/test_every_source.py``."""

_DATASETS: tuple[Dataset, ...] = (CITYSCAPES, SAMPLE_LIST, IMAGE_FOLDER, WAYMO)
"""Add new data sets here, and to ``tests/streams/test_every_dataset.py``."""

DATASETS: Mapping[str, Dataset] = {dataset.name: dataset for dataset in _DATASETS}
"""Data sets by name."""

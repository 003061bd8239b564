"""All kinds of sources in a fleet file, distinguished by the key ``kind``.

The rest of the system uses a source only through ``SourceSpec`` (``streams/ingest/process.py``).
"""

from typing import Annotated

from pydantic import Field

from ekya.streams.datasets.cityscapes import CityscapesSpec
from ekya.streams.datasets.image_folder import ImageFolderSpec
from ekya.streams.datasets.sample_list import SampleListSpec
from ekya.streams.datasets.waymo import WaymoSpec
from ekya.streams.ingest.camera import CameraSpec
from ekya.streams.ingest.video import VideoSpec
from ekya.streams.synthetic import CitySpec

AnySource = Annotated[
    CameraSpec | CitySpec | VideoSpec | CityscapesSpec | WaymoSpec | SampleListSpec | ImageFolderSpec,
    Field(discriminator="kind"),
]
"""Add the specification of a new source here, and the source to ``tests/streams/test_every_source.py``."""

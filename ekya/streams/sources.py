"""All kinds of sources in a fleet file, distinguished by the key ``kind``.

The rest of the system uses a source only through ``SourceSpec`` (``streams/process.py``).
"""

from typing import Annotated

from pydantic import Field

from ekya.streams.camera import CameraSpec
from ekya.streams.city import CitySpec
from ekya.streams.cityscapes import CityscapesSpec
from ekya.streams.image_folder import ImageFolderSpec
from ekya.streams.sample_list import SampleListSpec
from ekya.streams.video import VideoSpec
from ekya.streams.waymo import WaymoSpec

AnySource = Annotated[
    CameraSpec | CitySpec | VideoSpec | CityscapesSpec | WaymoSpec | SampleListSpec | ImageFolderSpec,
    Field(discriminator="kind"),
]
"""Add the specification of a new source here, and the source to ``tests/streams/test_every_source.py``."""

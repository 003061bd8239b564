"""Every kind of source that a fleet file may name, told apart by its key ``kind``.

What the rest of the system asks of a source it asks through ``SourceSpec`` (``streams/process.py``).
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
"""A new source adds its specification here, and itself to ``tests/streams/test_every_source.py``."""

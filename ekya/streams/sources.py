"""Every kind of source that a fleet file may name, told apart by its key ``kind``.

What the rest of the system asks of a source it asks through ``SourceSpec`` (``streams/process.py``).
"""

from typing import Annotated

from pydantic import Field

from ekya.streams.camera import CameraSpec
from ekya.streams.city import CitySpec
from ekya.streams.video import VideoSpec
from ekya.streams.waymo import WaymoSpec

AnySource = Annotated[CameraSpec | CitySpec | VideoSpec | WaymoSpec, Field(discriminator="kind")]
"""A new source adds its specification here, and itself to ``tests/streams/test_every_source.py``."""

"""Moves the camera passwords of a fleet file into the environment, so that they are never written to disk."""

import os
import re
from collections.abc import Mapping

from ekya.core.units import StreamId
from ekya.streams.ingest.camera import CameraSpec
from ekya.streams.ingest.credentials import without_passwords
from ekya.streams.sources import AnySource


def passwords_set_aside(sources: Mapping[StreamId, AnySource]) -> dict[StreamId, AnySource]:
    """Returns the sources with passwords replaced by references to variables of this process's environment.

    Child processes that open a camera inherit the variables. To resume a run later, set them again.
    """
    written = dict(sources)
    prefixes: set[str] = set()
    for stream, source in sources.items():
        if isinstance(source, CameraSpec):
            prefix = "EKYA_" + re.sub(r"[^A-Z0-9]", "_", stream.upper())
            while prefix in prefixes:
                prefix += "_2"
            prefixes.add(prefix)
            url, values = without_passwords(source.url, prefix)
            os.environ.update(values)
            written[stream] = source.model_copy(update={"url": url})
    return written

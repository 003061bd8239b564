"""Passwords of a fleet file's cameras: they move into the environment before anything is written down."""

import os
import re
from collections.abc import Mapping

from ekya.core.ids import StreamId
from ekya.streams.camera import CameraSpec
from ekya.streams.credentials import without_passwords
from ekya.streams.sources import AnySource


def passwords_set_aside(sources: Mapping[StreamId, AnySource]) -> dict[StreamId, AnySource]:
    """The sources as they may be written down: passwords of cameras stand in this process's environment.

    Whoever opens a camera inherits it from here. To resume the run later they have to be set again.
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

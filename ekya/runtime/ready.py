"""Facts about a stream that are available before the run begins."""

from collections.abc import Mapping
from dataclasses import dataclass

from ekya.core.errors import UserError
from ekya.core.units import StreamId
from ekya.pipeline.settings import PreparationSettings


@dataclass(frozen=True, slots=True)
class Ready:
    """A stream that can begin.

    Attributes:
        settings: of the stream.
        died: why its recording's decoder died on opening; such a stream has ended before it began.
    """

    settings: PreparationSettings
    died: str | None = None


def require_frames(ready: Mapping[StreamId, Ready]) -> None:
    """Checks that at least one stream can be decoded.

    Raises:
        UserError: the decoders of all streams have died.
    """
    if all(one.died is not None for one in ready.values()):
        stream, first = next(iter(sorted(ready.items())))
        raise UserError(
            f"no stream can be decoded, {stream} since its decoder died ({first.died}); convert or replace "
            "the files"
        )

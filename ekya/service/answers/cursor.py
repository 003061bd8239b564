"""Cursor of a sink: the last frame of each stream that it has confirmed, on disk."""

import json
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from ekya.core.errors import UserError
from ekya.core.units import StreamId
from ekya.system.files import user_errors, write_text_atomic

SAVE_EVERY_S = 1.0
"""Of a backlog, what was sent within this time is delivered again after a crash."""

_BEFORE_FIRST = -1


@dataclass(frozen=True, slots=True)
class _Saved:
    """Content of the file.

    Attributes:
        frames: last frame of each stream that needs not be delivered any more.
    """

    frames: dict[StreamId, int]


_SAVED = TypeAdapter(_Saved)


class Cursor:
    """Cursor of one sink; used by one thread.

    Args:
        path: its file. Where there is none, the sink is new.
        newest: newest frame of each stream that has any. A new sink begins after these.

    Attributes:
        delivered: messages that were confirmed, of this process.
        lost_frames: frames that were removed before they were delivered, of this process.

    Raises:
        UserError: the file is damaged, or cannot be written.
    """

    def __init__(self, path: Path, newest: Mapping[StreamId, int]) -> None:
        self._path = path
        self._saved_s = time.monotonic()
        with user_errors(path):
            path.parent.mkdir(exist_ok=True)
            text = path.read_text(encoding="utf-8") if path.exists() else None
        try:
            saved = _Saved(dict(newest)) if text is None else _SAVED.validate_json(text)
        except ValidationError as error:
            raise UserError(f"{path}: the file is damaged; remove it to go on with newer frames") from error
        self._frames = dict(saved.frames)
        # Not kept: counters that go on a little lower after a kill would be counted again by Prometheus.
        self.delivered = self.lost_frames = 0
        self._changed = text is None
        self.save()

    def frame(self, stream: StreamId) -> int:
        """Returns the last frame of a stream that is done; -1 before the first."""
        return self._frames.get(stream, _BEFORE_FIRST)

    def knows(self, stream: StreamId) -> bool:
        """Returns whether any frame of a stream was seen."""
        return stream in self._frames

    def move(self, stream: StreamId, frame: int, delivered: int) -> None:
        """Records that a stream is done up to a frame, with `delivered` further messages."""
        self._frames[stream] = frame
        self.delivered += delivered
        self._changed = True

    def lose(self, frames: int) -> None:
        """Notes frames that are gone."""
        self.lost_frames += frames

    def keep(self, streams: Collection[StreamId]) -> None:
        """Forgets all other streams. One that comes back begins with its first frame."""
        if gone := self._frames.keys() - set(streams):
            self._frames = {stream: frame for stream, frame in self._frames.items() if stream not in gone}
            self._changed = True

    def save_at_times(self) -> None:
        """Saves, unless it was saved shortly before."""
        if time.monotonic() - self._saved_s >= SAVE_EVERY_S:
            self.save()

    def save(self) -> None:
        """Writes the file, if anything has changed.

        Raises:
            UserError: full disk, no permission and the like.
        """
        self._saved_s = time.monotonic()
        if self._changed:
            write_text_atomic(self._path, json.dumps(asdict(_Saved(self._frames))))
            self._changed = False

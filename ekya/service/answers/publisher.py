"""Delivers a service's predictions, as messages, to its sinks; keeps the last frames that they confirmed."""

import json
import logging
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from ekya.config.answer_sinks import AnySink
from ekya.core.errors import UserError
from ekya.core.records import PredictionColumns
from ekya.core.units import US_PER_S, StreamId
from ekya.results.storage.hour_tables import hours_of, newest_frame, next_rows, oldest_frame
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.wall_clock import WallClock
from ekya.service.answers.messages import CameraReport, Message, NotDeliveredError, make_messages
from ekya.service.answers.registry import make_sink
from ekya.streams.ingest.credentials import mask_passwords
from ekya.system.files import user_errors, write_text_atomic

_LOG = logging.getLogger(__name__)

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

    def last_frame(self, stream: StreamId) -> int:
        """Returns the last frame of a stream that is done; -1 before the first."""
        return self._frames.get(stream, _BEFORE_FIRST)

    def knows_stream(self, stream: StreamId) -> bool:
        """Returns whether any frame of a stream was seen."""
        return stream in self._frames

    def advance_to(self, stream: StreamId, frame: int, delivered: int) -> None:
        """Records that a stream is done up to a frame, with `delivered` further messages."""
        self._frames[stream] = frame
        self.delivered += delivered
        self._changed = True

    def count_lost(self, frames: int) -> None:
        """Notes frames that are gone."""
        self.lost_frames += frames

    def retain_only(self, streams: Collection[StreamId]) -> None:
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


LOOK_EVERY_S = 0.5
"""Predictions are written every second."""

REPORT_EVERY_S = 5.0
FIRST_DELAY_S, LONGEST_DELAY_S = 1.0, 60.0
"""Back-off after a failure: it doubles."""


@dataclass(frozen=True, slots=True)
class SinkState:
    """State of a sink.

    Attributes:
        name, kind: as in the fleet file.
        delivered: messages that it has confirmed since this process began.
        lost_frames: frames that were removed before they were delivered, as counted since then.
        waiting_frames: frames on disk that are not delivered yet.
        waiting_s: age of the oldest of these, as far as they were looked at; 0 without any.
        error: why it does not deliver; empty while it does.
    """

    name: str
    kind: str
    delivered: int
    lost_frames: int
    waiting_frames: int
    waiting_s: float
    error: str


class Publisher:
    """Delivers what is on disk to each sink, in a thread of its own, so that a slow one delays no other.

    The predictions are the outbox. A sink's cursor moves when the sink has confirmed, so every message
    arrives at least once, unless its hour is removed before. A sink that is new begins with the frames that
    are written from now on; a known one goes on where it was.

    Args:
        folder: of the service; ``record_start`` was called.
        sinks: of the fleet file.
        classes: names of the fleet's classes.
        status: returns the state of every camera; called by several threads.
        unix_s: the wall clock.
        detects: whether the edge models detect; those that only name given boxes are never unsure of one.

    Raises:
        UserError: a secret is not set, or a cursor is damaged or cannot be written.
    """

    def __init__(
        self,
        folder: RunFolder,
        sinks: Sequence[AnySink],
        classes: tuple[str, ...],
        status: Callable[[], Sequence[CameraReport]],
        unix_s: Callable[[], float] = time.time,
        *,
        detects: bool = True,
    ) -> None:
        self._stop = threading.Event()
        self._deliveries = [
            _Delivery(folder, spec, classes, status, unix_s, self._stop, detects) for spec in sinks
        ]
        self._threads = [
            threading.Thread(target=one.run, name=f"answers/{spec.name}", daemon=True)
            for one, spec in zip(self._deliveries, sinks, strict=True)
        ]

    def start(self) -> None:
        """Starts the threads."""
        for thread in self._threads:
            thread.start()

    def sink_states(self) -> tuple[SinkState, ...]:
        """Returns the state of every sink, in the order of the fleet file, without reading what waits."""
        return tuple(one.state() for one in self._deliveries)

    def close(self, within_s: float = 10.0) -> None:
        """Delivers what is left, and ends; a sink that needs longer goes on at the next start."""
        self._stop.set()
        give_up_s = time.monotonic() + within_s
        for thread in self._threads:
            thread.join(max(give_up_s - time.monotonic(), 0.0))


class _Delivery:
    """Delivers to one sink, in the thread that calls ``run``."""

    def __init__(
        self,
        folder: RunFolder,
        spec: AnySink,
        classes: tuple[str, ...],
        status: Callable[[], Sequence[CameraReport]],
        unix_s: Callable[[], float],
        stop: threading.Event,
        detects: bool,
    ) -> None:
        self._folder, self._spec, self._classes, self._detects = folder, spec, classes, detects
        self._status, self._unix_s, self._stop = status, unix_s, stop
        self._secrets = spec.model_dump_json()
        self._sink = make_sink(spec, folder)
        streams = {stream: newest_frame(folder.hours(stream)) for stream in self._streams()}
        newest = {stream: frame for stream, frame in streams.items() if frame is not None}
        self._cursor = Cursor(folder.answers_folder / f"{spec.name}.cursor.json", newest)
        # Run time since which rows of a stream wait, as far as they were looked at. `state` does not look for
        # it: that takes longer with each hour for which a sink is away.
        self._waiting_us: dict[StreamId, int] = {}
        self._reported_s = -REPORT_EVERY_S
        self._error = ""

    def run(self) -> None:
        """Delivers until the stop, and then what is left; failures are repeated."""
        delay_s = FIRST_DELAY_S
        while True:
            # Read before the round: what was written before the stop is then delivered by a whole round.
            stopping = self._stop.is_set()
            try:
                self._report()
                some = self._round()
                self._note_success()
                delay_s = FIRST_DELAY_S
                if not some and stopping:
                    break
                if not some:
                    self._stop.wait(LOOK_EVERY_S)
            except Exception as error:
                self._note_failure(error)
                if stopping:
                    break
                self._stop.wait(delay_s)
                delay_s = min(2 * delay_s, LONGEST_DELAY_S)
        self._end()

    def state(self) -> SinkState:
        """Returns the state; for other threads."""
        waiting, waiting_s = 0, 0.0
        clock = WallClock.from_folder(self._folder)
        for stream in self._streams():
            hours, done = self._folder.hours(stream), self._cursor.last_frame(stream)
            newest = newest_frame(hours)
            if newest is None or newest <= done:
                continue
            waiting += newest - done
            since_us = self._waiting_us.get(stream)
            if since_us is not None:
                waiting_s = max(waiting_s, self._unix_s() - clock.unix_us(since_us) / US_PER_S)
        spec, cursor = self._spec, self._cursor
        return SinkState(
            spec.name, spec.kind, cursor.delivered, cursor.lost_frames, waiting, waiting_s, self._error
        )

    def _report(self) -> None:
        if time.monotonic() - self._reported_s >= REPORT_EVERY_S:
            self._sink.report_cameras(self._status())
            self._reported_s = time.monotonic()

    def _round(self) -> bool:
        """Delivers the next rows of each stream, not all at once; returns whether there were any."""
        clock = WallClock.from_folder(self._folder)
        streams = self._streams()
        self._cursor.retain_only(streams)
        if self._error:
            self._look_at_others(streams)
        some = False
        for stream in streams:
            rows = next_rows(self._folder.hours(stream), self._cursor.last_frame(stream))
            if rows is None:
                self._waiting_us.pop(stream, None)
            else:
                self._waiting_us[stream] = int(rows.t_us[0])
                self._deliver(stream, rows, clock)
                self._waiting_us[stream] = int(rows.t_us[-1])  # there may be more
                some = True
        if not some:
            self._cursor.save()
        return some

    def _look_at_others(self, streams: Sequence[StreamId]) -> None:
        """Finds what waits of the streams to which a round does not come, since it ends at a failure."""
        for stream in streams:
            if stream not in self._waiting_us:
                rows = next_rows(self._folder.hours(stream), self._cursor.last_frame(stream))
                if rows is not None:
                    self._waiting_us[stream] = int(rows.t_us[0])

    def _deliver(self, stream: StreamId, rows: PredictionColumns, clock: WallClock) -> None:
        self._count_lost(stream, int(rows.frame[0]))
        least = self._spec.min_confidence if self._detects else None
        messages = make_messages(stream, rows, self._classes, clock, least)
        for batch in _batches(messages, self._sink.batch):
            self._sink.send_messages(batch)
            self._cursor.advance_to(stream, batch[-1]["frame"], len(batch))
            self._cursor.save_at_times()
        # Rows after the last message have none: nothing was analysed or followed in their frames.
        self._cursor.advance_to(stream, int(rows.frame[-1]), 0)

    def _count_lost(self, stream: StreamId, frame: int) -> None:
        """Counts the frames before this one that were removed with their hour.

        Frames before the first one that was ever seen of a stream are not among them: a rendered camera that
        is added late begins in the middle.
        """
        if not self._cursor.knows_stream(stream):
            self._cursor.advance_to(stream, frame - 1, 0)
        done = self._cursor.last_frame(stream)
        # A gap in the middle of what is on disk was not removed: its rows were never written, or are damaged.
        oldest = oldest_frame(self._folder.hours(stream)) if frame > done + 1 else None
        if oldest is not None and oldest > done + 1:
            lost = frame - done - 1
            _LOG.warning(
                "answers to %s: %d frames of %s were removed before they were delivered",
                self._spec.name,
                lost,
                stream,
            )
            self._cursor.count_lost(lost)
            self._cursor.advance_to(stream, frame - 1, 0)

    def _streams(self) -> list[StreamId]:
        """Returns the streams that have predictions on disk."""
        folder = self._folder.path / "predictions"
        return sorted(StreamId(path.name) for path in folder.iterdir() if path.is_dir() and hours_of(path))

    def _note_success(self) -> None:
        if self._error:
            _LOG.info("answers to %s are delivered again", self._spec.name)
        self._error = ""

    def _note_failure(self, error: Exception) -> None:
        """Notes and logs why answers wait, without secrets; the same reason is logged once."""
        expected = isinstance(error, NotDeliveredError | UserError)
        reason = mask_passwords(str(error) if expected else f"{type(error).__name__}: {error}", self._secrets)
        if reason != self._error:
            told = reason if expected else mask_passwords(traceback.format_exc(), self._secrets)
            _LOG.warning("answers to %s wait: %s", self._spec.name, told)
        self._error = reason

    def _end(self) -> None:
        try:
            # First: closing may take long or fail, and what is confirmed would be sent again.
            self._cursor.save()
            self._sink.close()
        except Exception as error:
            self._note_failure(error)


def _batches(all_of_them: Iterator[Message], most: int) -> Iterator[list[Message]]:
    while batch := list(islice(all_of_them, most)):
        yield batch

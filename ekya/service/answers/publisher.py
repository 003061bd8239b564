"""Delivers a service's predictions, as messages, to its sinks."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from ekya.config.answer_sinks import AnySink
from ekya.core.errors import UserError
from ekya.core.records import PredictionColumns
from ekya.core.units import StreamId
from ekya.results.storage.hour_tables import hours_of, newest_frame, next_rows, oldest_frame
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.wall_clock import WallClock
from ekya.service.answers.cursor import Cursor
from ekya.service.answers.messages import Message, messages
from ekya.service.answers.registry import make_sink
from ekya.service.answers.sink import CameraReport, NotDeliveredError
from ekya.streams.ingest.credentials import masked

_LOG = logging.getLogger(__name__)

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
        delivered: messages that it has confirmed since the service was first started.
        lost_frames: frames that were removed before they were delivered.
        error: why it does not deliver; empty while it does.
        failing_since_unix_s: time of its first failure since it last delivered; None while it delivers.
    """

    name: str
    kind: str
    delivered: int
    lost_frames: int
    error: str = ""
    failing_since_unix_s: float | None = None


class Publisher:
    """Delivers what is on disk to each sink, in a thread of its own, so that a slow one delays no other.

    The predictions are the outbox. A sink's cursor moves when the sink has confirmed, so every message arrives
    at least once, unless its hour is removed before. A sink that is new begins with the frames after
    ``start``; known ones go on where they were.

    Args:
        folder: of the service; ``record_start`` was called.
        sinks: of the fleet file.
        classes: names of the fleet's classes.
        status: returns the state of every camera; called by several threads.

    Raises:
        UserError: a secret is not set, or a cursor is damaged or cannot be written.
    """

    def __init__(
        self,
        folder: RunFolder,
        sinks: Sequence[AnySink],
        classes: tuple[str, ...],
        status: Callable[[], Sequence[CameraReport]],
    ) -> None:
        self._stop = threading.Event()
        self._deliveries = [_Delivery(folder, spec, classes, status, self._stop) for spec in sinks]
        self._threads = [
            threading.Thread(target=one.run, name=f"answers/{spec.name}", daemon=True)
            for one, spec in zip(self._deliveries, sinks, strict=True)
        ]

    def start(self) -> None:
        """Starts the threads."""
        for thread in self._threads:
            thread.start()

    def state(self) -> tuple[SinkState, ...]:
        """Returns the state of every sink, in the order of the fleet file."""
        return tuple(one.state for one in self._deliveries)

    def close(self, within_s: float = 10.0) -> None:
        """Delivers what is left, and ends; a sink that needs longer goes on at the next start."""
        self._stop.set()
        give_up_s = time.monotonic() + within_s
        for thread in self._threads:
            thread.join(max(give_up_s - time.monotonic(), 0.0))


class _Delivery:
    """Delivers to one sink.

    Attributes:
        state: replaced as a whole, so other threads may read it.
    """

    def __init__(
        self,
        folder: RunFolder,
        spec: AnySink,
        classes: tuple[str, ...],
        status: Callable[[], Sequence[CameraReport]],
        stop: threading.Event,
    ) -> None:
        self._folder, self._spec, self._classes, self._status, self._stop = (
            folder,
            spec,
            classes,
            status,
            stop,
        )
        self._secrets = spec.model_dump_json()
        self._sink = make_sink(spec, folder)
        streams = {stream: newest_frame(folder.hours(stream)) for stream in self._streams()}
        newest = {stream: frame for stream, frame in streams.items() if frame is not None}
        self._cursor = Cursor(folder.answers / f"{spec.name}.cursor.json", newest)
        self._reported_s = -REPORT_EVERY_S
        self.state = SinkState(spec.name, spec.kind, self._cursor.delivered, self._cursor.lost_frames)

    def run(self) -> None:
        """Delivers until the stop, and then what is left; failures are repeated."""
        delay_s = FIRST_DELAY_S
        while True:
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
                if stopping or self._stop.wait(delay_s):
                    break
                delay_s = min(2 * delay_s, LONGEST_DELAY_S)
        self._end()

    def _report(self) -> None:
        if time.monotonic() - self._reported_s >= REPORT_EVERY_S:
            self._sink.report(self._status())
            self._reported_s = time.monotonic()

    def _round(self) -> bool:
        """Delivers the next rows of each stream, not all at once; returns whether there were any."""
        clock = WallClock.read(self._folder)
        streams = self._streams()
        self._cursor.keep(streams)
        some = False
        for stream in streams:
            rows = next_rows(self._folder.hours(stream), self._cursor.frame(stream))
            if rows is not None and len(rows.frame):
                self._deliver(stream, rows, clock)
                some = True
        self._cursor.save_at_times()
        return some

    def _deliver(self, stream: StreamId, rows: PredictionColumns, clock: WallClock) -> None:
        self._count_lost(stream, int(rows.frame[0]))
        for batch in _batches(messages(stream, rows, self._classes, clock), self._sink.batch):
            self._sink.send(batch)
            self._cursor.move(stream, batch[-1]["frame"], len(batch))
            self._cursor.save_at_times()
        self._cursor.move(stream, int(rows.frame[-1]), 0)

    def _count_lost(self, stream: StreamId, frame: int) -> None:
        """Counts the frames before this one that were removed with their hour."""
        done = self._cursor.frame(stream)
        oldest = oldest_frame(self._folder.hours(stream)) if frame > done + 1 else None
        if oldest is not None and oldest > done + 1:
            lost = frame - done - 1
            _LOG.warning(
                "answers to %s: %d frames of %s were removed before they were delivered",
                self._spec.name,
                lost,
                stream,
            )
            self._cursor.lose(lost)
            self._cursor.move(stream, frame - 1, 0)

    def _streams(self) -> list[StreamId]:
        """Returns the streams that have predictions on disk."""
        folder = self._folder.path / "predictions"
        return sorted(StreamId(path.name) for path in folder.iterdir() if path.is_dir() and hours_of(path))

    def _note_success(self) -> None:
        if self.state.error:
            _LOG.info("answers to %s are delivered again", self._spec.name)
        self._note("", None)

    def _note_failure(self, error: Exception) -> None:
        expected = isinstance(error, NotDeliveredError | UserError)
        reason = masked(str(error) if expected else f"{type(error).__name__}: {error}", self._secrets)
        if reason != self.state.error:
            _LOG.warning("answers to %s wait: %s", self._spec.name, reason, exc_info=not expected)
        since_s = self.state.failing_since_unix_s
        self._note(reason, time.time() if since_s is None else since_s)

    def _note(self, error: str, since_unix_s: float | None) -> None:
        cursor = self._cursor
        self.state = SinkState(
            self._spec.name, self._spec.kind, cursor.delivered, cursor.lost_frames, error, since_unix_s
        )

    def _end(self) -> None:
        try:
            self._cursor.save()
            self._sink.close()
        except Exception as error:
            self._note_failure(error)


def _batches(all_of_them: Iterator[Message], most: int) -> Iterator[list[Message]]:
    while batch := list(islice(all_of_them, most)):
        yield batch

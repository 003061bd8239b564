"""Answers of a live run, read from its folder while it goes on."""

from collections.abc import Iterable

from ekya.config.fleet_file import FleetConfig
from ekya.core.objects import SURE
from ekya.core.records import PredictionColumns
from ekya.core.units import StreamId
from ekya.models.edge.architecture_table import Task
from ekya.pipeline.discover_classes import fleet_classes
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_tables import read_newer_parts, read_predictions
from ekya.results.storage.wall_clock import WallClock
from ekya.service.answers.messages import Message, make_messages


class AnswerReader:
    """Reads each answer of a run once, in the order of time.

    Args:
        folder, fleet: of the run.
        clock: wall-clock time of its start.
    """

    def __init__(self, folder: RunFolder, fleet: FleetConfig, clock: WallClock) -> None:
        self._folder, self._clock = folder, clock
        self._classes = fleet_classes(fleet)
        # A classifier names boxes that are there; of a detector's boxes only the sure ones are objects.
        self._least = SURE if fleet.edge.task is Task.DETECT else None
        # Of each stream: number of the newest part that was read, and of the newest frame in it.
        self._parts: dict[StreamId, int] = {}
        self._frames: dict[StreamId, int] = {}

    def read_newer(self, streams: Iterable[StreamId]) -> list[Message]:
        """Returns what was written since the last time."""
        found: list[Message] = []
        for stream in streams:
            path = self._folder.predictions(stream)
            for number, rows in read_newer_parts(path, self._parts.get(stream, -1)):
                self._parts[stream] = number
                found += self._messages_of(stream, rows)
        return sorted(found, key=_time_of)

    def read_all(self, streams: Iterable[StreamId]) -> list[Message]:
        """Returns all since the last time, of a run that has ended, whose parts are merged."""
        found: list[Message] = []
        for stream in streams:
            found += self._messages_of(stream, read_predictions(self._folder.predictions(stream)))
        return sorted(found, key=_time_of)

    def _messages_of(self, stream: StreamId, rows: PredictionColumns) -> list[Message]:
        rows = rows.rows_after(self._frames.get(stream, -1))
        if len(rows.frame):
            self._frames[stream] = int(rows.frame[-1])
        return list(make_messages(stream, rows, self._classes, self._clock, self._least))


def _time_of(message: Message) -> str:
    return message["time"]

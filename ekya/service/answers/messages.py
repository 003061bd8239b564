"""Messages about frames, made from the predictions on disk, and the interface of their sinks."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Literal, NotRequired, Protocol, TypedDict

import numpy as np

from ekya.core.objects import BACKGROUND, SURE
from ekya.core.records import PredictionColumns
from ekya.core.units import US_PER_S, StreamId
from ekya.results.storage.hour_tables import newest_rows
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.wall_clock import WallClock

_LOOKED_INTO = 5
"""Newest pieces of the predictions in which the newest message is sought."""

DetectedObject = TypedDict(
    "DetectedObject",
    {"class": str, "confidence": float, "box": list[float], "unsure": NotRequired[Literal[True]]},
)
"""An object: class, confidence in [0, 1], and box x0, y0, x1, y1 in pixels.

``unsure`` where the confidence is below that from which the model's box counts as an object.
"""


class Message(TypedDict):
    """What was seen in a frame, as JSON values.

    Attributes:
        id: ``<camera>/<frame>``; the same in every repetition.
        camera, frame: name of the stream, and number of the frame.
        time: when the frame arrived: ISO 8601, UTC, with milliseconds.
        model: version of the model that served.
        objects: that were found.
    """

    id: str
    camera: str
    frame: int
    time: str
    model: int
    objects: list[DetectedObject]


def make_messages(
    camera: StreamId,
    rows: PredictionColumns,
    classes: tuple[str, ...],
    clock: WallClock,
    min_confidence: float | None = SURE,
) -> Iterator[Message]:
    """Yields the messages of the rows in order.

    There is one for each frame that was analysed, or into which boxes were followed.

    Args:
        camera: name of the stream.
        rows: its predictions.
        classes: names of the fleet's classes.
        clock: of the service.
        min_confidence: of boxes that are told; None for all, which are objects, as where a model only names
            them.
    """
    for row in np.flatnonzero(rows.answered_by == rows.frame):
        yield _message(camera, rows, int(row), classes, clock, min_confidence)


def newest_message(
    folder: RunFolder, camera: StreamId, classes: tuple[str, ...], min_confidence: float | None = SURE
) -> Message | None:
    """Returns the newest message of a camera; None if it has none, or none for some time.

    Args:
        folder: of the service.
        camera: name of the stream.
        classes: names of the fleet's classes.
        min_confidence: as of ``make_messages``.

    Raises:
        UserError: the service was never started.
    """
    for rows in islice(newest_rows(folder.hours(camera)), _LOOKED_INTO):
        seen = np.flatnonzero(rows.answered_by == rows.frame)
        if len(seen):
            clock = WallClock.from_folder(folder)
            return _message(camera, rows, int(seen[-1]), classes, clock, min_confidence)
    return None


def time_of(unix_us: int) -> str:
    """Returns a time in microseconds since 1970 as ISO 8601 in UTC, with milliseconds."""
    # In whole numbers: digits are cut off below, and a float may lie just short of its millisecond.
    seconds, us = divmod(unix_us, US_PER_S)
    time = datetime.fromtimestamp(seconds, UTC).replace(microsecond=us, tzinfo=None)
    return f"{time.isoformat(timespec='milliseconds')}Z"


def _message(
    camera: StreamId,
    rows: PredictionColumns,
    row: int,
    classes: tuple[str, ...],
    clock: WallClock,
    min_confidence: float | None,
) -> Message:
    frame = int(rows.frame[row])
    objects: list[DetectedObject] = []
    for place in range(rows.offsets[row], rows.offsets[row + 1]):
        name, confidence = classes[rows.classes[place]], float(rows.confidence[place])
        # A classifier calls a box background that holds no object.
        if name == BACKGROUND or (min_confidence is not None and confidence < min_confidence):
            continue
        box = [round(float(value), 1) for value in rows.boxes[place]]
        objects.append({"class": name, "confidence": round(confidence, 4), "box": box})
        if min_confidence is not None and confidence < SURE:
            objects[-1]["unsure"] = True
    return Message(
        id=f"{camera}/{frame}",
        camera=camera,
        frame=frame,
        time=time_of(clock.unix_us(int(rows.t_us[row]))),
        model=int(rows.model_version[row]),
        objects=objects,
    )


class NotDeliveredError(Exception):
    """Messages were not confirmed, and are sent again later; the text says why."""


class CameraReport(Protocol):
    """State of a camera, as a sink shows it."""

    @property
    def id(self) -> str:
        """Name of the stream."""

    @property
    def state(self) -> str:
        """In one word, such as ``serving`` or ``lost``."""

    @property
    def accuracy(self) -> float | None:
        """Estimated accuracy of what answers, in [0, 1]; None if it is not known."""

    @property
    def healthy(self) -> bool:
        """Whether the camera gets what it needs."""


class Sink(Protocol):
    """Takes messages. Each sink is used by one thread only, and may block it.

    Attributes:
        batch: largest number of messages that it takes at once.
    """

    batch: int

    def send_messages(self, messages: Sequence[Message]) -> None:
        """Returns when the messages are confirmed.

        Raises:
            NotDeliveredError: some may not have arrived; all are sent again.
        """

    def report_cameras(self, cameras: Sequence[CameraReport]) -> None:
        """Shows the states of all cameras; called every few seconds.

        Raises:
            NotDeliveredError: as for ``send``.
        """

    def close(self) -> None:
        """Releases everything; the sink may be used again."""


class SinkSpec(Protocol):
    """Section of a fleet file of another package's sink: a pydantic model, whose name is an entry point.

    Attributes:
        kind: the same name.
        name: of the sink, which can be a file's; no two of a fleet have the same.
        min_confidence: of a detector's boxes, those with less confidence are not sent.
    """

    kind: str
    name: str
    min_confidence: float

    def open(self, folder: Path) -> Sink:
        """Returns the sink.

        Args:
            folder: for its files, that of what the service's sinks have confirmed.
        """

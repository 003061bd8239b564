"""Index of a stream of labelled frames that ``ekya prepare`` writes: one line of JSON a frame.

The first line names the data set, the stream and the data set's classes, the last gives the number of frames.
A source with an index reads it line by line, and need not walk the folders or read the labels again.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from ekya.core.errors import UserError
from ekya.core.units import us_to_seconds
from ekya.streams.datasets.dataset import StreamFindings
from ekya.streams.datasets.labelled import LabelledFrame, LabelledObject, Pictures
from ekya.system.files import atomic_path, user_errors

_VERSION = 1
_REMEDY = "make it again with ekya prepare"


@dataclass(frozen=True, slots=True)
class IndexHead:
    """The first line of an index.

    Attributes:
        dataset: name of the data set.
        stream: name of the stream.
        known: the data set's classes, which need not all occur in the stream.
        fps: frames a second if the data define the rate; 0 if the fleet file does.
    """

    dataset: str
    stream: str
    known: tuple[str, ...]
    fps: float = 0.0


def examine_frames(
    head: IndexHead,
    frames: Iterator[LabelledFrame],
    pictures: Pictures,
    counted: Callable[[LabelledObject], bool],
    index: Path,
    looked_at: Callable[[], None],
) -> StreamFindings:
    """Reads every picture and label of a stream and writes its index.

    Args:
        head: first line of the index.
        frames: frames of the stream, in order.
        pictures: reader of the frames' pictures.
        counted: returns whether an object will be shown to a fleet.
        index: file to write.
        looked_at: progress callback, called after each frame.

    Raises:
        UserError: the index cannot be written.
    """
    objects: Counter[str] = Counter()
    problems: list[str] = []
    last_us = good = 0
    with atomic_path(index) as temporary, temporary.open("w", encoding="utf-8") as file:
        _write(file, {"index": _VERSION, **_head_fields(head)})
        for shown in pictures.show(frames):
            _write(file, _frame_fields(shown.frame, shown.problem))
            last_us = shown.t_us
            if shown.problem:
                problems.append(shown.problem)
            else:
                good += 1
                objects.update(one.name for one in shown.frame.objects if counted(one))
            looked_at()
        lines = good + len(problems)
        _write(file, {"end": lines})
    duration_s = us_to_seconds(last_us) + 1.0 / pictures.fps if lines else 0.0
    return StreamFindings(good, round(duration_s, 6), dict(sorted(objects.items())), tuple(problems))


def read_head(index: Path, dataset: str) -> IndexHead:
    """Reads the first line of an index.

    Raises:
        UserError: the file cannot be read, or is no index of this data set.
    """
    with user_errors(index), index.open(encoding="utf-8", errors="replace") as file:
        fields = _parse(index, 1, file.readline())
    try:
        if fields["index"] != _VERSION or fields["dataset"] != dataset:
            raise ValueError
        return IndexHead(
            dataset, str(fields["stream"]), tuple(str(name) for name in fields["known"]), float(fields["fps"])
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{index}: this is no index of {dataset}, as this version writes it; {_REMEDY}"
        ) from error


def read_frames(index: Path) -> Iterator[LabelledFrame]:
    """Yields the frames of an index, one at a time.

    Raises:
        UserError: a line cannot be read; the message names file and line.
    """
    with user_errors(index), index.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            if number == 1:
                continue
            try:
                fields = _parse(index, number, line)
                if "end" in fields:
                    return
                frame = _frame(fields)
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                raise UserError(f"{index}:{number}: this line is damaged; {_REMEDY}") from error
            yield frame
    raise UserError(f"{index}: is cut off; {_REMEDY}")


def _write(file: TextIO, fields: dict[str, object]) -> None:
    file.write(json.dumps(fields, ensure_ascii=False, separators=(",", ":")) + "\n")


def _head_fields(head: IndexHead) -> dict[str, object]:
    return {"dataset": head.dataset, "stream": head.stream, "known": list(head.known), "fps": head.fps}


def _frame_fields(frame: LabelledFrame, problem: str) -> dict[str, object]:
    fields: dict[str, object] = {"place": frame.place}
    if problem:
        return {**fields, "problem": problem}
    if frame.size is not None:
        fields["size"] = list(frame.size)
    return {**fields, "objects": [list(one) for one in frame.objects]}


def _parse(index: Path, number: int, line: str) -> Any:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{index}:{number}: this line is damaged; {_REMEDY}") from error
    return fields


def _frame(fields: Any) -> LabelledFrame:
    place = fields["place"]
    if not isinstance(place, str | int) or isinstance(place, bool):
        raise ValueError
    if "problem" in fields:
        return LabelledFrame(place, problem=str(fields["problem"]))
    size = None
    if "size" in fields:
        width, height = (int(value) for value in fields["size"])
        if min(width, height) < 1:
            raise ValueError
        size = width, height
    objects = []
    for name, *corners in fields["objects"]:
        x0, y0, x1, y1 = (float(value) for value in corners)
        if not math.isfinite(x0 + y0 + x1 + y1):
            raise ValueError
        objects.append(LabelledObject(str(name), x0, y0, x1, y1))
    return LabelledFrame(place, tuple(objects), size)

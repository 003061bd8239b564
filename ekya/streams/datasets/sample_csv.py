"""Reads sample lists of the paper's public implementation: CSV files with one line for each object."""

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from ekya.core.errors import UserError
from ekya.streams.datasets.labelled import LabelledObject
from ekya.system.files import user_errors

_PATHS = ("imgpath", "image")
_NUMBERS = ("frame id", "frame_id", "frame")
_ROW = "idx"
_CLASSES = ("class",)
_CORNERS = (("x0", "xmin"), ("y0", "ymin"), ("x1", "xmax"), ("y1", "ymax"))
# Lists without a header line have the columns of the public implementation.
_UNNAMED: Mapping[int, Sequence[str]] = {
    7: ("idx", "imgpath", "class", "x0", "y0", "x1", "y1"),
    6: ("idx", "class", "x0", "y0", "x1", "y1"),
}


@dataclass(frozen=True, slots=True)
class Columns:
    """Column numbers of a list.

    Attributes:
        place: column of the frame.
        numbered: True if frames are numbers, False if they are paths.
        first: number of the first frame of a video: 0 for ``idx``; 1 for ``frame id``, as ffmpeg numbers the
            pictures that it writes.
        kind: column of the class.
        corners: columns of x0, y0, x1, y1.
        named: True if the first line is a header.
    """

    place: int
    numbered: bool
    first: int
    kind: int
    corners: tuple[int, int, int, int]
    named: bool


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of a list: an object of a frame.

    Attributes:
        place: path of the picture, or frame number as in the file.
        kind: class, as a number or a name.
        corners: x0, y0, x1, y1 in pixels.
    """

    place: str | int
    kind: str | int
    corners: tuple[float, float, float, float]

    def name_object(self, labels: Mapping[int, str]) -> LabelledObject | None:
        """Returns the object; None if its class number has no name in ``labels``."""
        name = labels.get(self.kind) if isinstance(self.kind, int) else self.kind
        return None if name is None else LabelledObject(name, *self.corners)


def read_columns(file: Path) -> Columns:
    """Determines the columns of a list from its first line.

    Raises:
        UserError: the file cannot be read, is empty, or lacks a column.
    """
    first = next((fields for _, fields in _lines(file)), None)
    if first is None:
        raise UserError(f"{file}: there is nothing in it; write a line for each object, or remove it")
    names = [name.strip().lower() for name in first]
    named = any(name in names for name in ("class", "x0", "xmin"))
    if not named:
        if len(first) not in _UNNAMED:
            raise UserError(
                f"{file}:1: {len(first)} columns without names; write a first line such as "
                f"{','.join(_UNNAMED[6])}"
            )
        names = list(_UNNAMED[len(first)])
    known = {*_PATHS, *_NUMBERS, _ROW, *_CLASSES, *chain.from_iterable(_CORNERS)}
    if twice := [name for name in names if name in known and names.count(name) > 1]:
        raise UserError(f"{file}:1: the column '{twice[0]}' stands there twice; remove one of them")
    path = _column(names, _PATHS)
    number = _column(names, _NUMBERS)
    place = next((column for column in (path, number, _column(names, (_ROW,))) if column is not None), None)
    kind = _column(names, _CLASSES)
    corners = [_column(names, either) for either in _CORNERS]
    if place is None or kind is None or None in corners:
        raise UserError(
            f"{file}:1: the first line has to name a frame (idx, 'frame id' or imgpath), class and x0, y0, "
            "x1, y1; add what is missing"
        )
    x0, y0, x1, y1 = (column or 0 for column in corners)
    return Columns(place, path is None, 0 if number is None else 1, kind, (x0, y0, x1, y1), named)


def read_samples(file: Path, columns: Columns) -> Iterator[Sample]:
    """Yields all lines, one at a time.

    Raises:
        UserError: a line is wrong; the message names file and line.
    """
    for line, fields in _lines(file):
        if not (columns.named and line == 1):
            yield _sample(f"{file}:{line}", fields, columns)


def _lines(file: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields number and fields of the lines that are not empty."""
    # -sig: spreadsheets write a byte order mark, which would be a part of the first column's name.
    with user_errors(file), file.open(encoding="utf-8-sig", errors="replace", newline="") as stream:
        reader = csv.reader(stream)
        while True:
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise UserError(f"{file}:{reader.line_num}: {error}; correct this line") from error
            if fields:
                yield reader.line_num, fields


def _column(names: list[str], wanted: Sequence[str]) -> int | None:
    return next((names.index(name) for name in wanted if name in names), None)


def _sample(where: str, fields: list[str], columns: Columns) -> Sample:
    needed = max(columns.place, columns.kind, *columns.corners) + 1
    if len(fields) < needed:
        raise UserError(f"{where}: {len(fields)} columns where {needed} are needed; correct this line")
    corners = tuple(_number(where, fields[column]) for column in columns.corners)
    x0, y0, x1, y1 = corners
    if not (x0 < x1 and y0 < y1):
        raise UserError(
            f"{where}: the box {', '.join(f'{value:g}' for value in corners)} has no area; correct this line"
        )
    place: str | int = fields[columns.place].strip()
    if columns.numbered:
        place = _whole(where, str(place))
    kind: str | int = fields[columns.kind].strip()
    if not place and not columns.numbered:
        raise UserError(f"{where}: no frame is named; correct this line")
    if not kind:
        raise UserError(f"{where}: no class is named; correct this line")
    if _looks_like_a_number(str(kind)):
        kind = _whole(where, str(kind))
    return Sample(place, kind, (x0, y0, x1, y1))


def _looks_like_a_number(text: str) -> bool:
    return text.lstrip("+-")[:1].isdigit()


def _number(where: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or abs(value) > 1e9:
        raise UserError(f"{where}: {text.strip()!r} is no number; correct this line")
    return value


def _whole(where: str, text: str) -> int:
    value = _number(where, text)
    if value < 0 or not value.is_integer():
        raise UserError(f"{where}: {text.strip()!r} is no whole number from 0; correct this line")
    return int(value)

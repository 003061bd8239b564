"""Label files: labels of frames as a table in Parquet, or in CSV for labels from other tools.

A row is a box: ``stream``, ``frame`` (index in the stream, from 0, over the frames that decode), ``x0``,
``y0``, ``x1``, ``y1`` (pixels of the frame as a run sees it), ``class`` (a name), ``confidence`` in [0, 1].
An analysed frame without objects has one row without box, class and confidence; a frame without any row was
not analysed. The head, which holds for all labels, is JSON in the metadata of a Parquet file, or after ``#``
in the first line of a CSV file. It is optional.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from ekya.core.errors import UserError
from ekya.core.units import StreamId
from ekya.models.golden.detections import Detections, FramePlace
from ekya.system.files import atomic_path, user_errors

FORMAT = 1
_HEAD = "ekya.labels"
_BOX = ("x0", "y0", "x1", "y1")
_COLUMNS: Mapping[str, pa.DataType] = {
    "stream": pa.string(),
    "frame": pa.int64(),
    **dict.fromkeys(_BOX, pa.float32()),
    "class": pa.string(),
    "confidence": pa.float32(),
}
_WRITE_IT = "write it with `ekya golden label`, or as docs/golden.md says"


class LabelHead(BaseModel):
    """Head of a label file, which holds for all its labels.

    Attributes:
        by: source of the labels: a golden model, ``truth`` or ``hand``.
        names: the classes that were distinguished, including those that never occur.
        finds: True if boxes were detected in the images; False if they were given, and all were classified.
        frames: number of frames of each stream that was labelled to its end.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = FORMAT
    by: str = "hand"
    names: tuple[str, ...] = ()
    finds: bool | None = None
    frames: Mapping[StreamId, int] = {}


@dataclass(frozen=True, slots=True, eq=False)
class StreamTable:
    """The labels of one stream.

    Attributes:
        frames: (F,) int64 rising, the analysed frames.
        begins: (F + 1,) int64, first row of each frame, then the number of rows.
        found: all rows, in the order of the frames; classes index the file's names.
    """

    frames: NDArray[np.int64]
    begins: NDArray[np.int64]
    found: Detections

    def labels_at_frame(self, frame: int) -> Detections | None:
        """Returns the labels of a frame; None if it was not analysed."""
        place = int(np.searchsorted(self.frames, frame))
        if place == len(self.frames) or self.frames[place] != frame:
            return None
        return self.found.select_rows(np.arange(self.begins[place], self.begins[place + 1]))


@dataclass(frozen=True, slots=True, eq=False)
class LabelFile:
    """Labels read from a file.

    Attributes:
        path: of the file, for errors.
        streams: labels by stream.
    """

    path: Path
    head: LabelHead
    streams: Mapping[StreamId, StreamTable]

    def labels_at_frame(self, place: FramePlace) -> Detections | None:
        """Returns the labels of a frame, repeated in a looped stream; None if it was not analysed."""
        table, length = self.streams.get(place.stream), self.head.frames.get(place.stream)
        if table is None:
            return None
        return table.labels_at_frame(place.frame % length if length else place.frame)


@dataclass(slots=True, eq=False)
class LabelTable:
    """Labels to be written, collected frame by frame.

    Attributes:
        head: of the file.
        frames: detections of each frame, by stream.
    """

    head: LabelHead
    frames: dict[StreamId, dict[int, Detections]] = field(default_factory=dict)

    def finish_stream(self, stream: StreamId, frames: int) -> None:
        """Marks a stream as labelled to its end."""
        known = {**self.head.frames, stream: frames}
        self.head = self.head.model_copy(update={"frames": known})

    def save_table(self, path: Path) -> None:
        """Writes the file atomically; a reader sees the old file or the new.

        Raises:
            UserError: full disk, no permission and the like.
        """
        table = pa.concat_tables(
            [_EMPTY, *(self._of(stream, frames) for stream, frames in sorted(self.frames.items()))]
        )
        _write(table, self.head, path)

    def _of(self, stream: StreamId, frames: Mapping[int, Detections]) -> pa.Table:
        order = sorted(frames)
        counts = np.array([len(frames[frame].boxes) for frame in order], np.int64)
        rows = np.repeat(np.array(order, np.int64), np.maximum(counts, 1))
        nothing = np.repeat(counts == 0, np.maximum(counts, 1))
        # A row of an empty frame is masked, but needs a place in the arrays.
        boxes = np.zeros((len(rows), 4), np.float32)
        confidence = np.zeros(len(rows), np.float32)
        classes = np.zeros(len(rows), np.int64)
        if (~nothing).any():
            boxes[~nothing] = np.concatenate([frames[frame].boxes for frame in order])
            confidence[~nothing] = np.concatenate([frames[frame].scores for frame in order])
            classes[~nothing] = np.concatenate([frames[frame].classes for frame in order])
        columns = [
            pa.array([stream] * len(rows), pa.string()),
            pa.array(rows),
            *(pa.array(boxes[:, side], mask=nothing) for side in range(4)),
            # Without names all rows are masked, but still index one.
            pa.array(np.array(self.head.names or ("",), object)[classes], pa.string(), mask=nothing),
            pa.array(confidence, mask=nothing),
        ]
        return pa.table(columns, schema=_EMPTY.schema)


_EMPTY = pa.table({name: pa.array([], kind) for name, kind in _COLUMNS.items()})


def read_labels(path: Path, streams: Collection[StreamId] | None = None) -> LabelFile:
    """Returns the labels of some streams, or of all.

    Raises:
        UserError: there is no such file, it holds no labels, or its contents are invalid.
    """
    table, head = _read(path, streams)
    names = head.names or tuple(sorted(pc.unique(table["class"].drop_null()).to_pylist()))
    index = {name: place for place, name in enumerate(names)}
    unknown = set(pc.unique(table["class"].drop_null()).to_pylist()) - index.keys()
    if unknown:
        raise _bad(path, f"the class '{min(unknown)}' is none of those that it lists")
    spelt = sorted(names, key=lambda name: (name.strip().casefold(), name))
    for one, other in pairwise(spelt):
        if one.strip().casefold() == other.strip().casefold():
            raise _bad(path, f"the classes '{one}' and '{other}' differ in case or spaces only")
    # ``place`` keeps the rows of a frame in the order of the file.
    table = table.append_column("place", pa.array(np.arange(len(table))))
    table = table.sort_by([("stream", "ascending"), ("frame", "ascending"), ("place", "ascending")])
    held = {
        StreamId(stream): _stream_table(path, table.filter(pc.field("stream") == stream), index)
        for stream in pc.unique(table["stream"]).to_pylist()
    }
    return LabelFile(path, head.model_copy(update={"names": names}), held)


def resumed(labels: LabelFile) -> LabelTable:
    """Returns a table with these labels, to add further ones."""
    table = LabelTable(labels.head)
    for stream, of in labels.streams.items():
        found = [
            of.found.select_rows(np.arange(a, b)) for a, b in zip(of.begins[:-1], of.begins[1:], strict=True)
        ]
        table.frames[stream] = dict(zip(of.frames.tolist(), found, strict=True))
    return table


def join_label_files(parts: Sequence[Path], to: Path) -> None:
    """Writes one label file of several in Parquet, of the same source and classes and of different streams.

    Raises:
        UserError: full disk, no permission and the like, or a part is damaged.
    """
    read = [_read(part, None) for part in parts]
    frames = {stream: count for _, head in read for stream, count in head.frames.items()}
    head = read[0][1].model_copy(update={"frames": frames})
    _write(pa.concat_tables(table for table, _ in read), head, to)


def _write(table: pa.Table, head: LabelHead, path: Path) -> None:
    with atomic_path(path) as temporary:
        if _is_csv(path):
            with temporary.open("wb") as stream:
                stream.write(f"# {head.model_dump_json()}\n".encode())
                pa.csv.write_csv(table, stream)
        else:
            pq.write_table(table.replace_schema_metadata({_HEAD: head.model_dump_json()}), temporary)


def _stream_table(path: Path, rows: pa.Table, index: Mapping[str, int]) -> StreamTable:
    frames = rows["frame"].to_numpy()
    named = rows["class"].is_valid().to_numpy()
    if len(frames) and frames[0] < 0:
        raise _bad(path, f"frame {frames[0]} is below 0")
    boxed = np.any([np.isfinite(rows[side].to_numpy()) for side in _BOX], axis=0)
    nameless = frames[~named & boxed]
    if len(nameless):
        raise _bad(path, f"frame {nameless[0]} has a box without a class")
    boxes = np.stack([rows[side].to_numpy()[named] for side in _BOX], axis=1).astype(np.float32)
    scores = rows["confidence"].to_numpy()[named].astype(np.float32)
    for wrong, what in (
        (~np.isfinite(boxes).all(axis=1), "a box without all of its corners"),
        (
            (boxes[:, 2:] < boxes[:, :2]).any(axis=1),
            "x1 below x0, or y1 below y0: corners, not width and height",
        ),
        (~((scores >= 0) & (scores <= 1)), "a confidence outside of 0 to 1, or none: 1 is by hand"),
    ):
        if wrong.any():
            raise _bad(path, f"frame {frames[named][wrong][0]} has {what}")
    classes = np.array([index[name] for name in rows["class"].drop_null().to_pylist()], np.int64)
    analysed = np.unique(frames)
    # Rows without a box are left out, so an empty frame begins where the next one does.
    begins = np.searchsorted(frames[named], np.append(analysed, np.iinfo(np.int64).max))
    return StreamTable(analysed, begins.astype(np.int64), Detections(boxes, classes, scores))


def _read(path: Path, streams: Collection[StreamId] | None) -> tuple[pa.Table, LabelHead]:
    """Returns the rows of some streams, or of all, and the head."""
    if not path.is_file():
        raise UserError(f"{path}: no such file of labels; correct the path, or make it: ekya golden label.")
    try:
        with user_errors(path):
            table, head = _read_csv(path) if _is_csv(path) else _read_parquet(path)
    except (pa.ArrowException, ValidationError, UnicodeDecodeError, json.JSONDecodeError, OSError) as error:
        raise _bad(path, str(error).splitlines()[0][:160]) from error
    if head.format != FORMAT:
        raise _bad(path, f"its format is {head.format}, and {FORMAT} is read")
    for name in _COLUMNS:
        if (count := table.column_names.count(name)) != 1:
            raise _bad(path, f"the column '{name}' is {'there twice' if count else 'missing'}")
    try:
        table = table.select(list(_COLUMNS)).cast(_EMPTY.schema)
    except pa.ArrowException as error:
        raise _bad(path, str(error).splitlines()[0][:160]) from error
    if table["stream"].null_count or table["frame"].null_count:
        raise _bad(path, "a row has no stream or no frame")
    if streams is None:
        return table, head
    return table.filter(pc.is_in(table["stream"], pa.array(list(streams), pa.string()))), head


def _read_parquet(path: Path) -> tuple[pa.Table, LabelHead]:
    table = pq.ParquetFile(path).read()
    head = (table.schema.metadata or {}).get(_HEAD.encode())
    return table, LabelHead() if head is None else LabelHead.model_validate_json(head)


def _read_csv(path: Path) -> tuple[pa.Table, LabelHead]:
    with path.open("rb") as stream:
        # Other tools may begin a file with a byte order mark.
        first = stream.readline().decode("utf-8-sig")
    noted = first.startswith("#")
    # Only an empty class is null, which marks an empty frame. By default NA and nan would be too, and the
    # frame of an object of such a class be empty.
    table = pa.csv.read_csv(
        path,
        pa.csv.ReadOptions(skip_rows=int(noted)),
        convert_options=pa.csv.ConvertOptions(
            column_types=dict(_COLUMNS), strings_can_be_null=True, null_values=[""]
        ),
    )
    return table, LabelHead.model_validate_json(first[1:]) if noted else LabelHead()


def _is_csv(path: Path) -> bool:
    return path.suffix.lower() == ".csv"


def _bad(path: Path, what: str) -> UserError:
    return UserError(f"{path}: is no file of labels ({what}); {_WRITE_IT}.")

"""Parquet files of a run: predictions and reference labels per stream, and the profiles."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ekya.core.errors import UserError
from ekya.core.records import (
    FramePrediction,
    FrameReference,
    PredictionColumns,
    ReferenceColumns,
)
from ekya.system.files import atomic_path, user_errors

RowT = TypeVar("RowT")


_PER_OBJECT = {"boxes": 4, "classes": 1, "confidence": 1, "tracks": 1}
"""Number of values per object; every other column has one value per frame."""


def _schema(frames: dict[str, pa.DataType], objects: dict[str, pa.DataType]) -> pa.Schema:
    """Returns the schema of a file with one row per frame; values of its objects are lists."""
    columns = frames | {name: pa.list_(kind) for name, kind in objects.items()}
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns.items()])


PREDICTIONS = _schema(
    {
        "frame": pa.int64(),
        "t_us": pa.int64(),
        "window": pa.int32(),
        "analysed": pa.bool_(),
        "answered_by": pa.int64(),
        "model_version": pa.int32(),
        "every": pa.int16(),
        "resolution": pa.int16(),
    },
    {"boxes": pa.float32(), "classes": pa.int16(), "confidence": pa.float32()},
)
REFERENCE = _schema(
    {"frame": pa.int64(), "t_us": pa.int64()},
    {"boxes": pa.float32(), "classes": pa.int16(), "tracks": pa.int64()},
)
"""Columns of the files of predictions and of reference labels: those of ``PredictionColumns`` and
``ReferenceColumns``, with four box values per object, and without ``offsets``, which the lists imply."""

_PROFILES = pa.schema(
    [
        pa.field("window", pa.int32(), nullable=False),
        pa.field("stream", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("epochs", pa.int32()),
        pa.field("batch_size", pa.int32()),
        pa.field("head_width", pa.int32()),
        pa.field("trainable_blocks", pa.int32()),
        pa.field("data_fraction", pa.float64()),
        pa.field("every", pa.int32()),
        pa.field("resolution", pa.int32()),
        pa.field("predicted", pa.float64(), nullable=False),
        pa.field("achieved", pa.float64()),
        pa.field("gpu_s", pa.float64(), nullable=False),
    ]
)


class PartWriter(Generic[RowT]):
    """Writes rows of a stream during the run, as part files beside the final file.

    A crash loses at most the rows since the last part. A part file holds all rows since the last ``flush``,
    so a resumed run just appends; ``merge_parts`` makes one file.

    Args:
        path: the merged file.
        table_of: makes the table of some rows.
        ends_part: whether a row begins another part than the rows before it.

    Raises:
        UserError: full disk, no permission and the like (``add`` and ``flush``).
    """

    def __init__(
        self,
        path: Path,
        table_of: Callable[[Sequence[RowT]], pa.Table],
        ends_part: Callable[[Sequence[RowT], RowT], bool],
    ) -> None:
        self._path, self._table_of, self._ends_part = path, table_of, ends_part
        self._rows: list[RowT] = []

    def add_row(self, row: RowT) -> None:
        """Adds the next frame's row."""
        if self._rows and self._ends_part(self._rows, row):
            self.flush()
        self._rows.append(row)

    def flush(self) -> None:
        """Writes the rows since the last flush to disk, if there are any."""
        if self._rows:
            _write_part(self._path, self._table_of(self._rows))
            self._rows = []


def prediction_writer(path: Path) -> PartWriter[FramePrediction]:
    """Returns a writer of ``predictions/<stream>.parquet``, with one part per window."""
    return PartWriter(
        path,
        predictions_table,
        lambda rows, row: rows[-1].window != row.window,
    )


def reference_writer(path: Path, rows_a_part: int = 2000) -> PartWriter[FrameReference]:
    """Returns a writer of ``reference/<stream>.parquet``."""
    return PartWriter(
        path,
        lambda rows: _table_of(ReferenceColumns.from_rows(rows), REFERENCE),
        lambda rows, row: len(rows) >= rows_a_part,
    )


def merge_parts(path: Path, schema: pa.Schema, rows_a_group: int | None = None) -> None:
    """Merges the part files into one file with one row per frame; the later row wins.

    Idempotent, also after a crash in the middle of a merge. Writes an empty file if there are no rows.

    Args:
        path: the merged file.
        schema: of the rows.
        rows_a_group: rows that are read at a time later; None for the library's default.
    """
    parts = _parts(path)
    if parts or not path.exists():
        write_table(path, _read_all(path, schema), rows_a_group)
    # Oldest first: if this stops half-way, the remaining parts are newer than the deleted ones and still win.
    with user_errors(path):
        for part in parts:
            part.unlink()
        folder = parts_folder(path)
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def read_predictions(path: Path) -> PredictionColumns:
    """Returns a stream's predictions, merged or not, sorted by frame; empty if there is no file.

    Raises:
        UserError: a file is damaged or has other columns.
    """
    return prediction_columns(_read_all(path, PREDICTIONS))


def read_newer_parts(path: Path, number: int) -> Iterator[tuple[int, PredictionColumns]]:
    """Yields the parts of a stream's predictions after that number, each with its own, during a run.

    Parts that are merged meanwhile are left out: they are in the merged file.

    Raises:
        UserError: a part is damaged or has other columns.
    """
    for part in _parts(path):
        if int(part.stem) > number:
            try:
                table = _read(part, PREDICTIONS)
            except UserError:
                if part.exists():
                    raise
                return
            yield int(part.stem), prediction_columns(table)


def read_reference(path: Path) -> ReferenceColumns:
    """Returns a stream's reference labels; see ``read_predictions``."""
    return ReferenceColumns(**_columns_of(_read_all(path, REFERENCE)))


def write_profiles(path: Path, rows: list[dict[str, Any]]) -> None:
    """Writes expected and achieved accuracies of a run's configurations, and replaces the file."""
    write_table(path, pa.Table.from_pylist(rows, schema=_PROFILES))


def predictions_table(rows: Sequence[FramePrediction]) -> pa.Table:
    """Returns the table of rows in rising order of frames."""
    return _table_of(PredictionColumns.from_rows(rows), PREDICTIONS)


def prediction_columns(table: pa.Table) -> PredictionColumns:
    """Returns the columns of a table of predictions."""
    return PredictionColumns(**_columns_of(table))


def write_table(path: Path, table: pa.Table, rows_a_group: int | None = None) -> None:
    """Writes a Parquet file atomically.

    Raises:
        UserError: full disk, no permission and the like.
    """
    with atomic_path(path) as temporary:
        pq.write_table(table, temporary, compression="zstd", row_group_size=rows_a_group)


def parts_folder(path: Path) -> Path:
    """Returns the folder of the parts of a file."""
    return path.with_suffix(".parts")


def _table_of(columns: PredictionColumns | ReferenceColumns, schema: pa.Schema) -> pa.Table:
    def column(name: str) -> pa.Array:
        values = getattr(columns, name)
        if name not in _PER_OBJECT:
            return pa.array(values, schema.field(name).type)
        offsets = (columns.offsets * _PER_OBJECT[name]).astype(np.int32)
        return pa.ListArray.from_arrays(offsets, values.reshape(-1), type=schema.field(name).type)

    return pa.table([column(name) for name in schema.names], schema=schema)


def _columns_of(table: pa.Table) -> dict[str, NDArray[Any]]:
    columns: dict[str, NDArray[Any]] = {}
    for name in table.schema.names:
        values = table.column(name).combine_chunks()
        if name not in _PER_OBJECT:
            columns[name] = values.to_numpy(zero_copy_only=False)
            continue
        flat = values.flatten().to_numpy(zero_copy_only=False)
        columns[name] = flat.reshape(-1, 4) if name == "boxes" else flat
        if name == "classes":
            counts = values.value_lengths().to_numpy(zero_copy_only=False)
            columns["offsets"] = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    return columns


def _parts(path: Path) -> list[Path]:
    return sorted(parts_folder(path).glob("*.parquet"))


def _write_part(path: Path, table: pa.Table) -> None:
    folder = parts_folder(path)
    with user_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    present = _parts(path)
    number = int(present[-1].stem) + 1 if present else 0
    write_table(folder / f"{number:06d}.parquet", table)


def _read_all(path: Path, schema: pa.Schema) -> pa.Table:
    files = [*([path] if path.exists() else []), *_parts(path)]
    table = pa.concat_tables([schema.empty_table(), *(_read(file, schema) for file in files)])
    frames = table.column("frame").to_numpy()
    # Stable, so that of a frame's rows that of the newest file comes last, and is taken.
    order = np.argsort(frames, kind="stable")
    in_order = frames[order]
    last_of_frame = np.append(in_order[1:] != in_order[:-1], True)[: len(order)]
    return table.take(pa.array(order[last_of_frame]))


def _read(path: Path, schema: pa.Schema) -> pa.Table:
    try:
        with user_errors(path), pq.ParquetFile(path) as file:
            table = file.read()
    except pa.ArrowException as error:
        raise UserError(f"{path}: this is not a whole Parquet file; remove it and run again") from error
    if table.schema.names != schema.names or table.schema.types != schema.types:
        expected = ", ".join(schema.names)
        raise UserError(f"{path}: the columns are not those of this version ({expected}); run again")
    return table.cast(schema)

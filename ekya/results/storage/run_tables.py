"""Parquet files of a run: predictions and reference labels per stream, and the profiles."""

from pathlib import Path
from typing import Any

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


def _schema(columns: dict[str, pa.DataType], optional: frozenset[str] = frozenset()) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable=name in optional) for name, kind in columns.items()])


_PREDICTIONS = _schema(
    {
        "frame": pa.int64(),
        "t_us": pa.int64(),
        "window": pa.int32(),
        "analysed": pa.bool_(),
        "answered_by": pa.int64(),
        "model_version": pa.int32(),
        "every": pa.int16(),
        "resolution": pa.int16(),
        "boxes": pa.list_(pa.float32()),
        "classes": pa.list_(pa.int16()),
        "confidence": pa.list_(pa.float32()),
    }
)
_REFERENCE = _schema(
    {
        "frame": pa.int64(),
        "t_us": pa.int64(),
        "boxes": pa.list_(pa.float32()),
        "classes": pa.list_(pa.int16()),
        "tracks": pa.list_(pa.int64()),
    }
)
_GAMMA = {
    "epochs": pa.int32(),
    "batch_size": pa.int32(),
    "head_width": pa.int32(),
    "trainable_blocks": pa.int32(),
    "data_fraction": pa.float64(),
}
_LAMBDA = {"every": pa.int32(), "resolution": pa.int32()}
_PROFILES = _schema(
    {
        "window": pa.int32(),
        "stream": pa.string(),
        "kind": pa.string(),
        **_GAMMA,
        **_LAMBDA,
        "predicted": pa.float64(),
        "achieved": pa.float64(),
        "gpu_s": pa.float64(),
    },
    optional=frozenset({*_GAMMA, *_LAMBDA, "achieved"}),
)
# Number of values per object; every other column has one value per frame.
_PER_OBJECT = {"boxes": 4, "classes": 1, "confidence": 1, "tracks": 1}


class PredictionAppender:
    """Writes a stream's predictions during the run, one part file per window.

    A crash loses at most the rows since the last window began. A part file holds all rows since the last
    ``flush``, so a resumed run just appends; ``merge_predictions`` makes one file.

    Args:
        path: the merged file, ``predictions/<stream>.parquet``.

    Raises:
        UserError: full disk, no permission and the like (``add`` and ``flush``).
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: list[FramePrediction] = []

    def add(self, row: FramePrediction) -> None:
        """Adds the next frame's row; the first row of a window writes the window before it to disk."""
        if self._rows and self._rows[-1].window != row.window:
            self.flush()
        self._rows.append(row)

    def flush(self) -> None:
        """Writes the rows since the last flush to disk, if there are any."""
        if self._rows:
            _write_part(self._path, _table_of(PredictionColumns.of(self._rows), _PREDICTIONS))
            self._rows = []


class ReferenceAppender:
    """Writes a stream's reference labels during the run, like ``PredictionAppender``.

    Args:
        path: the merged file, ``reference/<stream>.parquet``.
        rows_a_part: number of rows at which a part file is written.
    """

    def __init__(self, path: Path, rows_a_part: int = 2000) -> None:
        self._path = path
        self._rows_a_part = rows_a_part
        self._rows: list[FrameReference] = []

    def add(self, row: FrameReference) -> None:
        """Adds the next frame's row."""
        self._rows.append(row)
        if len(self._rows) >= self._rows_a_part:
            self.flush()

    def flush(self) -> None:
        """Writes the rows since the last flush to disk, if there are any."""
        if self._rows:
            _write_part(self._path, _table_of(ReferenceColumns.of(self._rows), _REFERENCE))
            self._rows = []


def merge_predictions(path: Path) -> None:
    """Merges the part files into one file with one row per frame; the later row wins.

    Idempotent, also after a crash in the middle of a merge. Writes an empty file if there are no rows.
    """
    _merge(path, _PREDICTIONS)


def merge_reference(path: Path) -> None:
    """Merges the part files of reference labels; see ``merge_predictions``."""
    _merge(path, _REFERENCE)


def read_predictions(path: Path) -> PredictionColumns:
    """Returns a stream's predictions, merged or not, sorted by frame; empty if there is no file.

    Raises:
        UserError: a file is damaged or has other columns.
    """
    return PredictionColumns(**_columns_of(_read_all(path, _PREDICTIONS)))


def read_reference(path: Path) -> ReferenceColumns:
    """Returns a stream's reference labels; see ``read_predictions``."""
    return ReferenceColumns(**_columns_of(_read_all(path, _REFERENCE)))


def write_profiles(path: Path, rows: list[dict[str, Any]]) -> None:
    """Writes expected and achieved accuracies of a run's configurations, and replaces the file."""
    _write(path, pa.Table.from_pylist(rows, schema=_PROFILES))


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
    return sorted(_parts_folder(path).glob("*.parquet"))


def _parts_folder(path: Path) -> Path:
    return path.with_suffix(".parts")


def _write_part(path: Path, table: pa.Table) -> None:
    folder = _parts_folder(path)
    with user_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    present = _parts(path)
    number = int(present[-1].stem) + 1 if present else 0
    _write(folder / f"{number:06d}.parquet", table)


def _merge(path: Path, schema: pa.Schema) -> None:
    parts = _parts(path)
    if parts or not path.exists():
        _write(path, _read_all(path, schema))
    # Oldest first: if this stops half-way, the remaining parts are newer than the deleted ones and still win.
    with user_errors(path):
        for part in parts:
            part.unlink()
        folder = _parts_folder(path)
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def _read_all(path: Path, schema: pa.Schema) -> pa.Table:
    files = [*([path] if path.exists() else []), *_parts(path)]
    table = pa.concat_tables([schema.empty_table(), *(_read(file, schema) for file in files)])
    frames = table.column("frame").to_numpy()
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


def _write(path: Path, table: pa.Table) -> None:
    with atomic_path(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")

"""`profiles.parquet`: a trace as one table; ``docs/trace.md`` describes its rows.

Recorded traces, generated ones and those of runs have the same format. A row belongs to a stream and a window
and has a kind, which defines its columns; columns that a kind does not use are null. Values of the whole
fleet are JSON in the file's metadata.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import TypeAdapter

from ekya.core.errors import UserError
from ekya.core.trace import StreamTrace, Trace
from ekya.results.storage.trace_rows import SCHEMA, Row, RowError, check_rows, rows_of, window_of
from ekya.system.files import atomic_path, user_errors

FORMAT = 1
"""Version of the format; a file with another one is refused."""

_HEAD = b"ekya.trace"
_LATER = ("fixed_epoch_gpu_s", "fixed_prepare_gpu_s", "profiler")
"""Columns that the first traces lack."""

_TRACE = TypeAdapter(Trace)


def write_trace(path: Path, trace: Trace) -> None:
    """Writes a trace and replaces the file; equal traces give equal bytes.

    Raises:
        UserError: full disk, no permission and the like.
    """
    head = _TRACE.dump_python(trace, mode="json", exclude={"streams": {"__all__": {"windows"}}})
    rows = [
        {"stream": stream.stream, "window": window.window, **values}
        for stream in trace.streams
        for window in stream.windows
        for values in rows_of(window)
    ]
    columns = {name: [row.get(name) for row in rows] for name in SCHEMA.names}
    table = pa.table(columns, schema=SCHEMA)
    metadata = {_HEAD: json.dumps({"format": FORMAT, **head}, separators=(",", ":"), ensure_ascii=False)}
    with atomic_path(path) as temporary:
        pq.write_table(table.replace_schema_metadata(metadata), temporary, compression="zstd")


def read_trace(path: Path) -> Trace:
    """Reads a trace that `write_trace` wrote.

    Raises:
        UserError: the file is missing or damaged, or a value is invalid; names its row and column.
    """
    table = _read_table(path)
    trace = _read_head(path, table)
    rows = [
        {name: value for name, value in row.items() if value is not None}
        for row in table.select(SCHEMA.names).to_pylist()
    ]
    try:
        check_rows(rows)
        return replace(trace, streams=_streams(path, trace.streams, rows))
    except RowError as error:
        number = next(at for at, row in enumerate(rows, start=1) if row is error.row)
        raise UserError(
            f"{path}: row {number}, column {error.column}: {error}; record the trace again"
        ) from error


def _read_head(path: Path, table: pa.Table) -> Trace:
    """Returns the trace without windows."""
    try:
        head = json.loads((table.schema.metadata or {}).get(_HEAD, b""))
        written = head.pop("format")
        streams = [{**stream, "windows": ()} for stream in head["streams"]]
        trace = _TRACE.validate_python({**head, "streams": streams})
        if not all(0.0 < stream.last_part <= 1.0 for stream in trace.streams):
            raise ValueError("last_part is not above 0 and at most 1")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = str(error).partition("\n")[0]
        raise UserError(f"{path}: its metadata is not that of a trace ({what}); record it again") from error
    if written != FORMAT:
        raise UserError(f"{path}: has format {written}, this version reads {FORMAT}; record the trace again")
    return trace


def _streams(path: Path, streams: Sequence[StreamTrace], rows: Sequence[Row]) -> tuple[StreamTrace, ...]:
    by_window: Mapping[str, dict[int, list[Row]]] = {stream.stream: defaultdict(list) for stream in streams}
    for row in rows:
        if row["stream"] not in by_window:
            raise RowError(row, "stream", f"{row['stream']} is not a stream of this trace")
        by_window[row["stream"]][row["window"]].append(row)
    whole = []
    for stream in sorted(streams, key=lambda stream: stream.stream):
        own = by_window[stream.stream]
        last = max(own, default=0)
        if sorted(own) != list(range(last + 1)):
            raise UserError(
                f"{path}: stream {stream.stream} does not have every window from 0 to {last}; "
                "record the trace again"
            )
        whole.append(replace(stream, windows=tuple(window_of(own[index]) for index in sorted(own))))
    return tuple(whole)


def _read_table(path: Path) -> pa.Table:
    try:
        with user_errors(path), pq.ParquetFile(path) as file:
            table = file.read()
    except pa.ArrowException as error:
        raise UserError(f"{path}: this is not a whole Parquet file; record the trace again") from error
    for name in _LATER:
        if name not in table.schema.names:
            table = table.append_column(SCHEMA.field(name), pa.nulls(len(table), SCHEMA.field(name).type))
    if {field.name: field.type for field in table.schema} != {field.name: field.type for field in SCHEMA}:
        raise UserError(
            f"{path}: the columns are not those of a trace ({', '.join(SCHEMA.names)}); record it again"
        )
    return table

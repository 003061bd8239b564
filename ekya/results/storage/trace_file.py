"""`profiles.parquet`: a trace as one table; ``docs/trace.md`` describes its rows.

Recorded traces, generated ones and those of runs have the same format. A row belongs to a stream and a window
and has a kind, which defines its columns; columns that a kind does not use are null. Values of the whole
fleet are JSON in the file's metadata.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, TypeAdapter, ValidationError

from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.errors import UserError
from ekya.core.profile import FamilyCost
from ekya.core.speed import SpeedCurve
from ekya.core.trace import LeftOut, StreamTrace, Trace
from ekya.core.units import StreamId
from ekya.results.storage.trace_rows import Row, rows_of, window_of
from ekya.system.files import atomic_path, user_errors

FORMAT = 1
"""Version of the format; a file with another one is refused."""

_HEAD = b"ekya.trace"
_SCHEMA = pa.schema(
    [
        pa.field("stream", pa.string(), nullable=False),
        pa.field("window", pa.int32(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        *(
            pa.field(name, kind)
            for name, kind in {
                "trainable_blocks": pa.int32(),
                "head_width": pa.int32(),
                "batch_size": pa.int32(),
                "data_fraction": pa.float64(),
                "epochs": pa.int32(),
                "trained_in": pa.int32(),
                "from_trainable_blocks": pa.int32(),
                "from_head_width": pa.int32(),
                "from_batch_size": pa.int32(),
                "in_window": pa.int32(),
                "validation_accuracy": pa.float64(),
                "accuracy": pa.float64(),
                "sd": pa.float64(),
                "gpu_s": pa.float64(),
                "profiling_gpu_s": pa.float64(),
                "epoch_gpu_s": pa.float64(),
                "prepare_gpu_s": pa.float64(),
                "fixed_epoch_gpu_s": pa.float64(),
                "fixed_prepare_gpu_s": pa.float64(),
                "training_crops": pa.int32(),
                "validation_crops": pa.int32(),
                "every": pa.int32(),
                "resolution": pa.int32(),
                "share_needed_milli": pa.int32(),
                "age_us": pa.int64(),
                "curve": pa.list_(pa.float64()),
                "accuracy_by_part": pa.list_(pa.float64()),
                "objects_by_part": pa.list_(pa.int64()),
                "class_histogram": pa.list_(pa.int64()),
            }.items()
        ),
    ]
)
_LATER = ("fixed_epoch_gpu_s", "fixed_prepare_gpu_s")
"""Columns that the first traces lack."""


@dataclass(frozen=True, slots=True)
class _Camera:
    stream: StreamId
    fps: float
    last_part: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    left_out: tuple[LeftOut, ...] = ()


@dataclass(frozen=True, slots=True)
class _Head:
    """Values of the whole fleet, in the file's metadata."""

    format: int
    window_us: int
    gpu: str
    classes: tuple[str, ...]
    retrain_configs: tuple[RetrainConfig, ...]
    inference_configs: tuple[InferenceConfig, ...]
    training_speed: SpeedCurve
    inference_speed: SpeedCurve
    streams: tuple[_Camera, ...]
    family_costs: tuple[FamilyCost, ...] = ()
    recorded: str = ""


_HEADS = TypeAdapter(_Head)


def write_trace(path: Path, trace: Trace) -> None:
    """Writes a trace and replaces the file; equal traces give equal bytes.

    Raises:
        UserError: full disk, no permission and the like.
    """
    head = _Head(
        format=FORMAT,
        window_us=trace.window_us,
        gpu=trace.gpu,
        classes=trace.classes,
        retrain_configs=trace.retrain_configs,
        inference_configs=trace.inference_configs,
        training_speed=trace.training_speed,
        inference_speed=trace.inference_speed,
        streams=tuple(
            _Camera(stream.stream, stream.fps, stream.last_part, stream.left_out) for stream in trace.streams
        ),
        family_costs=trace.family_costs,
        recorded=trace.recorded,
    )
    rows = [
        {"stream": stream.stream, "window": window.window, **values}
        for stream in trace.streams
        for window in stream.windows
        for values in rows_of(window)
    ]
    columns = {name: [row.get(name) for row in rows] for name in _SCHEMA.names}
    table = pa.table(columns, schema=_SCHEMA)
    with atomic_path(path) as temporary:
        pq.write_table(
            table.replace_schema_metadata({_HEAD: _HEADS.dump_json(head)}), temporary, compression="zstd"
        )


def read_trace(path: Path) -> Trace:
    """Reads a trace that `write_trace` wrote.

    Raises:
        UserError: the file is missing or damaged, or a value is invalid; names its row and column.
    """
    table = _read_table(path)
    try:
        head = _HEADS.validate_json((table.schema.metadata or {}).get(_HEAD, b""))
    except ValidationError as error:
        raise UserError(
            f"{path}: its metadata is not that of a trace ({error.errors()[0]['msg']}); record it again"
        ) from error
    if head.format != FORMAT:
        raise UserError(
            f"{path}: has format {head.format}, this version reads {FORMAT}; record the trace again"
        )
    columns = {name: table.column(name).to_pylist() for name in _SCHEMA.names}
    windows: dict[StreamId, dict[int, list[Row]]] = defaultdict(lambda: defaultdict(list))
    places = zip(columns["stream"], columns["window"], strict=True)
    for number, (stream, window) in enumerate(places, start=1):
        windows[StreamId(stream)][window].append(Row(path, columns, number))
    return Trace(
        window_us=head.window_us,
        gpu=head.gpu,
        classes=head.classes,
        retrain_configs=head.retrain_configs,
        inference_configs=head.inference_configs,
        streams=_streams(path, head, windows),
        training_speed=head.training_speed,
        inference_speed=head.inference_speed,
        family_costs=head.family_costs,
        recorded=head.recorded,
    )


def _streams(
    path: Path, head: _Head, windows: Mapping[StreamId, Mapping[int, list[Row]]]
) -> tuple[StreamTrace, ...]:
    strangers = sorted(set(windows) - {camera.stream for camera in head.streams})
    if strangers:
        row = next(row for rows in windows[strangers[0]].values() for row in rows)
        raise row.wrong("stream", f"{strangers[0]} is not a stream of this trace")
    streams = []
    for camera in sorted(head.streams, key=lambda camera: camera.stream):
        own = windows.get(camera.stream, {})
        last = max(own, default=0)
        if sorted(own) != list(range(last + 1)):
            raise UserError(
                f"{path}: stream {camera.stream} does not have every window from 0 to {last}; "
                "record the trace again"
            )
        of_stream = tuple(window_of(own[index]) for index in sorted(own))
        streams.append(StreamTrace(camera.stream, camera.fps, of_stream, camera.last_part, camera.left_out))
    return tuple(streams)


def _read_table(path: Path) -> pa.Table:
    try:
        with user_errors(path), pq.ParquetFile(path) as file:
            table = file.read()
    except pa.ArrowException as error:
        raise UserError(f"{path}: this is not a whole Parquet file; record the trace again") from error
    first = [name for name in _SCHEMA.names if name not in _LATER]
    if table.schema.names == first:
        later = {name: pa.nulls(len(table), _SCHEMA.field(name).type) for name in _LATER}
        columns = {name: later[name] if name in later else table.column(name) for name in _SCHEMA.names}
        table = pa.table(columns).replace_schema_metadata(table.schema.metadata)
    if table.schema.names != _SCHEMA.names or table.schema.types != _SCHEMA.types:
        raise UserError(
            f"{path}: the columns are not those of a trace ({', '.join(_SCHEMA.names)}); record it again"
        )
    return table

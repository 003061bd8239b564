"""Data points as Parquet: what is kept of a profile, and what models are fitted from again."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ekya.errors import UserError
from ekya.files import atomic_path, user_errors
from ekya.fleet.policy.deep_edge.profile import ProfilePoint
from ekya.fleet.policy.places import NodeState

_STATE = pa.struct([("cpu", pa.float64()), ("gpu", pa.float64()), ("mem", pa.float64())])

SCHEMA = pa.schema(
    [
        ("kind", pa.string()),
        ("before", _STATE),
        ("batch", pa.int32()),
        ("batches", pa.list_(pa.int32())),
        ("server", _STATE),
        ("share_milli", pa.int32()),
        ("compute_s", pa.float64()),
        ("update_s", pa.float64()),
        ("after", _STATE),
        ("app", pa.string()),
        ("exec_s", pa.float64()),
    ]
)
"""A column for each field of ``ProfilePoint``."""


def write_points(path: Path, points: Sequence[ProfilePoint]) -> None:
    """All of them, as one file that appears at once.

    Raises:
        UserError: full disk, no permission and the like.
    """
    rows = [{name: _plain(getattr(point, name)) for name in SCHEMA.names} for point in points]
    with atomic_path(path) as temporary:
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), temporary)


def add_points(path: Path, points: Sequence[ProfilePoint]) -> int:
    """More of them; how many there are then.

    Raises:
        UserError: the file is no file of points, or cannot be written.
    """
    everything = [*(read_points(path) if path.exists() else ()), *points]
    write_points(path, everything)
    return len(everything)


def read_points(path: Path) -> list[ProfilePoint]:
    """The points of a file.

    Raises:
        UserError: it is not there, or is no file of points.
    """
    with user_errors(path):
        try:
            with path.open("rb") as file:
                table = pq.read_table(file)
        except pa.ArrowInvalid as error:
            raise UserError(f"{path} is no Parquet file: {error}; profile again") from error
    if not table.schema.equals(SCHEMA):
        raise UserError(f"{path} holds no profile points, or those of another version; profile again")
    return [
        ProfilePoint(
            **{
                **row,
                "before": NodeState(**row["before"]),
                "server": NodeState(**row["server"]),
                "after": NodeState(**row["after"]),
                "batches": tuple(row["batches"]),
            }
        )
        for row in table.to_pylist()
    ]


def _plain(value: object) -> object:
    if isinstance(value, NodeState):
        return {"cpu": value.cpu, "gpu": value.gpu, "mem": value.mem}
    return list(value) if isinstance(value, tuple) else value

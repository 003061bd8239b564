"""Parquet file of data points: the stored part of a profile, to which models are fitted on each use."""

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import TypeAdapter, ValidationError

from ekya.core.errors import UserError
from ekya.fleet.fitting.boosted import LEAF, BoostedEstimates, Models, reckoned, split
from ekya.fleet.policy.deep_edge.estimates import ANY_EDGE, ProfilePoint, ProfileSetting
from ekya.fleet.policy.splitting import FittedHosts
from ekya.system.files import atomic_path, user_errors

_POINTS = TypeAdapter(list[ProfilePoint])
_SETTINGS = TypeAdapter(list[ProfileSetting])
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
"""One column per field of ``ProfilePoint``, in this order; files name the parameter server ``server``."""

_FIELDS = [field.name for field in fields(ProfilePoint)]


_TRIED = b"ekya.tried"
"""Key of the file's metadata that holds the settings of its points, ``ProfileSetting`` as JSON."""


def write_points(path: Path, points: Sequence[ProfilePoint], tried: Sequence[ProfileSetting] = ()) -> None:
    """Writes a file of points atomically.

    Args:
        tried: settings that a profile need not measure again.

    Raises:
        UserError: full disk, no permission and the like.
    """
    schema = SCHEMA.with_metadata({_TRIED: _SETTINGS.dump_json(list(tried))})
    dumped = _POINTS.dump_python(list(points), mode="json")
    rows = [dict(zip(SCHEMA.names, row.values(), strict=True)) for row in dumped]
    with atomic_path(path) as temporary:
        pq.write_table(pa.Table.from_pylist(rows, schema), temporary)


def add_points(path: Path, points: Sequence[ProfilePoint], tried: Sequence[ProfileSetting] = ()) -> int:
    """Adds points to a file, which is created if missing, and returns their new number.

    Raises:
        UserError: the file is no file of points, or cannot be written.
    """
    before = path.exists()
    everything = [*(read_points(path) if before else ()), *points]
    write_points(path, everything, [*(read_tried(path) if before else ()), *tried])
    return len(everything)


def read_tried(path: Path) -> list[ProfileSetting]:
    """Returns the settings under which points of a file were measured; empty where the file records none.

    Raises:
        UserError: the file is missing, or is no file of points.
    """
    words = (_table(path).schema.metadata or {}).get(_TRIED, b"[]")
    try:
        return _SETTINGS.validate_json(words)
    except ValidationError as error:
        raise UserError(f"{path}: its list of what was tried is damaged; profile again") from error


def read_points(path: Path) -> list[ProfilePoint]:
    """Returns the points of a file.

    Raises:
        UserError: the file is missing, or is no file of points.
    """
    try:
        return _POINTS.validate_python(_table(path).rename_columns(_FIELDS).to_pylist())
    except ValidationError as error:
        raise UserError(f"{path} holds incomplete profile points; profile again") from error


def _table(path: Path) -> pa.Table:
    if not path.exists():
        raise UserError(f"{path}: there is no such file; measure one with ekya fleet profile")
    with user_errors(path):
        try:
            with path.open("rb") as file:
                table = pq.read_table(file)
        except pa.ArrowInvalid as error:
            raise UserError(f"{path} is no Parquet file: {error}; profile again") from error
    if not table.schema.equals(SCHEMA):
        raise UserError(f"{path} holds no profile points, or those of another version; profile again")
    return table


LEAST_POINTS = 2 * LEAF + 2
"""Minimum per kind of machine: a sixth is held out, and the rest has to fill two leaves of a tree."""


def measured_models(points: Sequence[ProfilePoint], origin: str) -> Models:
    """Fits models to points.

    Points of real trainings (compute and update times, no state) are training points, but do not count
    towards ``LEAST_POINTS``.

    Args:
        origin: of the points, as named in messages.

    Raises:
        UserError: there are too few of a kind.
    """
    train, tests = list[ProfilePoint](), dict[str, tuple[ProfilePoint, ...]]()
    for kind in _profiled(points, origin):
        own = [point for point in points if point.kind == kind]
        learns, held_out = split([point for point in own if point.after.mem > 0])
        train += [*learns, *(point for point in own if point.after.mem <= 0)]
        tests[kind] = tuple(held_out)
    estimates = BoostedEstimates(train, update_unknown_s=0.0)
    batches = [point.batch for point in points if point.after.mem > 0]
    within = replace(ANY_EDGE, batch_min=min(batches), batch_max=max(batches))
    limits = reckoned(estimates, [point for own in tests.values() for point in own], None, within)
    return Models(estimates, limits, tuple(train), tests)


def _profiled(points: Sequence[ProfilePoint], origin: str) -> list[str]:
    """Returns the kinds of machines, each of which has enough points."""
    counts = {
        kind: sum(point.kind == kind and point.after.mem > 0 for point in points)
        for kind in sorted({point.kind for point in points})
    }
    if not counts:
        raise UserError(f"{origin} holds no points; profile a machine with ekya fleet profile")
    for kind, count in counts.items():
        if count < LEAST_POINTS:
            raise UserError(
                f"{origin}: {count} points of a {kind} are too few to learn from; profile it until there are "
                f"{LEAST_POINTS}, with more --batches, --cpu or --mem"
            )
    return [*counts]


def fitted_to(path: Path) -> FittedHosts:
    """Returns models of a file of ``ekya fleet profile``, as Deep-Edge's tiers use them.

    Raises:
        UserError: there are too few points of a kind, or two trainings were profiled on one.
    """
    models = measured_models(read_points(path), str(path))
    blocks: dict[str, int] = {}
    for work in sorted({tried.work for tried in read_tried(path)}, key=str):
        if work.kind in blocks:
            raise UserError(f"{path}: two trainings were profiled on a {work.kind}; keep one in a file")
        blocks[work.kind] = work.trainable_blocks
    return FittedHosts(models.estimates, models.limits, blocks)

"""Lists the files of a run folder that belong in a backup, so that no secret gets in by chance."""

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ekya.pipeline.zoo_folder import INDEX
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_state import ModelRow
from ekya.service.history_file import past_file
from ekya.service.run_folder_contents import PieceKind, first_segment, is_service, journal_segments, pieces_of

SNAPSHOT = "snapshot.json"

_ROLL_BACK = 2
"""The model of a stream that serves, and the one before it."""

_OF_RUN = (
    "summary.json",
    "report.html",
    "profiles.parquet",
    "figures/*",
    "predictions/*.parquet",
    "predictions/*.parts/*.parquet",
    "reference/*.parquet",
    "reference/*.parts/*.parquet",
    "without_retraining/*.parquet",
    "without_retraining/*.parts/*.parquet",
)
"""Files of a run that ends: what its report is made of, and its report."""


_BELONGS = re.compile(
    r"(fleet\.yaml|starts\.jsonl|snapshot\.json|history\.json|state\.sqlite|journal(-\d+)?\.jsonl|profiles\.parquet|"
    r"summary\.json|report\.html|(answers|models|zoo|predictions|reference|without_retraining|figures)/.+)"
)


@dataclass(frozen=True, slots=True)
class Source:
    """A file that goes into a backup.

    Attributes:
        path: of the file.
        size_bytes: that are taken of it; None for all. A journal grows meanwhile.
    """

    path: Path
    size_bytes: int | None = None


def belongs(name: str) -> bool:
    """Returns whether a file of this name can be in a backup; a token, for example, cannot."""
    return _BELONGS.fullmatch(name) is not None


def missing_files(names: Collection[str], service: bool) -> list[str]:
    """Returns the files that a backup of these needs as well.

    Args:
        names: of files in the backup.
        service: whether it is of a service.
    """
    needed = ["fleet.yaml"]
    if service:
        needed.append("state.sqlite")
    # The first segment has none until its first window opens.
    if any(name.startswith("journal-") for name in names):
        needed.append(SNAPSHOT)
    return [name for name in needed if name not in names]


def journal_sources(folder: RunFolder, snapshot: Path) -> list[Source]:
    """Returns the segments of the journal that a restart reads, as long as they are now, oldest first.

    Args:
        folder: of the run.
        snapshot: from which it starts again; all segments are returned where it cannot be read.
    """
    first = first_segment(snapshot) or 0
    return [Source(path, path.stat().st_size) for number, path in journal_segments(folder) if number >= first]


def serving_models(rows: Iterable[ModelRow]) -> list[ModelRow]:
    """Returns the models that serve or can be rolled back to, of rows in order of their versions."""
    by_stream: dict[str, list[ModelRow]] = {}
    for row in rows:
        by_stream.setdefault(row.stream, []).append(row)
    return [row for of_stream in by_stream.values() for row in of_stream[-_ROLL_BACK:]]


def other_sources(folder: RunFolder) -> Iterator[Source]:
    """Yields all that is taken but state, journal and models."""
    yield Source(folder.fleet)
    index = folder.zoo / INDEX
    if index.is_file():  # before the models: those that are forgotten meanwhile are left out at a start
        yield Source(index)
        yield from _sources(folder.zoo.glob("*.safetensors"))
    if not is_service(folder):
        for pattern in _OF_RUN:
            yield from _sources(folder.path.glob(pattern))
        return
    yield from _sources([folder.starts, past_file(folder), *(folder.path / "answers").glob("*.json")])
    for piece in pieces_of(folder):
        if piece.kind is PieceKind.ANSWERS and piece.needed:
            for path in piece.paths:
                # One that is merged meanwhile is named all the same, so that the caller sees it missing.
                yield from _sources(path.rglob("*.parquet")) if path.is_dir() else [Source(path)]


def _sources(paths: Iterable[Path]) -> Iterator[Source]:
    return (Source(path) for path in sorted(paths) if path.is_file() and not path.name.startswith("."))

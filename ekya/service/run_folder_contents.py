"""Contents of a run folder: its size, and the pieces that may be removed."""

import json
import os
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from ekya.core.units import StreamId
from ekya.results.storage.hour_tables import HOUR_FORMAT
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.segmented_journal import list_segments
from ekya.system.yaml_file import read_mapping

_ROTATED = re.compile(r".*\.\d+")


class PieceKind(StrEnum):
    """Kinds of pieces."""

    ANSWERS = "answers"
    """An hour of a stream's predictions."""

    JOURNAL = "journal"
    """A segment of the journal."""

    VALIDATION = "validations"
    """Confusion and pictures of mistakes of a stream's retraining."""

    EXEMPLARS = "exemplars"
    """Crops or frames that a stream's retrainings mix in; needed while it is in the service."""

    LOG = "log"
    """A rotated log file."""

    WEIGHTS = "weights"
    """Weights that no one needs; see ``model_files``."""

    TEMPORARY = "temporary"
    """What was not finished when its process was killed."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a folder that is removed as a whole.

    Attributes:
        paths: files and folders.
        unix_s: end of the time that it covers, or when it was written.
        size_bytes: on disk.
        needed: whether it must stay: the newest of its kind, which is being written or is read at a start.
        stream: of which it is; None for pieces of all.
    """

    kind: PieceKind
    paths: tuple[Path, ...]
    unix_s: float
    size_bytes: int
    needed: bool = False
    stream: StreamId | None = None


def is_service(folder: RunFolder) -> bool:
    """Returns whether a folder is a service's."""
    return folder.starts.is_file()


def service_cameras(folder: RunFolder) -> tuple[StreamId, ...] | None:
    """Returns the cameras of a service; None where nothing may be taken for gone.

    That is so of a run, whose report needs all, and where the fleet file was edited into something else.
    """
    streams = read_mapping(folder.fleet).get("streams")
    if not is_service(folder) or not isinstance(streams, list):
        return None
    ids = [StreamId(one["id"]) for one in streams if isinstance(one, dict) and isinstance(one.get("id"), str)]
    return tuple(ids) if len(ids) == len(streams) else None


def folder_bytes(path: Path) -> int:
    """Returns the size of all files in a folder; a file with several names counts once."""
    seen: dict[tuple[int, int], int] = {}
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(FileNotFoundError):  # removed meanwhile
                of = os.lstat(os.path.join(folder, name))  # noqa: PTH118 - a Path takes ten times as long
                seen[of.st_dev, of.st_ino] = of.st_size
    return sum(seen.values())


def pieces_of(folder: RunFolder, streams: Collection[StreamId] | None = None) -> tuple[Piece, ...]:
    """Returns the pieces of a folder but weights, oldest first.

    Of a run that is not a service these are temporary files alone: its report needs the others.

    Args:
        folder: of a run or a service.
        streams: that are in it; of others nothing is needed. None: all.
    """
    found = (
        *_answers(folder, streams),
        *_journal(folder),
        *_validations(folder),
        *_exemplars(folder, streams),
        *_logs(folder),
        *_temporary(folder),
    )
    return tuple(sorted(found, key=lambda piece: (piece.unix_s, piece.paths)))


def first_segment(snapshot: Path) -> int | None:
    """Returns the number of the journal's segment in which a snapshot goes on; None if it cannot be read."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return int(json.loads(snapshot.read_text(encoding="utf-8"))["segment"])
    return None


def picture_bytes(pieces: Iterable[Piece]) -> dict[StreamId, int]:
    """Returns the size of the stored pictures of each stream that has some: exemplars and validations."""
    sizes: dict[StreamId, int] = {}
    for piece in pieces:
        if piece.stream is not None and piece.kind in (PieceKind.EXEMPLARS, PieceKind.VALIDATION):
            sizes[piece.stream] = sizes.get(piece.stream, 0) + piece.size_bytes
    return dict(sorted(sizes.items()))


def journal_segments(folder: RunFolder) -> list[tuple[int, Path]]:
    """Returns number and path of the journal's segments, rising; the last one is being written."""
    return [(number, folder.journal_segment(number)) for number in list_segments(folder)]


def _answers(folder: RunFolder, streams: Collection[StreamId] | None) -> Iterator[Piece]:
    for of_stream in _folders(folder.path / "predictions"):
        there = streams is None or of_stream.name in streams
        hours: dict[datetime, list[Path]] = {}
        for path in of_stream.iterdir():
            if (hour := _hour(path.stem)) is not None:
                hours.setdefault(hour, []).append(path)
        for hour, paths in hours.items():
            ends_s = hour.timestamp() + 3600
            needed = there and hour == max(hours)  # frames are numbered on from it
            yield _piece(PieceKind.ANSWERS, sorted(paths), ends_s, needed, StreamId(of_stream.name))


def _journal(folder: RunFolder) -> Iterator[Piece]:
    parts = journal_segments(folder)
    last = parts[-1][0] if parts else 0
    # Later than the snapshot's are those of starts that came to no window.
    first = first_segment(folder.snapshot)
    for number, path in parts:
        needed = number >= (last if first is None else min(first, last))
        yield _piece(PieceKind.JOURNAL, [path], None, needed)


def _validations(folder: RunFolder) -> Iterator[Piece]:
    for of_stream in _folders(folder.path / "validations"):
        for path in of_stream.glob("*.json"):
            yield _piece(PieceKind.VALIDATION, [path], None, stream=StreamId(of_stream.name))


def _exemplars(folder: RunFolder, streams: Collection[StreamId] | None) -> Iterator[Piece]:
    for path in (folder.path / "exemplars").glob("*.safetensors"):
        stream = StreamId(path.stem)
        needed = streams is None or stream in streams
        yield _piece(PieceKind.EXEMPLARS, [path], None, needed, stream)


def _logs(folder: RunFolder) -> Iterator[Piece]:
    for path in (folder.path / "logs").glob("*"):
        if _ROTATED.fullmatch(path.name):
            yield _piece(PieceKind.LOG, [path], None)


def _temporary(folder: RunFolder) -> Iterator[Piece]:
    for path in folder.path.rglob(".*.tmp"):
        yield _piece(PieceKind.TEMPORARY, [path], None)


def _piece(
    kind: PieceKind,
    paths: list[Path],
    unix_s: float | None,
    needed: bool = False,
    stream: StreamId | None = None,
) -> Piece:
    sizes = [folder_bytes(path) if path.is_dir() else _size(path) for path in paths]
    written_s = max(map(_written_s, paths), default=0.0) if unix_s is None else unix_s
    return Piece(kind, tuple(paths), written_s, sum(sizes), needed, stream)


def _folders(path: Path) -> list[Path]:
    return [one for one in path.iterdir() if one.is_dir()] if path.is_dir() else []


def _hour(name: str) -> datetime | None:
    try:
        return datetime.strptime(name, HOUR_FORMAT).replace(tzinfo=UTC)
    except ValueError:
        return None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _written_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0

"""Backup of a run or a service while it runs, and its restoration on any machine.

The files that belong in a backup are listed, so that no secret gets in by chance.
"""

import logging
import os
import re
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ekya import __version__
from ekya.core.errors import UserError
from ekya.results.storage.run_folder import RunFolder, require_run_name
from ekya.results.storage.run_state import WAIT_S, ModelRow, StateStore
from ekya.service.archive import Archive, writing_archive
from ekya.service.history import past_file
from ekya.service.run_folder_contents import PieceKind, first_segment, is_service, journal_segments, pieces_of
from ekya.streams.ingest.credentials import find_variables
from ekya.system.files import atomic_path, link_or_copy, sync_to_disk, user_errors

_LOG = logging.getLogger(__name__)

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
    "student/*.parquet",
    "student/*.parts/*.parquet",
)
"""Files of a run that ends: what its report is made of, and its report."""


_BELONGS = re.compile(
    r"(fleet\.yaml|starts\.jsonl|snapshot\.json|history\.json|state\.sqlite|journal(-\d+)?\.jsonl|profiles\.parquet|"
    r"summary\.json|report\.html|(answers|models|predictions|reference|without_retraining|student|figures)/.+)"
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


def belongs_in_backup(name: str) -> bool:
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


FORMAT = 1
"""Version of the format; a newer one is refused."""

_ATTEMPTS = 5
"""A backup begins again when a file vanishes before it is held."""


@dataclass(frozen=True, slots=True)
class BackupFacts:
    """What a backup says of itself.

    Attributes:
        name: of the run or service.
        version: of Ekya that wrote it.
        created_unix_s: when.
        service: whether it is of a service.
    """

    name: str
    version: str
    created_unix_s: int
    service: bool


def write_backup(folder: RunFolder, path: Path) -> BackupFacts:
    """Writes a backup; the run may be going on.

    Args:
        folder: of the run or service.
        path: of the archive, ``.tar.zst`` or ``.tar.gz``; replaced when the new one is whole.

    Raises:
        UserError: full disk, no permission, another suffix and the like.
    """
    facts = BackupFacts(folder.name, __version__, int(time.time()), is_service(folder))
    header = {
        "format": FORMAT,
        "ekya": facts.version,
        "name": facts.name,
        "created_unix_s": facts.created_unix_s,
        "service": facts.service,
    }
    with (
        _scratch_of(folder) as scratch,
        atomic_path(path) as temporary,
        writing_archive(temporary, path, header) as archive,
    ):
        # Before any file of the run is in it: pictures and models are for the owner alone.
        temporary.chmod(0o600)
        held = _hold_all(folder, scratch)
        for name in missing_files(held, facts.service):
            raise UserError(f"{folder.path / name}: is missing, and a backup needs it; restore the file")
        for name, source in held.items():
            with suppress(FileNotFoundError):
                os.utime(scratch)  # or what is old would be removed after an hour
            archive.add_file(name, source.path, source.size_bytes)
    return facts


def read_facts(path: Path) -> BackupFacts:
    """Returns what a backup says of itself.

    Raises:
        UserError: it is damaged, no backup, or of a newer version.
    """
    header = Archive(path).header()
    if header.get("format") != FORMAT:
        raise UserError(
            f"{path}: this backup was written by Ekya {header.get('ekya')} in format {header.get('format')}, "
            f"and this version reads format {FORMAT}; install that version"
        )
    try:
        name, version = str(header["name"]), str(header["ekya"])
        return BackupFacts(name, version, int(header["created_unix_s"]), bool(header["service"]))
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: the backup is damaged ({error}); use another one") from error


def restore_backup(path: Path, runs: Path, name: str | None = None) -> RunFolder:
    """Makes a run folder of a backup, whole or not at all; only its owner can open it.

    Args:
        path: of the backup.
        runs: folder of all runs, made if it is missing.
        name: of the new folder; None for that of the backup.

    Raises:
        UserError: the backup is damaged or newer, the folder exists, the disk is full and the like.
    """
    facts = read_facts(path)
    name = name or facts.name
    require_run_name(name)
    target = runs / name
    if target.exists():
        raise UserError(f"{target}: is there already; choose another name with --name")
    with user_errors(runs):
        runs.mkdir(parents=True, exist_ok=True)
        # Beside its place, so that a rename is enough. mkdtemp lets only its owner in.
        scratch = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=runs))
    try:
        Archive(path).extract_files(scratch, belongs_in_backup)
        for missing in missing_files([file.name for file in scratch.iterdir()], facts.service):
            raise UserError(f"{path}: the backup is not whole, {missing} is missing; use another one")
        with user_errors(target):
            for folder in (scratch, *(path for path in scratch.rglob("*") if path.is_dir())):
                sync_to_disk(folder)
            scratch.rename(target)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    with user_errors(runs):
        sync_to_disk(runs)
        sync_to_disk(runs.parent)
    return RunFolder.open(target)


def missing_variables(folder: RunFolder) -> tuple[str, ...]:
    """Returns the environment variables that the fleet file names and that are not set: passwords."""
    named = find_variables(folder.fleet.read_text(encoding="utf-8"))
    return tuple(name for name in named if name not in os.environ)


@contextmanager
def _scratch_of(folder: RunFolder) -> Iterator[Path]:
    """Yields a folder for copies; one that a killed process left is a temporary piece of the folder."""
    with user_errors(folder.path):
        scratch = Path(tempfile.mkdtemp(prefix=".backup-", suffix=".tmp", dir=folder.path))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _hold_all(folder: RunFolder, scratch: Path) -> dict[str, Source]:
    """Holds all that goes into a backup; returns it by its names there."""
    for _ in range(_ATTEMPTS):
        # Anew each time: what an attempt has held may be older than what it has missed.
        held = _Held(folder, Path(tempfile.mkdtemp(dir=scratch)))
        with suppress(FileNotFoundError):
            # Where a restart begins comes first: models and labels that are newer than it are no harm.
            if folder.snapshot.is_file():
                held.add(Source(folder.snapshot))
            for source in journal_sources(folder, held.path / SNAPSHOT):
                held.add(source)
            for source in other_sources(folder):
                held.add(source)
            if folder.state.is_file():
                held.add_state()
            return held.sources
    raise UserError(f"{folder.path}: its files are removed while they are listed; try again")


class _Held:
    """Files of a run that goes on, held by links, so that it may replace and remove them.

    Args:
        folder: of the run.
        path: empty folder for the links, and for copies where there can be none.

    Attributes:
        path: as given.
        sources: what is held, by its name in the backup.
    """

    def __init__(self, folder: RunFolder, path: Path) -> None:
        self._folder, self.path = folder, path
        self.sources: dict[str, Source] = {}

    def add(self, source: Source) -> None:
        """Holds a file.

        Raises:
            FileNotFoundError: it was removed.
        """
        name = self._folder.relative_path(source.path)
        if name not in self.sources:
            path = self.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(path, source.path)
            self.sources[name] = Source(path, source.size_bytes)

    def add_state(self) -> None:
        """Copies ``state.sqlite`` as it is at one instant, and holds the weights that belong to it."""
        state = self._folder.state
        # The copy takes its time, so weights are held before; those that came to serve meanwhile, after.
        with StateStore(state) as store:
            self._add_weights(store)
        copy = self.path / state.name
        _copy_database(state, copy)
        with StateStore(copy) as store:
            kept, rows = self._add_weights(store), store.read_all_models()
            for row in serving_models(rows):
                if row not in kept:
                    _LOG.warning("%s: these weights are missing, so the backup is without them", row.path)
            # So that no row of the copy names weights that are not in the backup.
            store.remove_models(row for row in rows if row not in kept)
        self.sources[state.name] = Source(copy)

    def _add_weights(self, store: StateStore) -> list[ModelRow]:
        """Holds the weights of the models that serve or may serve again; returns those that are there."""
        there = []
        for row in serving_models(store.read_all_models()):
            with suppress(FileNotFoundError):
                self.add(Source(self._folder.path / row.path))
                there.append(row)
        return there


def _copy_database(path: Path, copy: Path) -> None:
    with user_errors(copy):
        try:
            before, after = sqlite3.connect(path, timeout=WAIT_S), sqlite3.connect(copy)
            try:
                after.execute("PRAGMA synchronous = OFF")  # it is removed again
                before.backup(after)
                after.execute("PRAGMA journal_mode = DELETE")  # no write-ahead log beside the copy
            finally:
                after.close()
                before.close()
        except sqlite3.DatabaseError as error:
            raise UserError(f"{path}: cannot be copied ({error}); is it damaged?") from error

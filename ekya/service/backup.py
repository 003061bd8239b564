"""Backup of a run or a service while it runs, and its restoration on any machine."""

import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ekya import __version__
from ekya.core.errors import UserError
from ekya.results.storage.run_folder import RunFolder, require_run_name
from ekya.results.storage.run_state import WAIT_S, StateStore
from ekya.service.archive import Archive, writing
from ekya.service.backup_contents import (
    SNAPSHOT,
    Source,
    belongs,
    journal_sources,
    other_sources,
    serving_models,
)
from ekya.service.stored import is_service
from ekya.streams.ingest.credentials import variables_in
from ekya.system.files import atomic_path, user_errors

FORMAT = 1
"""Version of the format; a newer one is refused."""


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
        writing(temporary, path, header) as archive,
    ):
        temporary.chmod(0o600)
        # Where a restart begins comes first: models and labels that are newer than it are no harm.
        snapshot = _snapshot(folder, scratch)
        journal = journal_sources(folder)
        state = scratch / folder.state.name
        models = _state(folder, state) if folder.state.is_file() else []
        for source in _once([*other_sources(folder), *models, *journal]):
            archive.add(folder.relative(source.path), source.path, source.size_bytes)
        for copy in (state, snapshot):
            archive.add(copy.name, copy)
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
        scratch = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=runs))
    try:
        Archive(path).extract(scratch, belongs)
        if not (scratch / "fleet.yaml").is_file():
            raise UserError(f"{path}: holds no fleet.yaml, so it is no backup of a run; use another one")
        with user_errors(target):
            scratch.rename(target)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    return RunFolder.open(target)


def missing_variables(folder: RunFolder) -> tuple[str, ...]:
    """Returns the environment variables that the fleet file names and that are not set: passwords."""
    named = variables_in(folder.fleet.read_text(encoding="utf-8"))
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


def _snapshot(folder: RunFolder, scratch: Path) -> Path:
    copy = scratch / SNAPSHOT
    if (folder.path / SNAPSHOT).is_file():
        shutil.copyfile(folder.path / SNAPSHOT, copy)
    return copy


def _state(folder: RunFolder, copy: Path) -> list[Source]:
    """Copies ``state.sqlite`` as it is at one instant, and returns the weights that belong to it."""
    with user_errors(copy):
        try:
            before, after = sqlite3.connect(folder.state, timeout=WAIT_S), sqlite3.connect(copy)
            try:
                after.execute("PRAGMA synchronous = OFF")
                before.backup(after)
                after.execute("PRAGMA journal_mode = DELETE")  # no write-ahead log beside the copy
            finally:
                after.close()
                before.close()
        except sqlite3.DatabaseError as error:
            raise UserError(f"{folder.state}: cannot be copied ({error}); is it damaged?") from error
    with StateStore(copy) as store:
        rows = store.all_models()
        kept = [row for row in serving_models(rows) if (folder.path / row.path).is_file()]
        store.remove_models(row for row in rows if row not in kept)
    return [Source(folder.path / row.path) for row in kept]


def _once(sources: Iterable[Source]) -> Iterable[Source]:
    return {source.path: source for source in sources}.values()

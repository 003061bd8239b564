"""Status of a run or a service, read from its folder without its processes."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ekya.core.units import StreamId
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_state import ModelRow, StateStore
from ekya.service.run_folder_contents import (
    PieceKind,
    folder_bytes,
    is_service,
    journal_segments,
    picture_bytes,
    pieces_of,
    service_cameras,
)
from ekya.service.supervised import Restarts, read_restarts
from ekya.system.files import holder_of

_FIRST_LOOK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class CameraOnDisk:
    """A camera, as ``state.sqlite`` knows it.

    Attributes:
        id: of the camera.
        version: of the model that served last.
        accuracy: of it, in [0, 1]; None if it was not measured.
        served_from_us: run time since which it serves.
        models: number of models whose rows are kept.
        set_aside: why it was given up; None if it was not. Written at the end of a run.
        removed: from its service.
    """

    id: StreamId
    version: int
    accuracy: float | None
    served_from_us: int
    models: int
    set_aside: str | None
    removed: bool


@dataclass(frozen=True, slots=True)
class FolderStatus:
    """A run or a service, as its folder says.

    Attributes:
        name, path: of the folder.
        service: whether it is a service's.
        pid: of the process that runs it; None if none does on this machine.
        ended: whether it has a report, so that it does not go on.
        restarts: of a service.
        window: number of the last window that opened; None before the first.
        window_opened_us, window_ends_us: run time; None before the first.
        cameras: by id.
        folder_bytes, free_bytes: size of the folder, and what is free on its disk.
        pieces_bytes: by kind, of what grows with time.
        pictures_bytes: by camera, of its stored pictures; also of cameras that were removed.
    """

    name: str
    path: str
    service: bool
    pid: int | None
    ended: bool
    restarts: Restarts
    window: int | None
    window_opened_us: int | None
    window_ends_us: int | None
    cameras: tuple[CameraOnDisk, ...]
    folder_bytes: int
    free_bytes: int
    pieces_bytes: dict[str, int]
    pictures_bytes: dict[StreamId, int]


def folder_status(folder: RunFolder) -> FolderStatus:
    """Returns the status of a folder; the run may be going on.

    Raises:
        UserError: its database is damaged.
    """
    window = _last_window(folder)
    pieces = pieces_of(folder)
    return FolderStatus(
        name=folder.name,
        path=str(folder.path.resolve()),
        service=is_service(folder),
        pid=holder_of(folder.path),
        ended=folder.report.is_file(),
        restarts=read_restarts(folder.path),
        window=window.get("index"),
        window_opened_us=window.get("t_us"),
        window_ends_us=window.get("end_us"),
        cameras=_cameras(folder),
        folder_bytes=folder_bytes(folder.path),
        free_bytes=shutil.disk_usage(folder.path).free,
        pieces_bytes={
            str(kind): sum(piece.size_bytes for piece in pieces if piece.kind is kind)
            for kind in PieceKind
            if any(piece.kind is kind for piece in pieces)
        },
        pictures_bytes=picture_bytes(pieces),
    )


def _cameras(folder: RunFolder) -> tuple[CameraOnDisk, ...]:
    if not folder.state.is_file():
        return ()
    there = service_cameras(folder)
    with StateStore(folder.state) as store:
        set_aside = {row.stream: row.set_aside for row in store.read_streams()}
        by_stream: dict[StreamId, list[ModelRow]] = {}
        for row in store.read_all_models():
            by_stream.setdefault(row.stream, []).append(row)
    return tuple(
        CameraOnDisk(
            stream,
            rows[-1].version,
            rows[-1].validation_accuracy,
            rows[-1].served_from_us,
            len(rows),
            set_aside.get(stream),
            there is not None and stream not in there,
        )
        for stream, rows in by_stream.items()
    )


def _last_window(folder: RunFolder) -> dict[str, Any]:
    """Returns the values of the last ``WindowOpened`` in the journal; empty without one."""
    for _, path in reversed(journal_segments(folder)):
        size, look = path.stat().st_size, _FIRST_LOOK_BYTES
        while True:
            if found := _window_in(path, max(0, size - look)):
                return found
            if look >= size:
                break
            look *= 4
    return {}


def _window_in(path: Path, from_byte: int) -> dict[str, Any]:
    with path.open("rb") as file:
        file.seek(from_byte)
        lines = file.read().splitlines()
    for line in reversed(lines):
        if b'"WindowOpened"' not in line:
            continue
        try:
            events = json.loads(line).get("events", ())
        except ValueError:
            continue  # cut off: the last line, or the first of this part of the file
        for event in reversed(events):
            if event.get("kind") == "WindowOpened":
                return dict(event)
    return {}

"""SQLite store ``state.sqlite`` of a run's streams, windows, models and labels."""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ekya.core.configs import RetrainConfig
from ekya.core.errors import FullDiskError, UserError
from ekya.core.records import LabelledBoxes
from ekya.core.units import ModelVersion, StreamId

LabelPart = Literal["training", "validation"]
"""Use of a label."""

FORMAT = 1
"""Version of the format of the file (``PRAGMA user_version``); a newer one is refused.

Files of before it was written have 0, and the format of version 1.
"""

_TABLES = """
CREATE TABLE IF NOT EXISTS streams (
    stream TEXT PRIMARY KEY, decoded INTEGER NOT NULL, damaged INTEGER NOT NULL, set_aside TEXT
);
CREATE TABLE IF NOT EXISTS windows (
    "window" INTEGER PRIMARY KEY, start_us INTEGER NOT NULL, end_us INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS models (
    stream TEXT NOT NULL, version INTEGER NOT NULL, "window" INTEGER NOT NULL, path TEXT NOT NULL,
    epochs INTEGER, batch_size INTEGER, head_width INTEGER, trainable_blocks INTEGER, data_fraction REAL,
    validation_accuracy REAL, served_from_us INTEGER NOT NULL,
    PRIMARY KEY (stream, version)
);
CREATE TABLE IF NOT EXISTS labels (
    stream TEXT NOT NULL, "window" INTEGER NOT NULL, frame INTEGER NOT NULL,
    x0 REAL NOT NULL, y0 REAL NOT NULL, x1 REAL NOT NULL, y1 REAL NOT NULL,
    class INTEGER NOT NULL,
    part TEXT NOT NULL CHECK (part IN ('training', 'validation', 'inference_profile')),
    UNIQUE (stream, "window", part, frame, x0, y0, x1, y1)
);
"""
_INDEX = 'CREATE INDEX IF NOT EXISTS labels_by_window ON labels ("window")'
"""For ``remove_windows``, which would look at every label of a service."""

_UNSHARED = "PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = DELETE; PRAGMA locking_mode = NORMAL;"
"""Ends the write-ahead log without shared memory."""

_REMEDIES = {
    sqlite3.SQLITE_FULL: "the disk is full; free some space or choose another folder",
    sqlite3.SQLITE_READONLY: "no permission to write; change the permissions or choose another folder",
    sqlite3.SQLITE_PERM: "no permission; change the permissions or choose another folder",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened; check that the folder exists and may be written to",
    sqlite3.SQLITE_NOTADB: "this is not a database; restore the file or start a new run",
    sqlite3.SQLITE_CORRUPT: "the database is damaged; restore the file or start a new run",
    sqlite3.SQLITE_BUSY: "another process holds the database; end it or try again later",
    sqlite3.SQLITE_LOCKED: "another process holds the database; end it or try again later",
}
_PRIMARY_CODE = 0xFF

WAIT_S = 30.0
"""Time that a call waits for another process, seconds; a service's loop counts as hung after twice that."""


@dataclass(frozen=True, slots=True)
class StreamRow:
    """Frame counts of a stream.

    Attributes:
        stream: its id.
        decoded: frames that arrived.
        damaged: frames that could not be decoded.
        set_aside: why the stream was given up; None if it was not.
    """

    stream: StreamId
    decoded: int = 0
    damaged: int = 0
    set_aside: str | None = None


@dataclass(frozen=True, slots=True)
class ModelRow:
    """A model that served.

    Attributes:
        stream: its stream.
        version: counted per stream; 0 is the base model.
        window: window in which it was trained.
        path: path of its weights, relative to the run folder.
        gamma: its retraining configuration; None for the base model.
        validation_accuracy: in [0, 1]; None if it was not measured.
        served_from_us: run time.
    """

    stream: StreamId
    version: ModelVersion
    window: int
    path: str
    gamma: RetrainConfig | None
    validation_accuracy: float | None
    served_from_us: int


class StateStore:
    """Reads and writes ``state.sqlite``. Every call is one transaction; writing a row again replaces it.

    Must be used in the thread that created it. Any call raises ``UserError`` on a full disk, a missing
    permission, a damaged file, one of a newer version, or one that another process holds for too long.

    Args:
        path: of the file, made if it is missing.
        of_run: whether a run is going on, whose writes must not wait for a backup that reads. Until it is
            closed, the file then has a write-ahead log beside it, where the file system has shared memory.
    """

    def __init__(self, path: Path, *, of_run: bool = False) -> None:
        self._path, self._of_run = path, of_run
        with self._user_errors():
            if of_run:
                _share(path)
            self._connection = sqlite3.connect(path, timeout=WAIT_S)
        try:
            with self._user_errors():
                self._make_tables()
                if of_run:
                    self._connection.execute(_INDEX)
        except UserError:
            self.close()
            raise

    def _make_tables(self) -> None:
        """Makes the tables that are missing, in a file of a format that this version knows."""
        ((found,),) = self._read("PRAGMA user_version")
        if found > FORMAT:
            raise UserError(
                f"{self._path}: this is of a newer version of Ekya (format {found}, and this version reads "
                f"{FORMAT}); install that version"
            )
        # An older file is left as it is: looking at one must not write, and 0 is read like 1.
        is_new = not self._read("SELECT 1 FROM sqlite_master")
        self._connection.executescript(_TABLES)
        if is_new:
            self._connection.execute(f"PRAGMA user_version = {FORMAT}")

    def __enter__(self) -> "StateStore":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the database. May be called twice."""
        if self._of_run:
            # One file that can be read anywhere, unless another process has it open at this moment.
            with suppress(sqlite3.Error):
                self._connection.executescript("PRAGMA busy_timeout = 0; PRAGMA journal_mode = DELETE;")
        self._connection.close()

    def put_stream(self, row: StreamRow) -> None:
        """Adds or replaces a stream."""
        self._write("INSERT OR REPLACE INTO streams VALUES (?, ?, ?, ?)", [astuple(row)])

    def read_streams(self) -> list[StreamRow]:
        """Returns all streams, sorted by id."""
        rows = self._read("SELECT stream, decoded, damaged, set_aside FROM streams ORDER BY stream")
        return [StreamRow(*row) for row in rows]

    def put_window(self, window: int, start_us: int, end_us: int) -> None:
        """Adds or replaces the start and the end of a window, in run time."""
        self._write("INSERT OR REPLACE INTO windows VALUES (?, ?, ?)", [(window, start_us, end_us)])

    def put_model(self, row: ModelRow) -> None:
        """Adds or replaces a model."""
        gamma = (None,) * 5 if row.gamma is None else astuple(row.gamma)
        model = row.stream, row.version, row.window, row.path
        self._write(
            "INSERT OR REPLACE INTO models VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [(*model, *gamma, row.validation_accuracy, row.served_from_us)],
        )

    def read_models(self, stream: StreamId) -> list[ModelRow]:
        """Returns a stream's models by version."""
        rows = self._read("SELECT * FROM models WHERE stream = ? ORDER BY version", (stream,))
        return [
            ModelRow(
                *(row[0], row[1], row[2], row[3]),
                gamma=None if row[4] is None else RetrainConfig(*row[4:9]),
                validation_accuracy=row[9],
                served_from_us=row[10],
            )
            for row in rows
        ]

    def read_all_models(self) -> list[ModelRow]:
        """Returns the models of all streams, by stream and version."""
        streams = self._read("SELECT DISTINCT stream FROM models ORDER BY stream")
        return [row for (stream,) in streams for row in self.read_models(stream)]

    def remove_models(self, rows: Iterable[ModelRow]) -> None:
        """Removes models; their files are the caller's."""
        self._write(
            "DELETE FROM models WHERE stream = ? AND version = ?", [(row.stream, row.version) for row in rows]
        )

    def read_windows(self) -> list[tuple[int, int, int]]:
        """Returns number, start and end of all windows, in run time, by number."""
        rows = self._read('SELECT "window", start_us, end_us FROM windows ORDER BY "window"')
        return [(row[0], row[1], row[2]) for row in rows]

    def remove_windows(self, before: int) -> None:
        """Removes the windows with a lower number, and their labels."""
        # Labels first: after a kill in between the windows are still there, and the next call finds them.
        self._write('DELETE FROM labels WHERE "window" < ?', [(before,)])
        self._write('DELETE FROM windows WHERE "window" < ?', [(before,)])

    def add_labels(
        self,
        stream: StreamId,
        window: int,
        part: LabelPart,
        labelled: LabelledBoxes,
        classes: NDArray[np.integer[Any]],
    ) -> None:
        """Adds labels; existing ones are left unchanged.

        Args:
            stream, window: the stream, and the window in which the labels were taken.
            part: use of the labels.
            labelled: (L,) frames and (L, 4) boxes.
            classes: (L,) index into the fleet's classes, from the golden model.
        """
        rows = zip(labelled.frame.tolist(), labelled.boxes.tolist(), classes.tolist(), strict=True)
        self._write(
            "INSERT INTO labels VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) "
            'ON CONFLICT (stream, "window", part, frame, x0, y0, x1, y1) DO NOTHING',
            [(stream, window, frame, *box, label, part) for frame, box, label in rows],
        )

    def read_labels(self, stream: StreamId) -> LabelledBoxes:
        """Returns frames and boxes of the labels that a stream's models were made from, by frame.

        These objects never count in accuracy.
        """
        rows = self._read(
            "SELECT frame, x0, y0, x1, y1 FROM labels "
            "WHERE stream = ? AND part IN ('training', 'validation') ORDER BY frame, x0, y0, x1, y1",
            (stream,),
        )
        return LabelledBoxes(
            frame=np.array([row[0] for row in rows], np.int64),
            boxes=np.array([row[1:] for row in rows], np.float32).reshape(-1, 4),
        )

    def _write(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        with self._user_errors(), self._connection:
            self._connection.executemany(statement, rows)

    def _read(self, statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        with self._user_errors():
            return self._connection.execute(statement, values).fetchall()

    @contextmanager
    def _user_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorcode", 0) & _PRIMARY_CODE
            if code not in _REMEDIES:
                raise
            kind = FullDiskError if code == sqlite3.SQLITE_FULL else UserError
            raise kind(f"{self._path}: {_REMEDIES[code]}") from error


def _share(path: Path) -> None:
    """Lets a database be read while it is written, where that is possible."""
    with closing(sqlite3.connect(path, timeout=WAIT_S)) as connection:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            # Only now does SQLite notice that a file system has no shared memory.
            connection.execute("SELECT 1 FROM sqlite_master")
            return
        except sqlite3.OperationalError as error:
            code = error.sqlite_errorcode & _PRIMARY_CODE
            if code == sqlite3.SQLITE_BUSY:  # another process reads at this moment
                return
            if code != sqlite3.SQLITE_IOERR:
                raise
    with closing(sqlite3.connect(path, timeout=WAIT_S)) as connection:
        connection.executescript(_UNSHARED)

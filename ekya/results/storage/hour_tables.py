"""Predictions of a service: a Parquet file per stream and hour, and parts of the hour that is not over.

A stream's folder holds ``<hour>.parquet`` for the hours that are over, and for the newest one parts,
``<hour>.parts/<first>-<last>.parquet``, named by the numbers of their first and last frame. An hour is that
of writing, in UTC. Frames are numbered in rising order, so a reader only has to know the last number that it
has read, whatever is folded, merged or removed meanwhile.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from shutil import rmtree

import pyarrow as pa
import pyarrow.parquet as pq

from ekya.core.errors import UserError
from ekya.core.records import FramePrediction, PredictionColumns
from ekya.results.storage.run_tables import (
    PREDICTIONS,
    merge_parts,
    parts_folder,
    prediction_columns,
    predictions_table,
    write_table,
)
from ekya.system.files import user_errors

_LOG = logging.getLogger(__name__)

HOUR_S = 3600
HOUR_FORMAT = "%Y-%m-%dT%H"
"""Names of hours, in UTC."""

_PARTS_A_FOLD = 60
"""As many parts become one, so that an hour has few and every write costs the same."""

_ROWS_A_GROUP = 4096
"""Rows that are read at a time from the file of an hour."""

_MOST_WAITING = 20_000
"""Rows that are held in memory while they cannot be written."""

_ATTEMPTS = 10
"""A reader looks again when a file vanishes under it."""


class HourWriter:
    """Writes the rows of a stream in rising order of frames; a stream has one writer at a time.

    A disk that is full stops nothing: rows wait in memory, and the oldest of too many are dropped.

    Args:
        folder: of the stream.
        unix_s, monotonic_s: clocks.
    """

    def __init__(
        self,
        folder: Path,
        unix_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._unix_s, self._monotonic_s = folder, unix_s, monotonic_s
        with user_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for left_behind in folder.glob(".*.tmp"):
                left_behind.unlink(missing_ok=True)
        names = hours_of(folder)
        # Not before the newest hour on disk, if the clock was set back: readers go by the order of names.
        self._hour = _number(names[-1]) if names else 0
        self._opened_s = monotonic_s()
        self._rows: list[FramePrediction] = []
        # What was written since the last fold.
        self._recent: list[FramePrediction] = []
        self._parts: list[Path] = []
        # Beside inference, which must not wait for it.
        self._merging = ThreadPoolExecutor(1, thread_name_prefix="merge-hours")
        self._failing = False

    def next_frame(self) -> int:
        """Returns the number after that of the newest row on disk; 0 without one."""
        newest = newest_frame(self._folder)
        return 0 if newest is None else newest + 1

    def add_row(self, row: FramePrediction) -> None:
        """Adds the next frame's row."""
        self._rows.append(row)

    def flush(self) -> None:
        """Writes the rows since the last flush to disk, if there are any, and merges an hour that is over."""
        hour = self._hour_now()
        if hour > self._hour:
            self._begin(hour)
        if not self._rows:
            return
        try:
            self._write()
        except (UserError, OSError) as error:
            if not self._failing:
                _LOG.warning("predictions cannot be written and wait in memory: %s", error)
            self._failing = True
            del self._rows[:-_MOST_WAITING]
        else:
            self._failing = False

    def close(self) -> None:
        """Writes everything to disk; nothing can be added any more."""
        self.flush()
        self._merging.shutdown()

    def _hour_now(self) -> int:
        """Returns the hour by the clock, which may have been set back.

        Then the hour that was begun still ends after two, so that no file grows without end.
        """
        hour = int(self._unix_s() // HOUR_S)
        if self._monotonic_s() - self._opened_s >= 2 * HOUR_S:
            hour = max(hour, self._hour + 1)
        return hour

    def _begin(self, hour: int) -> None:
        self._hour, self._opened_s = hour, self._monotonic_s()
        self._recent, self._parts = [], []
        self._merging.submit(_merge_before, self._folder, hour)

    def _write(self) -> None:
        folder = parts_folder(self._folder / f"{_name(self._hour)}.parquet")
        with user_errors(folder):
            folder.mkdir(exist_ok=True)
        self._parts.append(_write_part(folder, self._rows))
        # Before the fold, which may fail: these rows are on disk, and must not be written again.
        self._recent += self._rows
        self._rows = []
        if len(self._parts) >= _PARTS_A_FOLD:
            # Before its parts go. A reader in between finds rows twice, and takes them by their frame.
            _write_part(folder, self._recent)
            for part in self._parts:
                part.unlink(missing_ok=True)
            self._recent, self._parts = [], []


def hours_of(folder: Path) -> list[str]:
    """Returns the names of a stream's hours, such as ``2026-11-25T17``, the oldest first."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 -- readers do this often, and need no Path of each
    except FileNotFoundError:
        return []
    return sorted({name.partition(".")[0] for name in names if name.endswith((".parquet", ".parts"))})


def newest_frame(folder: Path) -> int | None:
    """Returns the number of a stream's newest row; None without one."""
    return next((piece.last for piece in _newest_first(folder)), None)


def oldest_frame(folder: Path) -> int | None:
    """Returns the number of a stream's oldest row; None without one."""
    pieces = (piece for name in hours_of(folder) for piece in _pieces(folder, name))
    return next((piece.first for piece in pieces), None)


def next_rows(folder: Path, frame: int) -> PredictionColumns | None:
    """Returns next rows after a frame, in order and not all of them; None if there are none yet."""
    for _ in range(_ATTEMPTS):
        piece = _next_piece(folder, frame)
        if piece is None:
            return None
        columns = piece.read()
        if columns is not None and columns.frame[-1] > frame:
            return columns.rows_after(frame)
    return None


def newest_rows(folder: Path) -> Iterator[PredictionColumns]:
    """Yields a stream's rows, the newest file or part of a file first."""
    for piece in _newest_first(folder):
        columns = piece.read()
        if columns is not None:
            yield columns


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows that are read at a time: a part, or a row group of the file of an hour."""

    path: Path
    group: int
    first: int
    last: int

    def read(self) -> PredictionColumns | None:
        """Returns the rows; None if they were folded, merged or removed meanwhile, or are damaged."""
        try:
            with pq.ParquetFile(self.path) as file:
                return prediction_columns(file.read_row_group(self.group).cast(PREDICTIONS))
        except (FileNotFoundError, IndexError):
            return None
        except (pa.ArrowException, ValueError, OSError) as error:
            # Data that cannot be decompressed are an OSError without a number.
            if isinstance(error, OSError) and error.errno is not None:
                raise
            _set_aside(self.path, error)
            return None


def _next_piece(folder: Path, frame: int) -> _Piece | None:
    """Returns the first piece with rows after a frame; looks from the newest hour back."""
    found = None
    for name in reversed(hours_of(folder)):
        pieces = _pieces(folder, name)
        found = next((piece for piece in pieces if piece.last > frame), found)
        if pieces and pieces[0].first <= frame + 1:
            break
    return found


def _newest_first(folder: Path) -> Iterator[_Piece]:
    for name in reversed(hours_of(folder)):
        yield from sorted(_pieces(folder, name), key=lambda piece: piece.last, reverse=True)


def _pieces(folder: Path, name: str) -> list[_Piece]:
    """Returns the pieces of an hour in order of frames; those of a fold that was cut off overlap."""
    path = folder / f"{name}.parquet"
    # Parts before the file: an hour that is merged in between shows in both, not in neither.
    pieces = [_Piece(part, 0, *_frames_in(part)) for part in _parts_in(parts_folder(path))]
    # The longest first: of a fold and its parts a reader takes the fold.
    return sorted([*pieces, *_groups(path)], key=lambda piece: (piece.first, -piece.last))


def _parts_in(folder: Path) -> list[Path]:
    """Returns the parts of an hour; none where the folder is removed meanwhile, since the hour was merged."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 -- Path.glob fails if the folder goes away
    except FileNotFoundError:
        return []
    return [folder / name for name in names if "-" in name and name.endswith(".parquet")]


def _groups(path: Path) -> Iterator[_Piece]:
    try:
        metadata = pq.read_metadata(path)
    except FileNotFoundError:
        return
    except pa.ArrowException as error:
        _set_aside(path, error)
        return
    for group in range(metadata.num_row_groups):
        frames = metadata.row_group(group).column(PREDICTIONS.names.index("frame")).statistics
        yield _Piece(path, group, frames.min, frames.max)


def _frames_in(part: Path) -> tuple[int, int]:
    first, _, last = part.stem.partition("-")
    return int(first), int(last)


def _write_part(folder: Path, rows: list[FramePrediction]) -> Path:
    path = folder / f"{rows[0].frame:012d}-{rows[-1].frame:012d}.parquet"
    write_table(path, predictions_table(rows))
    return path


def _merge_before(folder: Path, hour: int) -> None:
    """Merges the parts of all hours before this one, also of those at whose end nothing ran."""
    for name in hours_of(folder):
        path = folder / f"{name}.parquet"
        parts = parts_folder(path)
        # Not this hour: its writer goes on in another thread.
        if _number(name) < hour and parts.is_dir():
            try:
                if any(parts.glob("*.parquet")):
                    merge_parts(path, PREDICTIONS, _ROWS_A_GROUP)
                # Is still there if it holds temporary files of a writer that was killed.
                rmtree(parts, ignore_errors=True)
            except (UserError, OSError, pa.ArrowException) as error:
                _LOG.warning("%s: its parts stay, since they cannot be merged: %s", path, error)


def _set_aside(path: Path, error: Exception) -> None:
    """Renames a damaged file, which would be in the way of all that are newer."""
    _LOG.warning("%s is damaged and is set aside as .damaged: %s", path, error)
    # Another reader may have found it damaged at the same time.
    with suppress(FileNotFoundError):
        path.replace(path.with_suffix(".damaged"))


def _name(hour: int) -> str:
    return datetime.fromtimestamp(hour * HOUR_S, UTC).strftime(HOUR_FORMAT)


def _number(name: str) -> int:
    return int(datetime.strptime(name, HOUR_FORMAT).replace(tzinfo=UTC).timestamp()) // HOUR_S

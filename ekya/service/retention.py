"""Keeps a run folder within its limits, and holds the loop of a service while its disk is full.

No command may be carried out before the journal has it. A loop that went on would fail at its next step, and
a new process would fail at its start, for as long as the disk is full. Inference needs no disk: its answers
wait in memory.
"""

import logging
import shutil
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from ekya.config.fleet_sections import RetentionConfig
from ekya.core.errors import UserError
from ekya.core.units import US_PER_S, StreamId
from ekya.results.storage.model_files import remove_all, remove_spent
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_state import StateStore
from ekya.service.run_folder_contents import Piece, PieceKind, folder_bytes, pieces_of
from ekya.system.files import user_errors

_LOG = logging.getLogger(__name__)

_DAY_S = 86_400
_TEMPORARY_S = 3600
"""A temporary file that is older is not being written any more."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What was removed, or would be.

    Attributes:
        pieces: in order of removal.
        before_bytes: size of the folder before.
        over_bytes: by which it is too large afterwards, since the rest must stay.
    """

    pieces: tuple[Piece, ...]
    before_bytes: int
    over_bytes: int

    @property
    def removed_bytes(self) -> int:
        """Room that was gained."""
        return sum(piece.size_bytes for piece in self.pieces)


def choose_surplus(
    pieces: Sequence[Piece], total_bytes: int, limits: RetentionConfig, now_unix_s: float
) -> Collected:
    """Decides what is removed: what is too old, then the oldest until the rest fits.

    Args:
        pieces: oldest first.
        total_bytes: size of the whole folder.
        limits: of the folder.
        now_unix_s: time by the clock that the pieces' times are of.
    """
    old, young = [], []
    for piece in pieces:
        if piece.needed:
            continue
        if now_unix_s - piece.unix_s > _longest_s(piece.kind, limits):
            old.append(piece)
        elif piece.kind is not PieceKind.TEMPORARY:
            young.append(piece)
    over_bytes = total_bytes - sum(piece.size_bytes for piece in old) - round(limits.gigabytes * 1e9)
    for piece in young:
        if over_bytes <= 0:
            break
        old.append(piece)
        over_bytes -= piece.size_bytes
    return Collected(tuple(old), total_bytes, max(0, over_bytes))


def remove_surplus(
    folder: RunFolder,
    limits: RetentionConfig,
    now_unix_s: float | None = None,
    *,
    streams: Collection[StreamId] | None = None,
    with_models: bool = False,
    only_look: bool = False,
) -> Collected:
    """Removes what a folder holds beyond its limits.

    Any thread may call this while a service writes to the folder.

    Args:
        folder: of a run or a service.
        limits: of the folder.
        now_unix_s: time; None for now.
        streams: that are in the run; of others newest answers and exemplars are not needed either. None:
            all.
        with_models: whether earlier weights are removed too. Only of a run that is not going on: one that is
            removes its own (``ModelPruner``), since it alone knows what it may serve again.
        only_look: whether nothing is removed.

    Raises:
        UserError: no permission, a damaged database and the like.
    """
    now_unix_s = time.time() if now_unix_s is None else now_unix_s
    before_bytes = folder_bytes(folder.path)
    weights = _spent_weights(folder, limits.models, only_look) if with_models else ()
    left_bytes = before_bytes - sum(piece.size_bytes for piece in weights)
    removed = choose_surplus(pieces_of(folder, streams), left_bytes, limits, now_unix_s)
    if not only_look:
        for piece in removed.pieces:
            _remove(piece)
    return Collected((*weights, *removed.pieces), before_bytes, removed.over_bytes)


def collect_rows(
    folder: RunFolder,
    limits: RetentionConfig,
    unix_us: Callable[[int], int],
    now_unix_s: float | None = None,
    *,
    streams: Collection[StreamId] | None = None,
) -> None:
    """Removes from a service's ``state.sqlite`` old labels and windows, and models of cameras that left it.

    Args:
        folder, limits, now_unix_s: see ``remove_surplus``.
        unix_us: converts run time to time since 1970, both in microseconds.
        streams: that are in the run; models of others are removed when the newest has served for as long as
            answers are kept. None: all.

    Raises:
        UserError: no permission, a damaged database and the like.
    """
    now_unix_s = time.time() if now_unix_s is None else now_unix_s
    since_us = round((now_unix_s - limits.days * _DAY_S) * US_PER_S)
    with StateStore(folder.state) as store:
        # The last window stays: it may be open.
        old = [number for number, _, end_us in store.read_windows()[:-1] if unix_us(end_us) < since_us]
        if old:
            store.remove_windows(old[-1] + 1)
        # Rows come by version, so the last one of a stream remains.
        newest = {row.stream: row.served_from_us for row in store.read_all_models()}
        for stream, served_us in newest.items():
            if streams is not None and stream not in streams and unix_us(served_us) < since_us:
                remove_all(folder, store, stream)


def collect_or_warn(
    folder: RunFolder,
    limits: RetentionConfig,
    unix_us: Callable[[int], int] | None,
    streams: Collection[StreamId],
) -> None:
    """Does what a service does once a window: ``remove_surplus`` and ``collect_rows``. Errors are warnings.

    Before it begins ``unix_us`` is None, and rows are left alone: their file would not become smaller.
    """
    try:
        collected = remove_surplus(folder, limits, streams=streams)
        if unix_us is not None:
            collect_rows(folder, limits, unix_us, streams=streams)
    except (UserError, OSError) as error:
        _LOG.warning("what is old cannot be removed: %s", error)
        return
    if collected.pieces:
        _LOG.info(
            "%d pieces of the past were removed, %.0f MB",
            len(collected.pieces),
            collected.removed_bytes / 1e6,
        )
    if collected.over_bytes:
        _LOG.warning(
            "the folder has %.1f GB more than retention.gigabytes, %g, and nothing that may be removed; "
            "allow more",
            collected.over_bytes / 1e9,
            limits.gigabytes,
        )


def _longest_s(kind: PieceKind, limits: RetentionConfig) -> float:
    return _TEMPORARY_S if kind is PieceKind.TEMPORARY else limits.days * _DAY_S


def _spent_weights(folder: RunFolder, keep: int, only_look: bool) -> tuple[Piece, ...]:
    if not folder.state.is_file():
        return ()
    pieces = []
    with StateStore(folder.state) as store:
        for stream in dict.fromkeys(row.stream for row in store.read_all_models()):
            # Looked at first: once they are removed, their sizes are unknown.
            files = remove_spent(folder, store, stream, keep, only_look=True)
            pieces += [
                Piece(PieceKind.WEIGHTS, (file,), file.stat().st_mtime, file.stat().st_size, stream=stream)
                for file in files
            ]
            if not only_look:
                remove_spent(folder, store, stream, keep)
    return tuple(pieces)


def _remove(piece: Piece) -> None:
    for path in piece.paths:
        with user_errors(path):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


RESERVE_BYTES = 64 << 20
"""Room for what one step brings along: weights that begin to serve, the journal, the state of the run."""

_ASK_S = 60.0


class DiskRoom:
    """Whether a disk has room for another step of the loop.

    Args:
        folder: on that disk.
        make_room: called once a minute while the disk is full, since no window ends then.
        free_bytes: returns the free bytes of a folder's disk.
        monotonic_s: clock.
    """

    def __init__(
        self,
        folder: Path,
        make_room: Callable[[], None],
        free_bytes: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._make_room = folder, make_room
        self._free_bytes, self._monotonic_s = free_bytes, monotonic_s
        self._asked_s = float("-inf")
        self._has_room = True

    def __call__(self) -> bool:
        """Returns whether there is room; logs a change. A disk may fill in no time, so each call looks."""
        free_bytes = self._free_bytes(self._folder)
        has_room = free_bytes >= RESERVE_BYTES
        if self._has_room and not has_room:
            _LOG.error(
                "%s: the disk is full (%d MB are free, %d are needed); cameras are served, answers wait "
                "in memory, and nothing is planned or retrained until there is room",
                self._folder,
                free_bytes // 1_000_000,
                RESERVE_BYTES // 1_000_000,
            )
        elif has_room and not self._has_room:
            _LOG.warning("%s: the disk has room again", self._folder)
        self._has_room = has_room
        now_s = self._monotonic_s()
        if not has_room and now_s - self._asked_s >= _ASK_S:
            self._asked_s = now_s
            self._make_room()
        return has_room

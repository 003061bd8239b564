"""Journal of a live run with a snapshot of each window's state, from which the run resumes without a replay.

``snapshot.json`` holds the state before the last window opened, and where the journal stood. A run that never
ends has its journal in segments: each begins with a snapshot too, so old ones can be removed, and each can be
replayed by itself.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ekya.control.loop_state import LoopState
from ekya.control.options import LoopOptions
from ekya.control.protocols import Batch
from ekya.core.commands import Command
from ekya.core.errors import UserError
from ekya.core.plan import Plan
from ekya.results.storage.journal import FileJournal, problem_of, writer_of
from ekya.results.storage.run_folder import RunFolder
from ekya.system.files import user_errors, write_text_atomic

FORMAT = 2
"""Version of the format of snapshots; another one is not read."""

_STATE = TypeAdapter(LoopState)


@dataclass(frozen=True, slots=True)
class StateSnapshot:
    """State of the loop before the last window opened.

    Attributes:
        state: of the loop.
        segment: number of the journal's segment that goes on from it.
        at_byte: where in that file its steps begin.
    """

    state: LoopState
    segment: int
    at_byte: int


class SegmentedJournal:
    """``Journal`` in the folder of a run, which goes on after the last snapshot there.

    Args:
        folder: of the run.
        scheduler, options: of the run.
        segment_bytes: size after which another segment is begun when a window opens; None: never.
        state: from which the run goes on, if it does. In segments another one begins with it, since what it
            holds is decided under these options.
    """

    def __init__(
        self,
        folder: RunFolder,
        scheduler: str,
        options: LoopOptions,
        segment_bytes: int | None = None,
        state: LoopState | None = None,
    ) -> None:
        self._folder, self._scheduler, self._options = folder, scheduler, options
        self._segment_bytes = segment_bytes
        self._number = list_segments(folder)[-1] if list_segments(folder) else 0
        first = None
        if state is not None and segment_bytes is not None:
            self._number += 1
            first = _STATE.dump_python(state, mode="json")
        self._file = self._open(first)

    def record_batch(self, batch: Batch) -> None:
        """Writes the events of a step, before they are applied."""
        self._file.record_batch(batch)

    def record_decision(self, now_us: int, plan: Plan | None, commands: Sequence[Command]) -> None:
        """Writes the plan and the commands of a step, before the commands are executed."""
        self._file.record_decision(now_us, plan, commands)

    def write_snapshot(self, state: LoopState) -> None:
        """Writes the state before a window opens.

        The journal up to here is on disk before, so the snapshot never points behind its end.
        """
        self._file.sync()
        values: dict[str, Any] = _STATE.dump_python(state, mode="json")
        if self._segment_bytes is not None and self._file.size_bytes >= self._segment_bytes:
            self._file.close()
            self._number += 1
            # On disk with its first line before the snapshot below names it.
            self._file = self._open(values)
        content = {
            "format": FORMAT,
            "segment": self._number,
            "at_byte": self._file.size_bytes,
            "state": values,
        }
        write_text_atomic(self._folder.snapshot, json.dumps(content, separators=(",", ":")) + "\n")

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _open(self, state: dict[str, Any] | None) -> FileJournal:
        path = self._folder.journal_segment(self._number)
        return FileJournal(path, self._scheduler, self._options, state)


def list_segments(folder: RunFolder) -> list[int]:
    """Returns the numbers of the journal's segments that are there, rising."""
    later = (path.stem.removeprefix("journal-") for path in folder.path.glob("journal-*.jsonl"))
    numbers = [int(number) for number in later if number.isdecimal()]
    return sorted([*([0] if folder.journal.is_file() else []), *numbers])


def newest_segment(folder: RunFolder) -> Path:
    """Returns the file to which the journal was written last; it need not be there."""
    return folder.journal_segment(max(list_segments(folder), default=0))


def read_snapshot(folder: RunFolder) -> StateSnapshot | None:
    """Returns the last snapshot of a run; None where there is none yet.

    Raises:
        UserError: it is damaged, or of a version of Ekya with other snapshots.
    """
    path = folder.snapshot
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from error
    try:
        if content["format"] != FORMAT:
            raise UserError(f"{path}: was written by {writer_of(newest_segment(folder))}")
        state = _STATE.validate_python(content["state"])
        snapshot = StateSnapshot(state, int(content["segment"]), int(content["at_byte"]))
    except (ValidationError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: does not fit this version of Ekya ({problem_of(error)})") from error
    journal = folder.journal_segment(snapshot.segment)
    if _size(journal) < snapshot.at_byte:
        raise UserError(f"{path}: is of a journal that {journal} does not hold")
    return snapshot


def cut_to(folder: RunFolder, snapshot: StateSnapshot) -> None:
    """Removes what the journal holds after a snapshot.

    Raises:
        UserError: no permission and the like.
    """
    with user_errors(folder.path):
        # Also one that was begun right before a kill, and that no snapshot names.
        for number in list_segments(folder):
            if number > snapshot.segment:
                folder.journal_segment(number).unlink()
        os.truncate(folder.journal_segment(snapshot.segment), snapshot.at_byte)


def segment_state(path: Path) -> LoopState | None:
    """Returns the state before the first step of a segment; None where it is the first state of a run.

    Raises:
        UserError: it does not fit this version.
    """
    try:
        with path.open("rb") as file:
            header = json.loads(file.readline())
        return _STATE.validate_python(header["state"]) if "state" in header else None
    except (OSError, ValueError, ValidationError) as error:
        raise UserError(f"{path}: its first line does not fit this version of Ekya ({error}).") from error


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else -1

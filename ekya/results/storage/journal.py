"""Journal of a run: a JSON Lines file that is on disk before any command is executed.

Only a step with commands is synced to disk; a step without is written to the operating system immediately and
reaches the disk with the next sync.
"""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ekya.control.options import LoopOptions
from ekya.control.protocols import Batch
from ekya.core.codec import decode, encode
from ekya.core.commands import Command
from ekya.core.errors import UserError
from ekya.core.plan import Plan
from ekya.core.step_record import StepRecord
from ekya.system.files import write_text_atomic

_OPTIONS = TypeAdapter(LoopOptions)

NEWER = {
    "reacts_to_drift": False,
    "preparation_bursts": True,
    "pools_labels": False,
    "retrains_together": False,
    "zoo": 0,
    "doses": 1,
}
"""Options that came later, and the values at which they are left out: such a run is written as before."""


class FileJournal:
    """Appends to ``journal.jsonl``; on resume the existing file already has its header line."""

    def __init__(self, path: Path, scheduler: str, options: LoopOptions) -> None:
        goes_on = path.is_file()
        try:
            # Unbuffered: data that a full disk refused must not be written again on close.
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise UserError(f"{path}: the journal cannot be written ({error.strerror}).") from error
        if goes_on:
            return
        header = _OPTIONS.dump_python(options, mode="json")
        header = {key: value for key, value in header.items() if key not in NEWER or value != NEWER[key]}
        self._write({"scheduler": scheduler, "options": header})

    def batch(self, batch: Batch) -> None:
        """Writes the events of a step, before they are applied."""
        self._write({"now_us": batch.now_us, "events": [encode(event) for event in batch.events]})

    def decision(self, now_us: int, plan: Plan | None, commands: Sequence[Command]) -> None:
        """Writes the plan and the commands of a step, before the commands are executed."""
        self._write(
            {
                "decided_us": now_us,
                "plan": None if plan is None else encode(plan),
                "commands": [encode(command) for command in commands],
            },
            durable=bool(commands),
        )

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _write(self, record: dict[str, Any], durable: bool = False) -> None:
        left = memoryview((json.dumps(record, separators=(",", ":")) + "\n").encode())
        try:
            while left:
                left = left[self._file.write(left) :]
            if durable:
                os.fsync(self._file.fileno())
        except OSError as error:
            raise UserError(
                f"{self._file.name}: the journal cannot be written ({error.strerror}); "
                "free some space or choose another folder with --runs."
            ) from error


def cut_journal(path: Path, steps: int) -> None:
    """Truncates a journal to its first ``steps`` steps."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    write_text_atomic(path, "".join(lines[: 1 + 2 * steps]))


def read_journal(path: Path) -> tuple[str, LoopOptions, list[StepRecord]]:
    """Returns a journal's scheduler, options and steps.

    An incomplete last line or step after a crash is dropped: its commands were never executed.
    """
    records = list(_records(path))
    if not records or "options" not in records[0]:
        raise UserError(f"{path}: is not a journal of a run (its first line holds no options).")
    try:
        options = _OPTIONS.validate_python(records[0]["options"])
        steps = [
            StepRecord(
                batch["now_us"],
                tuple(decode(event) for event in batch["events"]),
                None if decision["plan"] is None else decode(decision["plan"]),
                tuple(decode(command) for command in decision["commands"]),
            )
            for batch, decision in zip(records[1::2], records[2::2], strict=False)
        ]
    except (ValidationError, ValueError, KeyError) as error:
        raise UserError(f"{path}: a line does not fit this version of Ekya ({error}).") from error
    return str(records[0]["scheduler"]), options, steps


def _records(path: Path) -> Iterator[dict[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(f"{path}: the journal cannot be read ({error.strerror}).") from error
    for number, line in enumerate(lines):
        try:
            yield json.loads(line)
        except json.JSONDecodeError as error:
            if number == len(lines) - 1:
                return
            raise UserError(f"{path}: line {number + 1} is damaged ({error.msg}).") from error

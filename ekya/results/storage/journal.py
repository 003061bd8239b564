"""Journal of a run: a JSON Lines file that is on disk before any command is executed.

Only a step with commands, or with requests of an operator, is synced to disk; another one is written to
the operating system immediately and reaches the disk with the next sync.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ekya.control.options import LoopOptions
from ekya.control.protocols import Batch
from ekya.core.codec import decode, encode
from ekya.core.commands import Command
from ekya.core.errors import UserError
from ekya.core.plan import Plan
from ekya.core.requests import Request
from ekya.core.step_record import StepRecord
from ekya.system.files import write_text_atomic
from ekya.system.json_lines import JsonLines, read_json_lines

_OPTIONS = TypeAdapter(LoopOptions)


class FileJournal:
    """Appends to a journal; on resume the existing file already has its header line.

    Args:
        path: of the file.
        scheduler, options: of the run.
        state: JSON values of the state before its first step, where that is not the first state of a run.
    """

    def __init__(
        self, path: Path, scheduler: str, options: LoopOptions, state: dict[str, Any] | None = None
    ) -> None:
        goes_on = path.is_file()
        self._requested = False
        self._lines = JsonLines(path)
        if goes_on:
            return
        header = _OPTIONS.dump_python(options, mode="json", exclude_defaults=True)
        first = {} if state is None else {"state": state}
        self._lines.append({"scheduler": scheduler, "options": header, **first}, durable=state is not None)

    @property
    def size_bytes(self) -> int:
        """Size of the file."""
        return self._lines.size_bytes

    def batch(self, batch: Batch) -> None:
        """Writes the events of a step, before they are applied."""
        self._requested = any(isinstance(event, Request) for event in batch.events)
        events = [encode(event) for event in batch.events]
        self._lines.append({"now_us": batch.now_us, "events": events}, durable=False)

    def decision(self, now_us: int, plan: Plan | None, commands: Sequence[Command]) -> None:
        """Writes the plan and the commands of a step, before the commands are executed."""
        self._lines.append(
            {
                "decided_us": now_us,
                "plan": None if plan is None else encode(plan),
                "commands": [encode(command) for command in commands],
            },
            durable=bool(commands) or self._requested,
        )

    def sync(self) -> None:
        """Brings everything to disk.

        Raises:
            UserError: the disk is full or damaged.
        """
        self._lines.sync()

    def close(self) -> None:
        """Closes the file."""
        self._lines.close()


def cut_journal(path: Path, steps: int) -> None:
    """Truncates a journal to its first ``steps`` steps."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    write_text_atomic(path, "".join(lines[: 1 + 2 * steps]))


def read_journal(path: Path) -> tuple[str, LoopOptions, list[StepRecord]]:
    """Returns a journal's scheduler, options and steps.

    An incomplete last line or step after a crash is dropped: its commands were never executed.
    """
    records = _records(path)
    scheduler, options = _header(path, records[0] if records else {})
    return scheduler, options, _steps(path, records[1:])


def read_header(path: Path) -> tuple[str, LoopOptions]:
    """Returns a journal's scheduler and options; reads only its first line."""
    try:
        with path.open("rb") as file:
            return _header(path, json.loads(file.readline()))
    except OSError as error:
        raise UserError(f"{path}: the journal cannot be read ({error.strerror}).") from error
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: line 1 is damaged ({error.msg}).") from error


def read_steps(path: Path, from_byte: int) -> list[StepRecord]:
    """Returns the steps of a journal that begin at an offset in its file, which is the end of a step."""
    return _steps(path, _records(path, from_byte))


def _header(path: Path, record: dict[str, Any]) -> tuple[str, LoopOptions]:
    if "options" not in record:
        raise UserError(f"{path}: is not a journal of a run (its first line holds no options).")
    try:
        return str(record["scheduler"]), _OPTIONS.validate_python(record["options"])
    except (ValidationError, KeyError) as error:
        raise UserError(f"{path}: a line does not fit this version of Ekya ({error}).") from error


def _steps(path: Path, records: list[dict[str, Any]]) -> list[StepRecord]:
    try:
        return [
            StepRecord(
                batch["now_us"],
                tuple(decode(event) for event in batch["events"]),
                None if decision["plan"] is None else decode(decision["plan"]),
                tuple(decode(command) for command in decision["commands"]),
            )
            for batch, decision in zip(records[::2], records[1::2], strict=False)
        ]
    except (ValidationError, ValueError, KeyError) as error:
        raise UserError(f"{path}: a line does not fit this version of Ekya ({error}).") from error


def _records(path: Path, from_byte: int = 0) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    try:
        read_json_lines(path, records.append, from_byte)
    except OSError as error:
        raise UserError(f"{path}: the journal cannot be read ({error.strerror}).") from error
    return records

"""Journal of a run: a JSON Lines file that is on disk before any command is executed.

Only a step with commands, or with requests of an operator, is synced to disk; another one is written to
the operating system immediately and reaches the disk with the next sync.

Events, commands and plans are plain JSON values in it. Only the dataclasses listed here can be decoded, so a
journal cannot name code to run.
"""

import json
from collections.abc import Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError

from ekya import __version__
from ekya.control.options import LoopOptions
from ekya.control.protocols import Batch
from ekya.core.commands import Command, StepRecord
from ekya.core.errors import UserError
from ekya.core.events import Event
from ekya.core.plan import Plan
from ekya.core.requests import Request
from ekya.system.json_lines import JsonLines, read_json_lines

_OPTIONS = TypeAdapter(LoopOptions)

_NAMED_SINCE = "0.2.0"
"""Version from which on journals say which version wrote them."""


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
        written = {"version": __version__, "scheduler": scheduler, "options": header, **first}
        # A snapshot is about to name a file that begins with a state. Any other header reaches the disk with
        # the first step that has commands: a run that ends before has done nothing.
        self._lines.append_records(written, durable=state is not None)

    @property
    def size_bytes(self) -> int:
        """Size of the file."""
        return self._lines.size_bytes

    def record_batch(self, batch: Batch) -> None:
        """Writes the events of a step, before they are applied."""
        self._requested = any(isinstance(event, Request) for event in batch.events)
        events = [encode_fact(event) for event in batch.events]
        self._lines.append_records({"now_us": batch.now_us, "events": events}, durable=False)

    def record_decision(self, now_us: int, plan: Plan | None, commands: Sequence[Command]) -> None:
        """Writes the plan and the commands of a step, before the commands are executed."""
        self._lines.append_records(
            {
                "decided_us": now_us,
                "plan": None if plan is None else encode_fact(plan),
                "commands": [encode_fact(command) for command in commands],
            },
            durable=bool(commands) or self._requested,
        )

    def sync(self) -> None:
        """Brings everything to disk.

        Raises:
            UserError: the disk is full or damaged.
        """
        self._lines.sync_file()

    def close(self) -> None:
        """Closes the file."""
        self._lines.close()


def problem_of(error: Exception) -> str:
    """Returns in a few words what an entry is refused for; of a value's many problems the first."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"


def is_of_other_version(path: Path) -> bool:
    """Returns whether a journal was written by another version of Ekya; one that cannot be read was."""
    return _version(path) != __version__


def writer_of(path: Path) -> str:
    """Returns in words which version of Ekya wrote a journal."""
    version = _version(path)
    return f"a version of Ekya before {_NAMED_SINCE}" if version is None else f"Ekya {version}"


def require_own_version(path: Path) -> None:
    """Refuses a journal of another version: a run that it decides from the middle on is neither version's.

    Raises:
        UserError: one sentence with the version that can resume the run.
    """
    # First, for its own sentence about a file that is no journal.
    read_header(path)
    if is_of_other_version(path):
        raise UserError(
            f"{path}: this run was begun by {writer_of(path)}, and this is {__version__}; resume it with "
            "that version, or start it anew."
        )


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
        raise UserError(f"{path}: line 1 is damaged ({error.msg}); start the run anew.") from error


def read_steps(path: Path, from_byte: int) -> list[StepRecord]:
    """Returns the steps of a journal that begin at an offset in its file, which is the end of a step."""
    return _steps(path, _records(path, from_byte))


def _header(path: Path, record: Any) -> tuple[str, LoopOptions]:
    if not isinstance(record, dict) or "options" not in record:
        raise UserError(f"{path}: is not a journal of a run (its first line holds no options).")
    if isinstance(record["options"], dict) and record["options"].get("training_groups"):
        raise _misfit(path, ValueError("shares of mps+green, which is no backend any more"))
    try:
        return str(record["scheduler"]), _OPTIONS.validate_python(record["options"])
    except (ValidationError, KeyError) as error:
        raise _misfit(path, error) from error


def _steps(path: Path, records: list[dict[str, Any]]) -> list[StepRecord]:
    try:
        return [
            StepRecord(
                batch["now_us"],
                tuple(decode_fact(event) for event in batch["events"]),
                None if decision["plan"] is None else decode_fact(decision["plan"]),
                tuple(decode_fact(command) for command in decision["commands"]),
            )
            for batch, decision in zip(records[::2], records[1::2], strict=False)
        ]
    except (ValidationError, ValueError, KeyError) as error:
        raise _misfit(path, error) from error


def _misfit(path: Path, error: Exception) -> UserError:
    return UserError(
        f"{path}: does not fit Ekya {__version__} ({problem_of(error)}); it was written by "
        f"{writer_of(path)}: use that version, or start the run anew."
    )


def _version(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return str(json.loads(file.readline())["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _records(path: Path, from_byte: int = 0) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    try:
        read_json_lines(path, records.append, from_byte)
    except OSError as error:
        raise UserError(f"{path}: the journal cannot be read ({error.strerror}).") from error
    return records


_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in (*get_args(Event), *get_args(Command), Plan)}
_ADAPTERS: dict[str, TypeAdapter[Any]] = {name: TypeAdapter(kind) for name, kind in _KINDS.items()}


def encode_fact(fact: Event | Command | Plan) -> dict[str, Any]:
    """Returns a fact as JSON values, with the name of its type under ``kind``."""
    name = type(fact).__name__
    if name not in _KINDS or not is_dataclass(fact):
        raise TypeError(f"{name} is not a kind of journal entry")
    # Most fields of most facts have their defaults; a service writes facts for months.
    return {"kind": name, **_ADAPTERS[name].dump_python(fact, mode="json", exclude_defaults=True)}


def decode_fact(values: dict[str, Any]) -> Any:
    """Returns the fact that `encode` wrote.

    Raises:
        ValueError: an unknown kind or an invalid value.
    """
    rest = dict(values)
    name = rest.pop("kind", None)
    if name not in _ADAPTERS:
        raise ValueError(f"unknown kind of journal entry: {name!r}")
    return _ADAPTERS[name].validate_python(rest)

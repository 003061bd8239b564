"""Measurements of this machine on disk, which later runs reuse."""

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from ekya.core.errors import UserError
from ekya.system.files import user_errors, write_text_atomic

_LOG = logging.getLogger(__name__)

_Measured = TypeVar("_Measured")


@dataclass(frozen=True, slots=True)
class MeasurementFile(Generic[_Measured]):
    """File of measurements of one type: a JSON list of keys (conditions of the measurement) and values.

    Attributes:
        name: of the file, without extension, and of a measurement beside its key.
        values: type of the measurements.
        command: measures again; None if the next run does so, and the file may be lost.
    """

    name: str
    values: TypeAdapter[_Measured]
    command: str | None = None

    @property
    def path(self) -> Path:
        """The file in ``$XDG_CACHE_HOME/ekya``, by default in ``~/.cache/ekya``."""
        cache = os.environ.get("XDG_CACHE_HOME")
        return (Path(cache) if cache else Path.home() / ".cache") / "ekya" / f"{self.name}.json"

    def load(self, key: Mapping[str, str]) -> _Measured | None:
        """Returns the measurement under exactly these conditions; None if there is none.

        Raises:
            UserError: the file is damaged and may not be lost.
        """
        for entry in self._entries():
            if self._key(entry) == key:
                try:
                    return self.values.validate_python(entry[self.name])
                except (ValidationError, KeyError) as error:
                    self._damaged("an entry does not fit", error)
        return None

    def save(self, key: Mapping[str, str], measured: _Measured) -> None:
        """Stores a measurement in place of an earlier one under the same conditions.

        Raises:
            UserError: the file cannot be written, or is damaged, and may not be lost.
        """
        kept = [entry for entry in self._entries() if self._key(entry) != key]
        kept.append({**key, self.name: self.values.dump_python(measured, mode="json")})
        try:
            with user_errors(self.path):
                self.path.parent.mkdir(parents=True, exist_ok=True)
            write_text_atomic(self.path, json.dumps(kept, indent=1) + "\n")
        except UserError as error:
            if self.command is not None:
                raise
            _LOG.info("the measurement is not kept: %s", error)

    def _entries(self) -> list[dict[str, Any]]:
        try:
            entries = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            return self._damaged(error, error)
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            return self._damaged("it holds no list")
        return entries

    def _damaged(self, why: object, error: Exception | None = None) -> list[dict[str, Any]]:
        """Returns no entries if the file may be lost."""
        if self.command is None:
            return []
        raise UserError(
            f"{self.path}: holds no measured {self.name} ({why}); remove it and run `{self.command}` again."
        ) from error

    def _key(self, entry: Mapping[str, Any]) -> dict[str, str]:
        return {name: value for name, value in entry.items() if name != self.name}

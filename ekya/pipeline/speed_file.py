"""Measured speeds on disk, by device, share backend and edge model; every run reuses them."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ekya.core.errors import UserError
from ekya.core.speed import ModelSpeeds
from ekya.system.files import user_errors, write_text_atomic

_SPEEDS = TypeAdapter(ModelSpeeds)


@dataclass(frozen=True, slots=True)
class SpeedKey:
    """Configuration for which speeds are valid.

    Attributes:
        device: the vendor's name of it.
        backend: that enforced the shares.
        model: the edge model's architecture.
    """

    device: str
    backend: str
    model: str


def speeds_path() -> Path:
    """Returns ``$XDG_CACHE_HOME/ekya/pipeline/speeds.json``, by default below ``~/.cache``."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "ekya" / "speeds.json"


def load_speeds(path: Path, key: SpeedKey) -> ModelSpeeds | None:
    """Returns the stored speeds; None if there are none.

    Raises:
        UserError: the file exists and is not valid.
    """
    for entry in _entries(path):
        if _key(entry) == key:
            try:
                return _SPEEDS.validate_python(entry["speeds"])
            except (ValidationError, KeyError) as error:
                raise _damaged(path, "an entry does not fit") from error
    return None


def save_speeds(path: Path, key: SpeedKey, speeds: ModelSpeeds) -> None:
    """Stores speeds in place of earlier ones with the same key.

    Raises:
        UserError: the file cannot be written.
    """
    kept = [entry for entry in _entries(path) if _key(entry) != key]
    own = {"device": key.device, "backend": key.backend, "model": key.model}
    kept.append({**own, "speeds": _SPEEDS.dump_python(speeds, mode="json")})
    with user_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomic(path, json.dumps(kept, indent=1) + "\n")


def _key(entry: dict[str, Any]) -> SpeedKey:
    return SpeedKey(str(entry.get("device")), str(entry.get("backend")), str(entry.get("model")))


def _entries(path: Path) -> list[dict[str, Any]]:
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from error
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise _damaged(path, "it holds no list")
    return entries


def _damaged(path: Path, why: object) -> UserError:
    return UserError(f"{path}: holds no measured speeds ({why}); remove it and run `ekya speeds` again.")

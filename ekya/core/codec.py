"""Converts events, commands and plans to plain JSON values and back, for the journal.

Only the dataclasses listed here can be decoded, so a journal cannot name code to run.
"""

from dataclasses import is_dataclass
from typing import Any, get_args

from pydantic import TypeAdapter

from ekya.core.commands import Command
from ekya.core.events import Event
from ekya.core.plan import Plan

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

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
_NEWER: dict[str, object] = {
    "round": 0,
    "since_us": None,
    "picture": [],
    "candidates": [],
    "kept": None,
    "expected": None,
    "scenes": [],
    "pooled": None,
    "partners": [],
    "partner_accuracies": [],
    "partners_gain": 0.0,
    "of": None,
    "dose": {"parts": 1, "known": None},
    "probe": None,
    "version": None,
    "budget": None,
    "gpu": None,
}
"""Keys that came later, and the values at which they are left out: a run without drifts, kept models,
pooled labels, joint retrainings, doses and requests reads as before."""

_ADAPTERS: dict[str, TypeAdapter[Any]] = {name: TypeAdapter(kind) for name, kind in _KINDS.items()}


def encode(fact: Event | Command | Plan) -> dict[str, Any]:
    """Returns a fact as JSON values, with the name of its type under ``kind``."""
    name = type(fact).__name__
    if name not in _KINDS or not is_dataclass(fact):
        raise TypeError(f"{name} is not a kind of journal entry")
    values = _ADAPTERS[name].dump_python(fact, mode="json")
    return {"kind": name, **(_without_newer(values) if name != "Plan" else values)}


def decode(values: dict[str, Any]) -> Any:
    """Returns the fact that `encode` wrote.

    Raises:
        ValueError: an unknown kind or an invalid value.
    """
    rest = dict(values)
    name = rest.pop("kind", None)
    if name not in _ADAPTERS:
        raise ValueError(f"unknown kind of journal entry: {name!r}")
    return _ADAPTERS[name].validate_python(rest)


def _without_newer(values: Any) -> Any:
    """Returns JSON values without the newer keys that have their first values."""
    match values:
        case dict():
            return {
                key: _without_newer(value)
                for key, value in values.items()
                if key not in _NEWER or value != _NEWER[key]
            }
        case list():
            return [_without_newer(value) for value in values]
        case _:
            return values

"""Meanings of the keys of a YAML file, from the docstrings of the models that describe it."""

import inspect
import re
import textwrap
from collections.abc import Iterator
from enum import Enum
from typing import Any, get_args

from pydantic import BaseModel

ATTRIBUTES = "Attributes:"
"""Heading of the section of a docstring that describes the keys."""


def described_schema(root: type[BaseModel]) -> dict[str, Any]:
    """Returns the JSON Schema of a file, each key with its meaning, as editors show it."""
    schema = root.model_json_schema()
    shapes = {root.__name__: schema, **schema.get("$defs", {})}
    for model in models_of(root):
        if issubclass(model, BaseModel):
            shape = shapes[model.__name__]
            shape["description"] = _plain(shape.get("description", "").partition(ATTRIBUTES)[0])
            aliases = {info.alias: name for name, info in model.model_fields.items() if info.alias}
            meanings = attribute_meanings(model)
            for key, value in shape["properties"].items():
                if meaning := meanings.get(aliases.get(key, key)):
                    value.setdefault("description", _plain(meaning))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def attribute_meanings(model: type) -> dict[str, str]:
    """Returns the entries of the ``Attributes`` section of a model and of its bases, by attribute."""
    meanings: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        section = textwrap.dedent(inspect.cleandoc(cls.__doc__ or "").partition(ATTRIBUTES)[2])
        for entry in re.split(r"\n(?=\S)", section.strip("\n")):
            names, colon, meaning = entry.partition(":")
            if colon:
                meanings |= dict.fromkeys((name.strip() for name in names.split(",")), meaning)
    return meanings


def models_of(root: type[BaseModel]) -> Iterator[type]:
    """Yields the root and every model and enumeration that its fields mention."""
    seen: set[type] = set()
    todo: list[Any] = [root]
    while todo:
        one = todo.pop()
        todo += get_args(one)
        if not isinstance(one, type) or one in seen:
            continue
        seen.add(one)
        if issubclass(one, BaseModel):
            yield one
            todo += [info.annotation for info in one.model_fields.values()]
            todo += [extra for info in one.model_fields.values() for extra in info.metadata]
        elif issubclass(one, Enum):
            yield one


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("``", "")

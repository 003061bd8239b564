"""Keys of a YAML file in words: what each means, from docstrings, and what pydantic finds wrong."""

import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from copy import deepcopy
from difflib import get_close_matches
from enum import Enum
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

ATTRIBUTES = "Attributes:"
"""Heading of the section of a docstring that describes the keys."""


def describe_schema(root: type[BaseModel]) -> dict[str, Any]:
    """Returns the JSON Schema of a file, each key with its meaning, as editors show it."""
    schema = root.model_json_schema()
    shapes = {root.__name__: schema, **schema.get("$defs", {})}
    for model in find_models(root):
        if issubclass(model, BaseModel):
            shape = shapes[model.__name__]
            shape["description"] = _plain(shape.get("description", "").partition(ATTRIBUTES)[0])
            aliases = {info.alias: name for name, info in model.model_fields.items() if info.alias}
            meanings = read_meanings(model)
            for key, value in shape["properties"].items():
                if meaning := meanings.get(aliases.get(key, key)):
                    value.setdefault("description", _plain(meaning))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def read_meanings(model: type) -> dict[str, str]:
    """Returns the entries of the ``Attributes`` section of a model and of its bases, by attribute."""
    meanings: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        section = textwrap.dedent(inspect.cleandoc(cls.__doc__ or "").partition(ATTRIBUTES)[2])
        for entry in re.split(r"\n(?=\S)", section.strip("\n")):
            names, colon, meaning = entry.partition(":")
            if colon:
                meanings |= dict.fromkeys((name.strip() for name in names.split(",")), meaning)
    return meanings


def find_models(root: type[BaseModel]) -> Iterator[type]:
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


_LONGEST_VALUE = 40
_UNKNOWN_KEY = ("extra_forbidden", "invalid_key")

_EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "finite": "a number that is not infinite",
    "string": "text",
    "bool": "true or false",
    "tuple": "a list",
    "list": "a list",
    "dict": "keys and values",
    "mapping": "keys and values",
    "model": "keys and values",
    "path": "the path of a file",
}


def describe_first_problem(error: ValidationError, raw: Mapping[str, object], model: type[BaseModel]) -> str:
    """Returns the first of ``describe_problems``, with the number of further ones."""
    first, *further = describe_problems(error, raw, model)
    return f"{first} (and {len(further)} more)" if further else first


def describe_problems(error: ValidationError, raw: Mapping[str, object], model: type[BaseModel]) -> list[str]:
    """Returns every error as key, problem and remedy.

    Unknown keys go first: such a key is often a misspelling of one that is reported as missing.

    Args:
        error: raised when ``raw`` was validated as ``model``.
        raw: the parsed file; streams are looked up in it by position and named by id.
        model: the model of the whole file.
    """
    errors = error.errors(include_url=False)
    # A list whose entries are all wrong is reported as too short, too.
    problems = [one for one in errors if one["type"] != "too_short" or not one["input"]]
    problems.sort(key=lambda one: one["type"] not in _UNKNOWN_KEY)
    keys = [_dotted(problem["loc"], raw) for problem in problems]
    told = [
        f"{key}{': ' if key else ''}{_sentence(one, model)}" for key, one in zip(keys, problems, strict=True)
    ]
    return list(dict.fromkeys(told))


def without_unknown_keys(
    error: ValidationError, raw: Mapping[str, object]
) -> tuple[dict[str, Any], list[str]]:
    """Returns the keys and values of a file without those that are unknown, and these by their paths.

    Args:
        error: raised when ``raw`` was validated.
        raw: the parsed file.
    """
    known, gone = deepcopy(dict(raw)), []
    for problem in error.errors(include_url=False):
        if problem["type"] == "extra_forbidden":
            gone.append(_dotted(problem["loc"], raw))
            here: Any = known
            for part in problem["loc"][:-1]:
                if isinstance(here, list):
                    here = here[int(part)]
                elif part in here:  # else it is a union's tag
                    here = here[part]
            del here[problem["loc"][-1]]
    return known, gone


def _sentence(problem: ErrorDetails, model: type[BaseModel]) -> str:
    context: Mapping[str, Any] = problem.get("ctx", {})
    value = _short(problem["input"])
    match problem["type"]:
        case "extra_forbidden":
            known = sorted(_siblings(problem["loc"], model))
            near = get_close_matches(str(problem["loc"][-1]), known, n=1)
            remedy = f"did you mean {near[0]}?" if near else f"the keys are {', '.join(known)}"
            return f"there is no such key; {remedy}"
        case "invalid_key":
            return "a key has to be text; remove it"
        case "missing":
            return "this key is missing; add it"
        case "union_tag_not_found":
            return f"{_tag_key(context)} is missing; add it"
        case "union_tag_invalid":
            return (
                f"there is no {_tag_key(context)} {context['tag']!r}; use one of {context['expected_tags']}"
            )
        case "literal_error":
            return f"{value} is not possible; use one of {context['expected']}"
        case "value_error":
            return str(context["error"])
        case "greater_than_equal":
            return f"{value} is too small; use at least {context['ge']:g}"
        case "greater_than":
            return f"{value} is too small; use more than {context['gt']:g}"
        case "less_than_equal":
            return f"{value} is too large; use at most {context['le']:g}"
        case "less_than":
            return f"{value} is too large; use less than {context['lt']:g}"
        case "too_short":
            return "the list is empty; write at least one entry"
        case kind:
            expected = _EXPECTED.get(kind.split("_")[0])
            given = problem["msg"].removeprefix("Input should be ")
            return f"{value} is not possible; write {expected or given}"


def _dotted(location: tuple[int | str, ...], raw: object) -> str:
    """Returns a path such as ``streams.cam-2.source.seed``, without pydantic's union tags."""
    keys: list[str] = []
    for place, part in enumerate(location):
        last = place == len(location) - 1
        match raw, part:
            case list() | tuple(), int() if part < len(raw):
                raw = raw[part]
                name = raw.get("id") if isinstance(raw, Mapping) else None
                keys.append(str(name) if name is not None else f"[{part}]")
            case Mapping(), _ if part in raw:
                raw = raw[part]
                keys.append(str(part))
            case Mapping(), _ if last:
                keys.append(str(part))
    return ".".join(keys).replace(".[", "[")


def _siblings(location: tuple[int | str, ...], model: type[BaseModel]) -> set[str]:
    """Returns the keys that are allowed at the last place of the location."""
    here = [model]
    for part in location[:-1]:
        if isinstance(part, str) and (deeper := [m for one in here for m in _models_under(one, part)]):
            here = deeper
    return {name for one in here for name in one.model_fields}


def _models_under(model: type[BaseModel], part: str) -> Iterator[type[BaseModel]]:
    """Yields the models of a field, or the model itself if the part is a union tag, as in locations."""
    if part in model.model_fields:
        yield from _models_in(model.model_fields[part].annotation)
    elif any(part in get_args(field.annotation) for field in model.model_fields.values()):
        yield model


def _models_in(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)


def _tag_key(context: Mapping[str, Any]) -> str:
    """Returns the key that distinguishes the members of a union."""
    return str(context["discriminator"]).strip("'")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."

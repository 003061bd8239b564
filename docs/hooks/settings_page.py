"""Reference page of a YAML file that pydantic models describe: every key, its type, default and meaning.

Names, types, bounds and defaults come from the models' JSON schema. Meanings come from
``Field(description=...)`` or from the ``Attributes`` section of a model's docstring, and those of an
enumeration's values from the string below each.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from page_links import slug
from page_text import code, prose_of, table
from pydantic import BaseModel

from ekya.config.keys_in_words import ATTRIBUTES, find_models, read_meanings

Schema = Mapping[str, Any]

_BOUNDS = (("minimum", "≥ "), ("exclusiveMinimum", "> "), ("maximum", "≤ "), ("exclusiveMaximum", "< "))
_TYPES = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false"}
_NONE = re.compile(r"\bNone\b")
_POINTER = re.compile(r"^see the types?\.?$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Key:
    """A key of the file.

    Attributes:
        section: path of the section that it belongs to; empty at the top.
        name: as in the file.
        kind: type, in words.
        default: in words; ``required`` without one.
        meaning: in Markdown; empty if the code does not describe the key.
    """

    section: str
    name: str
    kind: str
    default: str
    meaning: str

    @property
    def path(self) -> str:
        """Path of the key, such as ``streams[].source.url``."""
        return f"{self.section}.{self.name}" if self.section else self.name


@dataclass(frozen=True, slots=True)
class Section:
    """A mapping in the file.

    Attributes:
        path: path of its keys; empty for the file itself.
        variant: value of the key that selects it among others, such as ``kind: video``; empty if it is alone.
        about: what it is for.
        keys: in the order of the model.
    """

    path: str
    variant: str
    about: str
    keys: tuple[Key, ...]

    @property
    def title(self) -> str:
        """Heading of the section."""
        return _title(self.path, self.variant)


@dataclass(slots=True)
class _Reader:
    """Reads the sections of one root model.

    Attributes:
        definitions: JSON schemas of the models below the root, by name.
        classes: models and enumerations below the root, by name.
        open_keys: keys whose default depends on the machine.
    """

    definitions: Mapping[str, Schema]
    classes: Mapping[str, type]
    open_keys: frozenset[str]
    _todo: list[tuple[str, str, str]] = field(default_factory=list)
    # Where a model is described, which is once, by its name.
    _places: dict[str, str] = field(default_factory=dict)

    def sections(self, root: type[BaseModel], schema: Schema) -> Iterator[Section]:
        yield self._section("", "", root, schema)
        while self._todo:
            path, variant, name = self._todo.pop()
            yield self._section(path, variant, self.classes[name], self.definitions[name])

    def _section(self, path: str, variant: str, model: type, schema: Schema) -> Section:
        meanings = read_meanings(model)
        aliases = {one.alias: name for name, one in model.model_fields.items() if one.alias}  # type: ignore[attr-defined]
        required = schema.get("required", ())
        keys = []
        above, self._todo = self._todo, []
        for name, value in schema.get("properties", {}).items():
            below = f"{path}.{name}" if path else name
            told = value.get("description") or meanings.get(aliases.get(name, name), "")
            keys.append(
                Key(
                    path,
                    name,
                    self._kind(below, value),
                    self._default(below, name in required, value),
                    self._meaning(told, value),
                )
            )
        # Sections below come directly after this one, in the order of the keys.
        self._todo = [*above, *reversed(self._todo)]
        return Section(path, variant, summary_of(model), tuple(keys))

    def _kind(self, path: str, value: Schema) -> str:
        """Returns a type in words, and notes the sections below."""
        if "$ref" in value:
            return self._referred(path, value["$ref"].rpartition("/")[2])
        if "discriminator" in value:
            return self._variants(path, value["discriminator"])
        if "anyOf" in value:
            kinds = [self._kind(path, one) for one in value["anyOf"] if one.get("type") != "null"]
            return " or ".join(dict.fromkeys(kinds))
        if "const" in value:
            return code(value["const"])
        if "enum" in value:
            return ", ".join(map(code, value["enum"]))
        kind = value.get("type")
        if kind == "array":
            return f"list of {_plural(self._kind(path + '[]', value.get('items', {})))}"
        if kind == "object":
            inner = value.get("additionalProperties")
            return f"mapping to {self._kind(path + '.*', inner)}" if isinstance(inner, dict) else "mapping"
        if value.get("format") in ("path", "file-path", "directory-path"):
            return "path"
        bounds = ", ".join(f"{sign}{value[key]:g}" for key, sign in _BOUNDS if key in value)
        return f"{_TYPES.get(kind or '', 'any value')}{' ' + bounds if bounds else ''}"

    def _referred(self, path: str, name: str) -> str:
        target = self.definitions[name]
        if "properties" not in target:
            return self._kind(path, target)
        if name not in self._places:
            self._places[name] = path
            self._todo.append((path, "", name))
        return f"[section](#{slug(_title(self._places[name]))})"

    def _variants(self, path: str, discriminator: Schema) -> str:
        selects = discriminator["propertyName"]
        options = []
        for option, target in discriminator["mapping"].items():
            variant = f"{selects}: {option}"
            self._todo.append((path, variant, target.rpartition("/")[2]))
            options.append(f"[{code(option)}](#{slug(_title(path, variant))})")
        return f"section with {code(selects)} {' or '.join([', '.join(options[:-1]), options[-1]])}"

    def _default(self, path: str, required: bool, value: Schema) -> str:
        if path in self.open_keys:
            return "chosen"
        if required:
            return "required"
        default = value.get("default", {})
        values = default if isinstance(default, list) else [default]
        return "" if any(isinstance(one, dict) for one in values) else code(_yaml(default))

    def _meaning(self, told: str, value: Schema) -> str:
        """Returns what a key means, with the meanings of its values."""
        names = [one["$ref"].rpartition("/")[2] for one in (value, *value.get("anyOf", ())) if "$ref" in one]
        model = self.classes[names[0]] if names else None
        if model is not None and issubclass(model, BaseModel) and (not told or _POINTER.match(told.strip())):
            told = summary_of(model)
        meaning = sentence(told)
        if model is not None and issubclass(model, Enum):
            values = [
                f"{code(str(model[name].value))}: {prose_of(text)}"
                for name, text in member_meanings(model).items()
            ]
            meaning = " ".join([meaning, *values]).strip()
        return meaning


def sections_of(root: type[BaseModel], open_keys: frozenset[str] = frozenset()) -> tuple[Section, ...]:
    """Returns the sections of a file, the file's own keys first.

    Args:
        root: model of the file.
        open_keys: paths of keys that are chosen for the machine if the file omits them.
    """
    schema = root.model_json_schema()
    classes = {cls.__name__: cls for cls in find_models(root)}
    reader = _Reader(schema.get("$defs", {}), classes, open_keys)
    return tuple(reader.sections(root, schema))


def page(sections: tuple[Section, ...]) -> str:
    """Returns the sections as Markdown, a table each."""
    parts = []
    for section in sections:
        if section.path:
            parts.append(f"## {section.title}\n\n{section.about}\n")
        rows = [[code(key.name), key.kind, key.default, key.meaning] for key in section.keys]
        parts.append(table(("key", "type", "default", "meaning"), rows))
    return "\n".join(parts)


def undescribed(sections: tuple[Section, ...]) -> list[str]:
    """Returns the paths of the keys that the code does not describe, without those that select a section."""
    return [
        f"{key.path} ({section.variant})" if section.variant else key.path
        for section in sections
        for key in section.keys
        if not key.meaning and not section.variant.startswith(f"{key.name}: ")
    ]


def summary_of(model: type) -> str:
    """Returns a docstring without its ``Attributes`` section, as Markdown."""
    return prose_of((inspect.getdoc(model) or "").partition(ATTRIBUTES)[0])


def member_meanings(values: type[Enum]) -> dict[str, str]:
    """Returns the strings below an enumeration's members, by name; members without one are left out."""
    (cls,) = ast.parse(textwrap.dedent(inspect.getsource(values))).body
    assert isinstance(cls, ast.ClassDef)
    meanings = {}
    for before, after in zip(cls.body, cls.body[1:], strict=False):
        match before, after:
            case ast.Assign(targets=[ast.Name(id=name)]), ast.Expr(value=ast.Constant(value=str(text))):
                meanings[name] = inspect.cleandoc(text)
    return meanings


def sentence(text: str) -> str:
    """Returns a description as a Markdown sentence with a capital letter and a full stop."""
    plain = _NONE.sub(code("null"), prose_of(text))
    if not plain:
        return ""
    first = plain.split(maxsplit=1)[0]
    capital = first.isascii() and first.strip(",.:;").isalpha() and first.islower()
    return (plain[0].upper() if capital else plain[0]) + plain[1:] + ("" if plain[-1] in ".!?" else ".")


def _title(path: str, variant: str = "") -> str:
    return f"{code(path)}{' with ' + code(variant) if variant else ''}"


def _plural(kind: str) -> str:
    """Returns the type of a list's values in the plural."""
    return re.sub(r"^(whole number|number|path|\[section)", r"\1s", kind).replace(
        "section with", "sections with"
    )


def _yaml(value: object) -> str:
    """Returns a default as it would be written in the file."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case list():
            return f"[{', '.join(map(_yaml, value))}]"
        case float():
            return f"{value:g}"
    return str(value)

"""Reference of the Python interface: every stable name with its signature and docstring."""

import inspect
import re
from collections.abc import Iterator, Mapping
from enum import Enum

from page_text import code, prose_of, table

_SECTION = re.compile(r"^(Attributes|Args|Returns|Raises):$", re.MULTILINE)
_HEADS = {"Attributes": "attribute", "Args": "argument", "Returns": "result", "Raises": "error"}
_ENTRY = re.compile(r"^    ([\w, ]+): ", re.MULTILINE)
_SHORTER = tuple(
    (re.compile(before), after)
    for before, after in (
        (r"\b(?:[a-z_]+\.)+(?=[A-Z])", ""),
        (r"<[\w.]+: ('[^']*')>", r"\1"),
        (r"(-> |: )'([^']*)'", r"\1\2"),
        (r"\(self(?:, )?", "("),
        (r" = <[^>]*>", " = ..."),
    )
)
"""Left out of signatures: modules of types, quotes around types, self, enumerations, objects."""


def page(names: Mapping[str, object]) -> str:
    """Returns a section for each name, with its parts in tables, and the public methods of classes."""
    return "\n".join(part for name, one in sorted(names.items()) for part in _parts("###", name, one))


def _parts(level: str, name: str, one: object) -> Iterator[str]:
    yield f"{level} `{name}`\n"
    if callable(one) and not _is_made_elsewhere(one):
        yield f"```python\n{name.rpartition('.')[2]}{_signature(one)}\n```\n"
    yield from _prose(inspect.getdoc(one) or "")
    if inspect.isclass(one):
        yield from _prose(_own_init(one))
        for method, value in vars(one).items():
            text = inspect.getdoc(value)
            if not method.startswith("_") and text and (callable(value) or isinstance(value, property)):
                call = "" if isinstance(value, property) else _signature(value)
                yield f"- `.{method}{call}`: {_first(text)}"
        yield ""


def _is_made_elsewhere(one: object) -> bool:
    """Whether its constructor says nothing: a protocol, an error, an enumeration, or what others return."""
    if not inspect.isclass(one):
        return False
    if issubclass(one, Exception | Enum) or getattr(one, "_is_protocol", False):
        return True
    return any(name.startswith("_") for name in inspect.signature(one).parameters)


def _own_init(owner: type) -> str:
    init = vars(owner).get("__init__")
    return inspect.getdoc(init) or "" if inspect.isfunction(init) and init.__doc__ else ""


def _signature(one: object) -> str:
    """Returns a signature with short names of types, without what stands for no argument."""
    text = str(inspect.signature(one))  # type: ignore[arg-type]
    for before, after in _SHORTER:
        text = before.sub(after, text)
    return text


def _first(text: str) -> str:
    return prose_of(text.partition("\n\n")[0])


def _prose(docstring: str) -> Iterator[str]:
    """Yields paragraphs, and a table of each section of arguments, attributes or errors."""
    head, *sections = _SECTION.split(docstring)
    for paragraph in head.strip().split("\n\n"):
        if paragraph.strip():
            yield f"{prose_of(paragraph)}\n"
    for kind, body in zip(sections[::2], sections[1::2], strict=True):
        entries = _ENTRY.split(body)[1:]
        rows = [
            (", ".join(map(code, names.split(", "))), prose_of(text))
            for names, text in zip(entries[::2], entries[1::2], strict=True)
        ]
        if rows:
            yield table((_HEADS[kind], "meaning"), rows)

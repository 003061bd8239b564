"""Markdown of generated pages: tables, code spans, and text of docstrings."""

import re
from collections.abc import Iterable, Sequence

_SPAN = re.compile(r"(`[^`]*`)")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table; an empty cell stays empty."""
    lines = [list(head), ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(_cell(cell) for cell in line) + " |\n" for line in lines)


def code(text: object) -> str:
    """Returns a code span."""
    return f"`{text}`"


def prose_of(docstring: str) -> str:
    """Returns a docstring's text in one line of Markdown, with single backticks for code."""
    return " ".join(docstring.split()).replace("``", "`")


def _cell(text: str) -> str:
    """Returns the text of a cell. A bar in a code span needs no backslash, and Markdown would show it."""
    parts = _SPAN.split(text.replace("\n", " "))
    return "".join(part if part.startswith("`") else part.replace("|", r"\|") for part in parts)

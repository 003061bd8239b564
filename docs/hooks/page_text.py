"""Markdown of generated pages: tables, code spans, and text of docstrings."""

import re
from collections.abc import Iterable, Sequence
from html import escape

_SPAN = re.compile(r"(`[^`]*`)")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table; an empty cell stays empty."""
    lines = [list(head), ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell(one) for one in line) + " |\n" for line in lines)


def code(text: object) -> str:
    """Returns a code span."""
    return f"`{text}`"


def prose_of(docstring: str) -> str:
    """Returns a docstring's text in one line of Markdown, with single backticks for code."""
    return " ".join(docstring.split()).replace("``", "`")


def cell(text: str) -> str:
    """Returns the text of a cell.

    Code with a bar is HTML: in a code span some readers of Markdown end the cell there, and others show the
    backslash that would keep them from it.
    """
    return "".join(_part(part) for part in _SPAN.split(text.replace("\n", " ")))


def _part(part: str) -> str:
    if "|" not in part:
        return part
    if not part.startswith("`"):
        return part.replace("|", r"\|")
    return f"<code>{escape(part.strip('`'), quote=False).replace('|', '&#124;')}</code>"

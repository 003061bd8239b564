"""Links and anchors of a Markdown page, and the file that a link names.

Code blocks and code spans hold no links. Anchors are those that Python-Markdown gives to headings.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from posixpath import normpath

_FENCE = re.compile(r"^\s*(```|~~~)")
_SPAN = re.compile(r"(`+).+?\1")
_LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)(?:\s+\"[^\"]*\")?\)")
_HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$")
_ELSEWHERE = re.compile(r"^(?:[a-z][a-z0-9+.-]*:|//)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Link:
    """A link within the repository.

    Attributes:
        line: line of the page, from 1.
        path: path as written; empty for an anchor of the same page.
        anchor: part behind ``#``; empty without one.
    """

    line: int
    path: str
    anchor: str


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Yields number and text of each line outside code blocks."""
    fence = ""
    for number, line in enumerate(text.splitlines(), start=1):
        mark = _FENCE.match(line)
        if mark and fence in ("", mark.group(1)):
            fence = "" if fence else mark.group(1)
        elif not fence:
            yield number, line


def links(text: str) -> Iterator[Link]:
    """Yields the links of a page, without those to other sites."""
    for number, line in prose(text):
        for match in _LINK.finditer(_without_spans(line)):
            target = match.group(2)
            if not _ELSEWHERE.match(target):
                path, _, anchor = target.partition("#")
                yield Link(number, path, anchor)


def with_links(text: str, replace: Callable[[str], str]) -> str:
    """Returns a page with the path of each of its ``links`` replaced; anchors stay."""
    lines = text.splitlines()
    for number, line in prose(text):
        pieces, done = [], 0
        for match in _LINK.finditer(_without_spans(line)):
            path, mark, anchor = match.group(2).partition("#")
            if path and not _ELSEWHERE.match(path):
                start, end = match.span(2)
                pieces += [line[done:start], replace(path), mark, anchor]
                done = end
        lines[number - 1] = "".join([*pieces, line[done:]])
    return "\n".join(lines) + "\n"


def anchors(text: str) -> set[str]:
    """Returns the anchors of a page's headings."""
    found: set[str] = set()
    for _, line in prose(text):
        if heading := _HEADING.match(line):
            anchor = base = slug(heading.group(1))
            count = 0
            while anchor in found:
                count += 1
                anchor = f"{base}_{count}"
            found.add(anchor)
    return found


def slug(heading: str) -> str:
    """Returns the anchor of a heading, as Python-Markdown makes it."""
    plain = _LINK.sub(r"\1", heading)
    ascii_only = unicodedata.normalize("NFKD", plain).encode("ascii", "ignore").decode("ascii")
    words = re.sub(r"[^\w\s-]", "", ascii_only).strip().lower()
    return re.sub(r"[-\s]+", "-", words)


def named(page: str, path: str) -> str:
    """Returns the repository path that a link names.

    Args:
        page: repository path of the page with the link.
        path: path of the link, relative to the page.
    """
    return normpath(str(PurePosixPath(page).parent / path))


def _without_spans(line: str) -> str:
    """Returns the line with the content of code spans blanked, so that positions stay."""
    return _SPAN.sub(lambda match: "\0" * len(match.group(0)), line)

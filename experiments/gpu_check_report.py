"""Report of `make gpu-check`: as JSON, and as a table in docs/gpu.md."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ekya.system.files import write_text_atomic

WORDS: Mapping[bool | None, str] = {True: "yes", False: "**no**", None: "not measured"}

_HERE = f"{Path(__file__).resolve().parents[1]}/"
"""Folder of this tree, which is left out of the paths that are told."""

BEGIN, END = "<!-- gpu-check: begin -->", "<!-- gpu-check: end -->"


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check.

    Attributes:
        name: a few words.
        expected: text for people.
        measured: text for people, with units; or the reason why it could not be measured.
        met: whether the expectation is met; None if not measured, since this machine lacks something.
        figures: the numbers behind it, with units in their names.
        took_s: from the beginning of its check.
    """

    name: str
    expected: str
    measured: str
    met: bool | None
    figures: Mapping[str, object] = field(default_factory=dict)
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Machine:
    """Machine that was measured.

    Attributes:
        gpu: the maker's name.
        driver, torch: versions, as they report them.
        when: the day, as YYYY-MM-DD.
    """

    gpu: str
    driver: str
    torch: str
    when: str

    def __str__(self) -> str:
        """Formats it as one line."""
        return f"{self.gpu}, driver for CUDA {self.driver}, torch {self.torch}, {self.when}"


def as_json(machine: Machine, findings: Sequence[Finding]) -> str:
    """Returns the whole report as JSON."""
    document = {"machine": asdict(machine), "findings": [asdict(finding) for finding in findings]}
    return json.dumps(document, indent=1, ensure_ascii=False).replace(_HERE, "") + "\n"


def as_table(machine: Machine, findings: Sequence[Finding]) -> str:
    """Returns the count of findings, and those that are not as expected as a table, for docs/gpu.md."""
    count = Counter(finding.met for finding in findings)
    missing = f", {count[None]} not measured" if count[None] else ""
    lines = [f"Measured on {machine}; {count[True]} of {len(findings)} as expected{missing}."]
    cells = [(one.name, one.expected, one.measured, WORDS[one.met]) for one in findings if not one.met]
    if cells:
        lines += ["", "| what | expected | measured | met |", "|---|---|---|---|"]
        lines += [f"| {' | '.join(map(_cell, row))} |" for row in cells]
    return "\n".join(lines)


def write_up(machine: Machine, findings: Sequence[Finding], document: Path, page: Path) -> None:
    """Writes the document, and the page's table between its two marks.

    Raises:
        ValueError: the page lacks one of the marks.
    """
    write_text_atomic(document, as_json(machine, findings))
    text = page.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page}: the marks {BEGIN} and {END} are missing")
    write_text_atomic(page, f"{before}{BEGIN}\n{as_table(machine, findings)}\n{END}{after}")


def _cell(text: str) -> str:
    return text.replace(_HERE, "").replace("|", "\\|").replace("\n", " ")

"""Writes the numbers of the last runs into docs/results.md, so that text and figures always agree.

    python experiments/write_up.py

The text between `<!-- figure7 -->` and `<!-- end -->` is generated from `results/figure7_paper.csv`: the
paper's numbers with ours beside them. With `<!-- figure7 without: worst; 0.6 GPUs -->` the rows whose first
cell has one of these words are left out. The rest of the page is written by hand.
"""

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from recipe import RESULTS, run

from ekya.core.errors import UserError
from ekya.system.files import user_errors, write_text_atomic

PAGE = Path(__file__).resolve().parents[1] / "docs/results.md"
_PLACE = re.compile(r"<!-- (\w+)( without: (.*?))? -->\n.*?<!-- end -->", re.DOTALL)


def table(path: Path, without: Sequence[str] = ()) -> str:
    """Returns a CSV as a Markdown table, without the rows whose first cell has one of some words.

    Raises:
        UserError: the recipe has not been run yet.
    """
    with user_errors(path), path.open(newline="", encoding="utf-8") as file:
        head, *rows = list(csv.reader(file))
    shown = [row for row in rows if not any(words in row[0] for words in without)]
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *shown]
    return "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines)


def filled(page: str, results: Path) -> str:
    """Returns the page with every table filled from the results."""

    def fill(place: re.Match[str]) -> str:
        name, mark, words = place.groups(default="")
        without = [one.strip() for one in words.split(";") if one.strip()]
        rows = table(results / f"{name}_paper.csv", without)
        return f"<!-- {name}{mark} -->\n{rows}\n<!-- end -->"

    return _PLACE.sub(fill, page)


def main(
    results: Annotated[Path, typer.Option(help="Where the recipes left their CSVs.")] = RESULTS,
    page: Annotated[Path, typer.Option(help="What is written.")] = PAGE,
) -> None:
    """Write the numbers of the last runs into docs/results.md."""
    if not page.is_file():
        raise UserError(f"{page}: there is no such page; name one with --page")
    write_text_atomic(page, filled(page.read_text(encoding="utf-8"), results))


if __name__ == "__main__":
    run(main, "python experiments/write_up.py")

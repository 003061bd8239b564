"""Puts the numbers of the last runs into docs/results.md, so that text and figures never disagree.

    python experiments/write_up.py

Between `<!-- figure7 -->` and `<!-- end -->` stands what `results/figure7_paper.csv` says: the paper's
numbers with ours beside them. The rest of the page is written by hand.
"""

import csv
import re
from pathlib import Path
from typing import Annotated

import typer
from recipe import RESULTS, run

from ekya.errors import UserError
from ekya.files import user_errors, write_text_atomic

PAGE = Path(__file__).resolve().parents[1] / "docs/results.md"
_PLACE = re.compile(r"<!-- (\w+) -->\n.*?<!-- end -->", re.DOTALL)


def table(path: Path) -> str:
    """A CSV as a Markdown table.

    Raises:
        UserError: the recipe has not been run yet.
    """
    with user_errors(path), path.open(newline="", encoding="utf-8") as file:
        head, *rows = list(csv.reader(file))
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines)


def filled(page: str, results: Path) -> str:
    """The page with every table as the results have it."""

    def fill(place: re.Match[str]) -> str:
        name = place.group(1)
        return f"<!-- {name} -->\n{table(results / f'{name}_paper.csv')}\n<!-- end -->"

    return _PLACE.sub(fill, page)


def main(
    results: Annotated[Path, typer.Option(help="Where the recipes left their CSVs.")] = RESULTS,
    page: Annotated[Path, typer.Option(help="What is written.")] = PAGE,
) -> None:
    """Put the numbers of the last runs into docs/results.md."""
    if not page.is_file():
        raise UserError(f"{page}: there is no such page; name one with --page")
    write_text_atomic(page, filled(page.read_text(encoding="utf-8"), results))


if __name__ == "__main__":
    run(main, "python experiments/write_up.py")

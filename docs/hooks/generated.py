"""Parts of pages that are generated from the code and from results of experiments, by name.

A page has such a part between ``<!-- generated: NAME -->`` and ``<!-- end of NAME -->``, so that it can be
read in the repository; ``make reference`` writes it anew. ``<!-- results: figure7 -->`` is in the place of
the table of ``experiments/results/figure7_paper.csv``: the paper's numbers with ours beside them. With
``<!-- results: figure7 without: worst; 0.6 GPUs -->`` the rows whose first cell has one of these words are
left out. All that the documentation imports from Ekya is imported here.
"""

import csv
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import api_page
import cli_page
import metrics_page
import python_page
import settings_page
from page_text import table
from settings_page import Section
from typer.main import get_command

import ekya
from ekya.cli import app
from ekya.config.fleet_file import OPEN, FleetConfig
from ekya.fleet.run.stores.folder_store import StoresFile
from ekya.fleet.servers_file import ServersSpec
from ekya.runtime.driver.observers import RunMetrics
from ekya.service.http.routes import ROUTES
from ekya.service.metrics import METRICS
from ekya.service.monitoring_files import ALERTS

PLACE = re.compile(r"^<!-- generated: ([\w-]+) -->$(?:.*?^<!-- end of \1 -->$)?", re.MULTILINE | re.DOTALL)
RESULTS_PLACE = re.compile(r"^<!-- results: (\w+)(?: without: (.*))? -->$", re.MULTILINE)
RESULTS = Path(__file__).resolve().parents[2] / "experiments/results"


def fleet_file() -> tuple[Section, ...]:
    """Returns the sections of the fleet file."""
    return settings_page.sections_of(FleetConfig, frozenset(OPEN))


def servers_file() -> tuple[Section, ...]:
    """Returns the sections of the servers file."""
    return settings_page.sections_of(ServersSpec)


def stores_file() -> tuple[Section, ...]:
    """Returns the sections of the stores file."""
    return settings_page.sections_of(StoresFile)


PARTS: Mapping[str, Callable[[], str]] = {
    "fleet-file": lambda: settings_page.page(fleet_file()),
    "servers-file": lambda: settings_page.page(servers_file()),
    "stores-file": lambda: settings_page.page(stores_file()),
    "cli": lambda: cli_page.page(get_command(app), "ekya"),
    "python": lambda: python_page.page(
        {name: getattr(ekya, name) for name in ekya.__all__ if name != "__version__"}
    ),
    "api": lambda: api_page.page(ROUTES),
    "metrics": lambda: metrics_page.page(metrics_page.metrics_of(RunMetrics())),
    "service-metrics": lambda: metrics_page.service_page(METRICS),
    "service-alerts": lambda: metrics_page.alerts_page(ALERTS),
}
"""Each generated part."""


def results_table(name: str, without: str | None) -> str:
    """Returns the table of a recipe's numbers, without the rows whose first cell has one of some words.

    Raises:
        FileNotFoundError: no recipe has left a table of this name.
    """
    with (RESULTS / f"{name}_paper.csv").open(newline="", encoding="utf-8") as file:
        head, *rows = csv.reader(file)
    left_out = [words.strip() for words in (without or "").split(";") if words.strip()]
    return table(head, (row for row in rows if not any(words in row[0] for words in left_out)))


def with_parts(markdown: str) -> str:
    """Returns a page with its generated parts, but without results, as it stands in the repository.

    Raises:
        KeyError: the page names a part that does not exist.
    """

    def part(place: re.Match[str]) -> str:
        name = place.group(1)
        return f"<!-- generated: {name} -->\n\n{PARTS[name]().strip()}\n\n<!-- end of {name} -->"

    return PLACE.sub(part, markdown)


def filled(markdown: str) -> str:
    """Returns a page with its generated parts.

    Raises:
        KeyError: the page names a part that does not exist.
        FileNotFoundError: it names results that do not exist.
    """
    markdown = with_parts(markdown)
    return RESULTS_PLACE.sub(lambda place: results_table(*place.groups()), markdown)


if __name__ == "__main__":
    for file in sorted(RESULTS.parents[1].joinpath("docs").rglob("*.md")):
        text = file.read_text(encoding="utf-8")
        if (new := with_parts(text)) != text:
            file.write_text(new, encoding="utf-8")

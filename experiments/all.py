"""Runs the recipes of the papers' figures one after the other, in quick form by default.

make experiments
python experiments/all.py --list
python experiments/all.py --only figure6,figure7 --trace city.parquet
python experiments/all.py --only fleet
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from recipe import RESULTS, Full, Out, Traces, run
from rich.console import Console
from rich.table import Table

from ekya.core.errors import UserError

HERE = Path(__file__).resolve().parent
TRACES = HERE / "traces"
"""Recorded traces that are shipped."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """One recipe.

    Attributes:
        name: of its results.
        shows: figure and its subject.
        quick_s: approximate duration of the quick form on one slow core, without recorded traces.
        script: file whose table has the figure of this name; empty for the file of its own name.
        traces: whether it accepts recorded traces.
        full: whether it has a larger form.
        writes: whether it accepts the folder for CSV and PNG; timing recipes only print.
        quickly: arguments of the quick form.
        always: whether it runs when no recipe is named.
    """

    name: str
    shows: str
    quick_s: int
    script: str = ""
    traces: bool = False
    full: bool = True
    writes: bool = True
    quickly: tuple[str, ...] = ()
    always: bool = True


TRACED, ANDREAS, OKITA, DEEP_EDGE = "trace_figures", "andreas_figures", "okita_figures", "deep_edge_figures"

EKYA = (
    Recipe("figure2b", "Figure 2b: continuous retraining, on the rendered city", 55),
    Recipe("figure3", "Figure 3: what configurations cost and bring", 5, TRACED, traces=True),
    Recipe("figure4", "Figure 4, Table 1: the example of two streams and three GPUs", 4, TRACED, full=False),
    Recipe("figure6", "Figure 6, Table 3: accuracy by streams, and capacity", 45, TRACED, traces=True),
    Recipe("figure7", "Figure 7: accuracy by GPUs", 150, TRACED, traces=True),
    Recipe("figure8", "Figure 8: Ekya with one half taken out", 60, TRACED, traces=True),
    Recipe("investing", "ekya beside not retraining, from few GPUs on", 60, TRACED, full=False, traces=True),
    Recipe("figure9", "Figure 9: who gets which share", 10, TRACED, traces=True),
    Recipe("figure10", "Figure 10: the quantum Δ", 15, TRACED),
    Recipe("figure11a", "Figure 11a: what estimates are worth", 60, TRACED, full=False),
    Recipe("figure11b", "Figure 11b: estimates that are off", 200, TRACED, traces=True),
    Recipe("paper_size", "Ten cameras at the paper's size: all schedulers", 60, TRACED, full=False),
    Recipe("pareto", "Uniform's two configurations", 2, TRACED, full=False, traces=True),
    Recipe("table4", "Table 4: retraining in the cloud", 10, TRACED, traces=True),
    Recipe("reuse", "Serving an old model again (§6.5)", 20, TRACED, traces=True),
    Recipe("bench_executed", "Windows carried out beside the bound, and GPUs that are saved", 60, TRACED),
    Recipe(
        "bench_scheduler",
        "How long schedulers plan, and how that grows",
        10,
        full=False,
        writes=False,
        quickly=("--size", "10x8", "--size", "100x32", "--windows", "1"),
    ),
    Recipe("gains", "What a user gains, with real training", 3000, full=False, always=False),
    Recipe(
        "drift_noticed",
        "Which changes of a scene are noticed, and false alarms",
        1500,
        full=False,
        writes=False,
        always=False,
    ),
)

FLEET = (
    Recipe("deep_edge_epochs", "Deep-Edge, Figures 10 and 11: epochs beside fairness", 60, DEEP_EDGE),
    Recipe("deep_edge_table1", "Deep-Edge, Table I: errors of its estimators", 20, DEEP_EDGE, full=False),
    Recipe("andreas_nodes", "ANDREAS, Figures 2 and 3: costs and times by nodes", 40, ANDREAS),
    Recipe("andreas_load", "ANDREAS: what the load and the price of moving do", 40, ANDREAS),
    Recipe("andreas_table3", "ANDREAS, Table III: predicted and executed cost", 5, ANDREAS),
    Recipe("okita_testbed", "Okita's Figures 4 and 5: the testbed, simulated", 10, OKITA),
    Recipe("okita_ratio", "Okita's Figures 7 and 8: cost over the offline optimum's", 60, OKITA),
    Recipe("okita_costs", "Okita's Figures 9, 10 and 14: total cost", 90, OKITA),
    Recipe("okita_weights", "Okita's Figures 11 and 12: factors of its metrics", 25, OKITA),
    Recipe("okita_time", "Okita's Figure 13: time of a whole run", 25, OKITA),
    Recipe("fleet_servers", "Servers that lend each other shares", 120, full=False, writes=False),
    Recipe(
        "fleet_live",
        "Two live servers, one of which has too much to do; nothing else should run",
        600,
        full=False,
        writes=False,
        always=False,
    ),
)

GROUPS = {"ekya": EKYA, "fleet": FLEET}
"""Recipes by group name."""

RECIPES = EKYA + FLEET


def command(recipe: Recipe, full: bool, traces: Sequence[Path], out: Path) -> list[str]:
    """Returns the command line of a recipe."""
    words = [sys.executable, str(HERE / f"{recipe.script or recipe.name}.py")]
    if recipe.script:
        words.append(recipe.name)
    if recipe.writes:
        words += ["--out", str(out)]
    if not full:
        words += recipe.quickly
    elif recipe.full:
        words.append("--full")
    if recipe.traces:
        words += [word for path in traces for word in ("--trace", str(path))]
    return words


def chosen(only: str | None) -> tuple[Recipe, ...]:
    """Returns the recipes of these names and groups, in the order of the papers.

    Raises:
        UserError: a name is unknown.
    """
    if only is None:
        return tuple(recipe for recipe in RECIPES if recipe.always)
    words = set(only.split(","))
    if missing := sorted(words - {recipe.name for recipe in RECIPES} - GROUPS.keys()):
        raise UserError(f"--only: there is no recipe or group {missing[0]!r}; --list names them")
    names = words | {recipe.name for group in words & GROUPS.keys() for recipe in GROUPS[group]}
    return tuple(recipe for recipe in RECIPES if recipe.name in names)


def listed() -> Table:
    """Returns a table of all recipes."""
    table = Table("group", "recipe", "shows", title="Recipes, and seconds in quick form")
    table.add_column("s", justify="right")
    for group, recipes in GROUPS.items():
        for recipe in recipes:
            shows = recipe.shows if recipe.always else f"{recipe.shows} (only where it is named)"
            table.add_row(group, recipe.name, shows, str(recipe.quick_s))
        table.add_section()
    return table


def main(
    full: Full = False,
    trace: Traces = None,
    only: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="These recipes or groups alone.")
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="Say which there are, and run none.")] = False,
    out: Out = RESULTS,
) -> None:
    """Run the recipes of the papers' figures."""
    console = Console()
    if show_list:
        console.print(listed())
        return
    recipes, traces = chosen(only), trace or sorted(TRACES.glob("*.parquet"))
    # One thread each: results and times must not depend on the number of cores.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    began = time.monotonic()
    for place, recipe in enumerate(recipes, start=1):
        console.rule(f"{place} of {len(recipes)}: {recipe.shows}", align="left")
        started = time.monotonic()
        done = subprocess.run(command(recipe, full, traces, out), env=environment, check=False)
        if done.returncode:
            sys.exit(done.returncode)
        console.print(f"{recipe.name}: {time.monotonic() - started:.0f} s", highlight=False)
    console.rule(f"{len(recipes)} recipes in {time.monotonic() - began:.0f} s; {out}", align="left")


if __name__ == "__main__":
    run(main, "python experiments/all.py --list", "python experiments/all.py --only fleet,figure6 --full")

"""Shared parts of the recipes of the paper's figures: options, progress and the report of results."""

import csv
import io
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, MultipleLocator, PercentFormatter
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ekya.cli.command import Output, open_output
from ekya.core.errors import UserError
from ekya.results.report.themes import LIGHT
from ekya.system.files import atomic_path, user_errors, write_text_atomic

RESULTS = Path(__file__).resolve().parent / "results"
USER_ERROR, STOPPED = 2, 130

Full = Annotated[bool, typer.Option("--full", help="The paper's size instead of a quick look.")]
Seed = Annotated[int, typer.Option(min=0, help="Of everything that is drawn.")]
Out = Annotated[Path, typer.Option(metavar="FOLDER", help="Where the CSV and the PNG go.")]
Json = Annotated[
    str | None,
    typer.Option(
        "--json", metavar="FILE", help="Also write it all as JSON; - is standard output, and then only that."
    ),
]
Traces = Annotated[
    list[Path] | None,
    typer.Option(
        "--trace",
        metavar="FILE",
        help="A recorded trace to play as well, as often as there are traces. "
        "`ekya profile --out city.parquet` records one; its file's name is the name it has in the figure.",
    ),
]

_WIDTH = 190
"""Characters in a line under a figure that is eleven inches wide, and in a table that goes to a file."""

_BELOW_AXES = 0.46
"""Inches for ticks and the name of an axis."""


@dataclass(frozen=True, slots=True)
class Beside:
    """One of the paper's numbers, with ours beside it.

    Attributes:
        what: quantity, with its unit.
        paper: the paper's number; empty where it has none.
        ours: by data.
        below: whether it is also printed below the figure, if the paper has a number.
    """

    what: str
    paper: str
    ours: Mapping[str, str]
    below: bool = True


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of a recipe.

    Attributes:
        name: of its files, for example ``figure7``.
        title: one line.
        rows: the table behind the figure; the same keys in each.
        beside: the paper's numbers and ours.
        why: why they differ, in one sentence.
        figure: the drawing, its lowest part left free by ``new_figure``.
        more: further values for the JSON.
    """

    name: str
    title: str
    rows: Sequence[Mapping[str, Any]]
    beside: Sequence[Beside]
    why: str
    figure: Figure
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def data(self) -> list[str]:
        """Names of the data of our numbers."""
        return list(dict.fromkeys(data for one in self.beside for data in one.ours))


@dataclass(frozen=True, slots=True)
class Channel:
    """Output of a recipe: progress, and the result."""

    console: Console
    out: Path
    _report: Callable[[Mapping[str, object]], None]

    @contextmanager
    def steps(self, what: str, total: int | None) -> Iterator[Callable[[], None]]:
        """Shows a progress bar on a terminal; call the yielded function once for each step.

        ``total`` is None where the number of steps is unknown.
        """
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        shown = self.console.is_terminal
        with Progress(*columns, console=self.console, disable=not shown, transient=True) as bars:
            task = bars.add_task(what, total=total)
            yield lambda: bars.advance(task)

    def publish(self, found: Finding) -> None:
        """Writes the CSVs, the PNG and the JSON, and prints the paper's numbers beside ours.

        Raises:
            UserError: full disk, no permission and the like.
        """
        with user_errors(self.out):
            self.out.mkdir(parents=True, exist_ok=True)
        write_text_atomic(self.out / f"{found.name}.csv", as_csv(found.rows))
        write_text_atomic(self.out / f"{found.name}_paper.csv", as_csv(beside_rows(found)))
        _sign(found)
        with atomic_path(self.out / f"{found.name}.png") as temporary:
            # Without the library's version, so that equal results give equal files.
            found.figure.savefig(temporary, format="png", dpi=120, metadata={"Software": None})
        self._report(
            {
                "recipe": found.name,
                "title": found.title,
                "rows": [dict(row) for row in found.rows],
                "paper": beside_rows(found),
                "why": found.why,
                **found.more,
            }
        )
        self.console.print(_table(found))
        self.console.print(found.why, highlight=False)
        self.console.print(f"{self.out / found.name}.csv, .png", highlight=False, soft_wrap=True)


@contextmanager
def channel(json_to: str | None, out: Path) -> Iterator[Channel]:
    """Opens the output of a recipe."""
    with open_output(json_to) as ready:
        yield Channel(ready.console, out, ready.write_json)


def run(recipe: Callable[..., None], *examples: str) -> None:
    """Runs the recipe as a command; exits with 2 on an error that the user can correct."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(epilog="\n\n".join(("Examples:", *examples)))(recipe)
    try:
        app()
    except UserError as error:
        sys.stderr.write(f"{' '.join(str(error).split())}\n")
        sys.exit(USER_ERROR)
    except KeyboardInterrupt:
        sys.exit(STOPPED)


def publish_rows(
    told: Output,
    title: str,
    rows: Sequence[Any],
    csv_at: Path | None = None,
    forms: Mapping[str, str] | None = None,
    **more: object,
) -> None:
    """Writes rows as CSV and as JSON, and prints them as a table.

    Args:
        told: where they are printed, and reported as ``rows``.
        title: of the table.
        rows: mappings, or dataclasses of plain values, the same in each.
        csv_at: file; None writes none.
        forms: how numbers of a column are printed, for example ``{"accuracy": ".1%"}``.
        more: further values for the JSON.
    """
    every = [row if isinstance(row, Mapping) else asdict(row) for row in rows]
    told.write_json({"rows": every, **more})
    if csv_at is not None:
        csv_at.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomic(csv_at, as_csv(every))
    print_rows(told.console, title, every, forms)


def print_rows(
    console: Console, title: str, rows: Sequence[Mapping[str, Any]], forms: Mapping[str, str] | None = None
) -> None:
    """Prints rows as a table; see ``publish_rows``."""
    if not console.is_terminal:
        # A file has no width, and rich would take 80 characters.
        console.width = _WIDTH
    console.print(_table_of_rows(title, rows, forms or {}))


def _table_of_rows(title: str, rows: Sequence[Mapping[str, Any]], forms: Mapping[str, str]) -> Table:
    """Returns a table with a column for each key that differs between rows; the others stand below it."""

    def cell(key: str, value: object) -> str:
        if value is None or isinstance(value, bool):
            return {None: "-", True: "yes", False: "no"}[value]
        form = forms.get(key, ".4g" if isinstance(value, float) else "")
        return format(value, form) if isinstance(value, int | float) else str(value)

    keys = list(rows[0]) if rows else []
    # What is the same in all rows stands below the table, and leaves its width to the rest.
    same = [key for key in keys if len(rows) > 2 and len({cell(key, row[key]) for row in rows}) == 1]
    same = [] if len(same) == len(keys) else same
    told = ", ".join(f"{key.replace('_', ' ')} {cell(key, rows[0][key])}" for key in same)
    table = Table(
        title=title,
        title_justify="left",
        caption=escape(told) or None,
        caption_justify="left",
        box=SIMPLE_HEAD,
    )
    for key in keys:
        words = any(isinstance(row[key], str) for row in rows)
        if key not in same:
            table.add_column(key.replace("_", " "), justify="left" if words else "right")
    for row in rows:
        table.add_row(*(cell(key, value) for key, value in row.items() if key not in same))
    return table


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns the rows as CSV, with four decimals."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow(
            {key: f"{value:.4f}" if isinstance(value, float) else value for key, value in row.items()}
        )
    return text.getvalue()


def beside_rows(found: Finding) -> list[dict[str, str]]:
    """Returns the paper's numbers and ours, a column for each data."""
    return [
        {"what": one.what, "paper": one.paper, **{data: one.ours.get(data, "") for data in found.data}}
        for one in found.beside
    ]


def percent(value: float) -> str:
    """Formats as ``73.1%``."""
    return f"{100 * value:.1f}%"


def points(value: float) -> str:
    """Formats as ``+2.5 points``."""
    return f"{100 * value:+.1f} points"


def new_figure(
    panels_wide: int, panels_high: int, panel_height: float = 2.9, foot: float = 1.7, **subplots: Any
) -> Any:
    """Returns a figure eleven inches wide, and its axes as a list of rows.

    Space above and below is left for the text of ``Channel.publish``; ``foot`` is the space below, in inches.
    """
    head = 0.5
    height = head + foot + panels_high * panel_height
    figure = Figure(figsize=(11.0, height), facecolor=LIGHT.page)
    FigureCanvasAgg(figure)
    axes = figure.subplots(panels_high, panels_wide, squeeze=False, **subplots)
    figure.subplots_adjust(
        left=0.075,
        right=0.985,
        top=1 - (head + 0.25) / height,
        bottom=foot / height,
        wspace=0.18,
        hspace=0.3,
    )
    for one in axes.flat:
        quiet(one)
    return figure, axes


def quiet(axes: Axes) -> None:
    """Styles the axes with thin lines, as in the report's figures."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(LIGHT.line)
    axes.tick_params(colors=LIGHT.quiet, labelsize=8.5, length=0)
    axes.grid(color=LIGHT.line, linewidth=0.7)
    axes.set_axisbelow(True)


def name_axes(axes: Axes, title: str = "", x: str = "", y: str = "", size: float = 9) -> None:
    """Writes the title of a panel and the names of its axes, where they are given."""
    if title:
        axes.set_title(title, fontsize=size, loc="left", color=LIGHT.ink)
    if x:
        axes.set_xlabel(x, fontsize=size, color=LIGHT.ink)
    if y:
        axes.set_ylabel(y, fontsize=size, color=LIGHT.ink)


def draw_parts(axes: Axes, values: Iterable[float], **style: Any) -> None:
    """Draws the part of the values that are at most x, as steps."""
    ordered = np.sort(list(values))
    axes.step(ordered, np.arange(1, len(ordered) + 1) / len(ordered), where="post", **style)


def accuracy_axis(axes: Axes, label: str = "accuracy") -> None:
    """Labels parts of one as whole percent, each once; called when all is drawn."""
    low, high = axes.get_ylim()
    # Left to itself, a short axis has a label for every half a percent.
    narrow = high - low < 9 * 0.01
    axes.yaxis.set_major_locator(
        MultipleLocator(0.01) if narrow else MaxNLocator("auto", steps=[1, 2, 5, 10])
    )
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    if label:
        axes.set_ylabel(label, color=LIGHT.ink, fontsize=9.5)


def paper_line(axes: Axes, accuracy: float, text: str, right: bool = False) -> None:
    """Draws one of the paper's numbers as a line across, named at its left end or at its right one."""
    axes.axhline(accuracy, color=LIGHT.ink, linewidth=1.0, linestyle=(0, (2, 2)), zorder=1)
    axes.annotate(
        text,
        (float(right), accuracy),
        xycoords=("axes fraction", "data"),
        xytext=(-4 if right else 4, 3),
        ha="right" if right else "left",
        textcoords="offset points",
        fontsize=8,
        color=LIGHT.ink,
        bbox={"facecolor": LIGHT.page, "edgecolor": "none", "pad": 0.6, "alpha": 0.75},
    )


def paper_mark(axes: Axes, x: float, y: float, marker: str) -> None:
    """Marks one of the paper's numbers on a bar with a short line; the first mark names it for the legend.

    ``marker`` is ``_`` on a vertical bar and ``|`` on a horizontal one.
    """
    named = "paper" in axes.get_legend_handles_labels()[1]
    axes.plot(
        x, y, marker, color=LIGHT.ink, markersize=17, markeredgewidth=1.8, label=None if named else "paper"
    )


def legend(figure: Figure, axes: Axes, columns: int = 8) -> None:
    """Draws one legend for all panels, between them and the text below."""
    handles, labels = axes.get_legend_handles_labels()
    foot = figure.subplotpars.bottom - _BELOW_AXES / figure.get_figheight()
    figure.legend(
        handles,
        labels,
        loc="upper left",
        bbox_to_anchor=(0.065, foot),
        ncols=min(columns, len(handles)),
        frameon=False,
        fontsize=8.5,
        columnspacing=1.3,
        handlelength=1.7,
    )


def _sign(found: Finding) -> None:
    """Writes the title above, and below the paper's numbers beside ours and the reason why they differ."""
    height = found.figure.get_figheight()
    found.figure.text(
        0.012, 1 - 0.22 / height, found.title, color=LIGHT.ink, fontsize=12.5, fontweight="bold", va="center"
    )
    words = " · ".join(
        f"{one.what}: paper {one.paper}, {', '.join(f'{data} {value}' for data, value in one.ours.items())}"
        for one in found.beside
        if one.paper and one.below
    )
    lines = [*textwrap.wrap(words, _WIDTH), *textwrap.wrap(found.why, _WIDTH)]
    found.figure.text(
        0.012, 0.08 / height, "\n".join(lines), color=LIGHT.quiet, fontsize=7.6, va="bottom", linespacing=1.3
    )


def _table(found: Finding) -> Table:
    table = Table(title=found.title, title_justify="left")
    table.add_column("")
    for name in ("paper", *found.data):
        table.add_column(name, justify="right")
    for row in beside_rows(found):
        table.add_row(*row.values())
    return table

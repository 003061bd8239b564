"""Figures as rows of a table of recipes, and the command that draws one of them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import typer
from matplotlib.figure import Figure
from recipe import RESULTS, Beside, Channel, Finding, Full, Json, Out, Seed, Traces, channel

from ekya.core.errors import UserError

Row = dict[str, Any]
"""One row of the table behind a figure."""

R = TypeVar("R")
"""A row of the table behind a figure: a mapping, or a dataclass of plain values."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a command asks of a figure.

    Attributes:
        full: the paper's size instead of a quick look.
        seed: of everything that is drawn.
        seeds: how many seeds; None leaves it to the figure.
        at: places on its x axis; none leaves them to the figure.
        traces: recorded ones that are played as well.
    """

    full: bool = False
    seed: int = 0
    seeds: int | None = None
    at: tuple[float, ...] = ()
    traces: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class FigureRecipe(Generic[R]):
    """A figure as a row in a table of recipes.

    Attributes:
        shows: what is played, as a command's help says it.
        title: above the figure; ``{seeds}`` is how many there are.
        play: yields the rows of the table behind it.
        beside: the paper's numbers with ours, from all rows.
        why: why they differ, in one sentence.
        draw: from all rows.
        takes: options, beside those of every figure.
    """

    shows: str
    title: str
    play: Callable[[Asked], Iterator[R]]
    beside: Callable[[Sequence[R]], Iterable[Beside]]
    why: str
    draw: Callable[[Sequence[R]], Figure]
    takes: tuple[str, ...] = ()

    def find(self, name: str, asked: Asked, told: Channel) -> Finding:
        """Plays it, and returns the table, the figure and the paper's numbers beside ours."""
        rows: list[R] = []
        with told.steps(self.shows, None) as step:
            for row in self.play(asked):
                rows.append(row)
                step()
        table = [row if isinstance(row, Mapping) else asdict(row) for row in rows]
        title = self.title.format(seeds=len({row.get("seed") for row in table}))
        return Finding(name, title, table, list(self.beside(rows)), self.why, self.draw(rows))


def command_of(figures: Mapping[str, FigureRecipe[Any]], about: str) -> Callable[..., None]:
    """Returns the command that draws the figure whose name it is given."""

    def draw(
        name: Annotated[str, typer.Argument(metavar="FIGURE", help=f"One of {', '.join(figures)}.")],
        full: Full = False,
        trace: Traces = None,
        seed: Seed = 0,
        seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds.")] = None,
        at: Annotated[str, typer.Option(metavar="X,...", help="Places on the x axis.")] = "",
        json_to: Json = None,
        out: Out = RESULTS,
    ) -> None:
        figure = figures.get(name)
        if figure is None:
            raise UserError(f"FIGURE: there is no {name!r}; choose from {', '.join(figures)}")
        given = {"trace": trace, "seed": seed, "seeds": seeds, "at": at}
        for option in (one for one, value in given.items() if value and one not in figure.takes):
            raise UserError(f"--{option}: {name} does not take it; leave it out")
        try:
            places = tuple(float(place) for place in at.split(",") if place)
        except ValueError:
            raise UserError(f"--at: {at!r} is no list of numbers; write it as 10,20,30") from None
        if not all(place > 0 for place in places):
            raise UserError(f"--at: {at!r} has a number that is not above 0")
        with channel(json_to, out) as told:
            told.publish(figure.find(name, Asked(full, seed, seeds, places, tuple(trace or ())), told))

    draw.__doc__ = about
    return draw


def rows_where(rows: Sequence[Row], **columns: Any) -> list[Row]:
    """Returns the rows with these values."""
    return [row for row in rows if all(row[name] == value for name, value in columns.items())]


def row_where(rows: Sequence[Row], **columns: Any) -> Row:
    """Returns the first row with these values."""
    return rows_where(rows, **columns)[0]

"""Worth of kept models where a scene returns: how soon one serves, and how right it is.

    ekya run datasets/synthetic_city/fleet_return.yaml --clock virtual --seed 1 --name kept
    python experiments/zoo_return.py runs/kept
    python experiments/zoo_return.py runs/kept-31 runs/kept-32 --without runs/none-31 --without runs/none-32

Of each camera whose rendered scene returns in a run: the time from the return until it is noticed, from the
first labels after it until a kept model serves, and the accuracy in the first ten seconds, beside that in the
last ten seconds before the scene was left and of the same time in a run without kept models (``--without``).

Labelled objects count here, unlike in a run's summary: after a drift most of the few objects are labelled,
and none was before it was first answered.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer
from recipe import Json, as_csv, percent, run
from rich.table import Table

from ekya.cli.output import output
from ekya.config.fleet_file import FleetConfig
from ekya.config.fleet_reading import load_fleet
from ekya.core import events as ev
from ekya.core.errors import UserError
from ekya.core.records import NO_LABELS
from ekya.core.units import US_PER_S, StreamId
from ekya.results.finalize import scoring
from ekya.results.metrics.accuracy import ScoreSeries
from ekya.results.storage.journal import read_journal
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_tables import read_predictions, read_reference
from ekya.streams.synthetic import CitySpec
from ekya.system.files import write_text_atomic

FIRST_S = 10.0


@dataclass(frozen=True, slots=True)
class Return:
    """A scene of a stream that returns: when it was left, and when it is back, in seconds."""

    stream: StreamId
    left_s: float
    back_s: float


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements at a return.

    Attributes:
        noticed_s: from the return to the drift; None if it was not noticed.
        serves_s: from the first labels since to a kept model that serves; None without one.
        before, after: accuracy in the last seconds before the scene was left, and in the first of its return.
        without: the latter of a run without kept models.
    """

    run: str
    of: Return
    noticed_s: float | None
    serves_s: float | None
    before: float
    after: float
    without: float | None


def main(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, with kept models.")],
    without: Annotated[
        list[Path] | None,
        typer.Option(metavar="RUN", help="The same without, in the same order; once for each."),
    ] = None,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the rows as CSV.")] = None,
    json_to: Json = None,
) -> None:
    """Measure what kept models are worth where a scene returns."""
    if without and len(without) != len(runs):
        raise UserError("--without: name as many runs without kept models as with them")
    found = [
        one
        for at, path in enumerate(runs)
        for one in measured(RunFolder(path), RunFolder(without[at]) if without else None)
    ]
    if not found:
        raise UserError(f"{runs[0]}: no rendered scene returns in this run; name a run of fleet_return.yaml")
    with output(json_to) as ready:
        if csv is not None:
            write_text_atomic(csv, as_csv([_flat(one) for one in found]))
        ready.report({"returns": [asdict(one) for one in found]})
        ready.console.print(_table(found))
        before, after = fmean(one.before for one in found), fmean(one.after for one in found)
        ready.console.print(
            f"mean: {percent(before)} before, {percent(after)} after: {percent(after / before)} of it"
        )


def returns(fleet: FleetConfig) -> Iterator[Return]:
    """Yields the scenes that return in a fleet's rendered streams."""
    for stream in fleet.streams:
        if not isinstance(stream.source, CitySpec):
            continue
        scenes = stream.source.scenes
        for at, scene in enumerate(scenes):
            for earlier in range(at - 1):
                if scenes[earlier] == scene.model_copy(update={"at_s": scenes[earlier].at_s}):
                    yield Return(stream.id, scenes[earlier + 1].at_s, scene.at_s)


def measured(kept: RunFolder, without: RunFolder | None) -> Iterator[Measured]:
    """Yields what happened at each return of a run, beside a run without kept models."""
    fleet = load_fleet(kept.fleet)
    folders = [kept] if without is None else [kept, without]
    series = [_series(folder, fleet) for folder in folders]
    _, _, steps = read_journal(kept.journal)
    events = [event for step in steps for event in step.events]
    for of in returns(fleet):
        own = [event for event in events if getattr(event, "stream", None) == of.stream]
        own = [event for event in own if event.t_us >= of.back_s * US_PER_S]
        after = [accuracy(one[of.stream], of.back_s, of.back_s + FIRST_S) for one in series]
        yield Measured(
            kept.name,
            of,
            _first_s(own, ev.DriftDetected, of.back_s),
            _serves_s(own),
            accuracy(series[0][of.stream], of.left_s - FIRST_S, of.left_s),
            after[0],
            after[1] if without is not None else None,
        )


def accuracy(series: ScoreSeries, from_s: float, until_s: float) -> float:
    """Returns the accuracy over whole seconds; 0.0 without any object."""
    within = (series.start_us >= from_s * US_PER_S) & (series.start_us < until_s * US_PER_S)
    return float(series.correct[within].sum() / max(int(series.counted[within].sum()), 1))


def _flat(one: Measured) -> dict[str, Any]:
    row = asdict(one)
    return {"run": row.pop("run"), **row.pop("of"), **row}


def _series(folder: RunFolder, fleet: FleetConfig) -> dict[StreamId, ScoreSeries]:
    score = scoring(fleet)
    return {
        one.id: score(
            read_predictions(folder.predictions(one.id)),
            read_reference(folder.reference(one.id)),
            NO_LABELS,
            decoded=0,
        ).series
        for one in fleet.streams
    }


def _first_s(events: Sequence[ev.Event], kind: type[ev.Event], since_s: float) -> float | None:
    return next((event.t_us / US_PER_S - since_s for event in events if isinstance(event, kind)), None)


def _serves_s(events: Sequence[ev.Event]) -> float | None:
    """Returns the time from the first labels of the drift to the first kept model that serves."""
    labels = [event for event in events if isinstance(event, ev.LabelsReady) and event.since_us is not None]
    if not labels:
        return None
    return _first_s(
        [event for event in events if isinstance(event, ev.ModelAdopted) and event.kept is not None],
        ev.ModelAdopted,
        labels[0].t_us / US_PER_S,
    )


def _table(found: Sequence[Measured]) -> Table:
    table = Table(title=f"First {FIRST_S:g} s of a scene that returns", title_justify="left")
    for heading in ("run", "camera", "noticed", "serves", "before", "after", "without"):
        table.add_column(heading)

    def seconds(value: float | None) -> str:
        return "-" if value is None else f"{value:.2f} s"

    for one in found:
        rest = "-" if one.without is None else percent(one.without)
        times = seconds(one.noticed_s), seconds(one.serves_s)
        table.add_row(one.run, one.of.stream, *times, percent(one.before), percent(one.after), rest)
    return table


if __name__ == "__main__":
    run(main, "python experiments/zoo_return.py runs/kept --without runs/none")

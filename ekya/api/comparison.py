"""Comparison of schedulers on the same frames, on virtual time or live."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType

from ekya.api.fleets import Fleet
from ekya.api.playing import LOGGED, with_gpus
from ekya.api.results import Summary
from ekya.api.runnable import fit_to_card, require_credentials, require_world
from ekya.config.fleet_file import FleetConfig
from ekya.config.fleet_reading import load_fleet
from ekya.config.run_options import RunOptions
from ekya.config.scoring import Scoring
from ekya.core.errors import UserError
from ekya.core.profile import Profiler
from ekya.planning.schedulers.registry import scheduler_word
from ekya.planning.schedulers.scheduler import Scheduler
from ekya.results.metrics.accuracy import mean_or_none
from ekya.results.report.tables import compare_tables, difference_lines
from ekya.results.storage.run_folder import RunFolder, plain_name
from ekya.system.ctrl_c import remember_ctrl_c

COMPARED: tuple[str, ...] = ("ekya", "thief", "uniform", "no-retrain")
"""Schedulers that are compared where none are named."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Result of a comparison.

    Attributes:
        schedulers: their names, in the given order.
        values: as ``ekya compare --json`` writes them: ``runs``, ``mean`` and ``pairs``.
    """

    schedulers: tuple[str, ...]
    values: Mapping[str, Any]

    @property
    def runs(self) -> tuple[Summary, ...]:
        """Every run's result, on the objects that no scheduler labelled."""
        return tuple(map(Summary.from_values, self.values["runs"]))

    @property
    def mean_accuracy(self) -> Mapping[str, float | None]:
        """Mean over the seeds, by scheduler."""
        return {name: self.values["mean"][name]["mean_accuracy"] for name in self.schedulers}

    def printed_parts(self) -> list[RenderableType]:
        """Returns what is printed of it: tables of means, and sentences."""
        seeds = {run["seed"] for run in self.values["runs"]}
        return [
            *compare_tables([self._mean_of(name) for name in self.schedulers]),
            f"Means over {len(seeds)} seed{'' if len(seeds) == 1 else 's'}, on the same frames",
            *difference_lines(self.values["pairs"], self.schedulers[0]),
            *(
                f"warning of {run['scheduler']}, seed {run['seed']}: {run['adaptation']['sentence']}"
                for run in self.values["runs"]
                if run["adaptation"]["sentence"] is not None
            ),
        ]

    def _repr_html_(self) -> str:
        return html_of(self.printed_parts())

    def _mean_of(self, scheduler: str) -> Mapping[str, Any]:
        """Returns the summary of one scheduler's runs: means of accuracies, sums of counts."""
        runs = [run for run in self.values["runs"] if run["scheduler"] == scheduler]

        def mean(field: str) -> float | None:
            return mean_or_none([run[field] for run in runs])

        return {
            "task": runs[0]["task"],
            "scheduler": scheduler,
            **{field: mean(field) for field in ("mean_accuracy", "balanced_accuracy", "ap50")},
            "streams": {
                stream: {
                    "mean_accuracy": mean_or_none([run["streams"][stream]["mean_accuracy"] for run in runs])
                }
                for stream in runs[0]["streams"]
            },
            "retrainings": {
                key: sum(run["retrainings"][key] for run in runs) for key in ("started", "finished")
            },
            "frames": {"lost": sum(run["frames"]["lost"] for run in runs)},
        }


def compare(
    fleet: Fleet,
    schedulers: Sequence[str | Scheduler] = COMPARED,
    seeds: Sequence[int] = (0,),
    *,
    live: bool = False,
    gpus: float | None = None,
    card: str | Path | None = None,
    overload: bool = False,
    runs: str | Path = "runs",
    console: Console = LOGGED,
) -> Comparison:
    """Runs the same frames under several schedulers; on virtual time the result is the same every time.

    After Ctrl-C the seeds that were played to their end are compared. On virtual time a finished run of the
    same in ``runs`` is not played again, unless its scheduler is an object.

    Args:
        fleet: of recorded or rendered cameras.
        schedulers: names and objects. The first is compared with each of the others.
        seeds: one run of each scheduler for each.
        live: on Ray and the wall clock, one after the other, with the sizes that the first run has measured.
        gpus: GPUs to use, in place of the fleet's.
        card: cost card with the durations in virtual time, or the name of a shipped one, such as ``h200``.
        overload: run even where not one frame a second of each camera fits.
        runs: folder in which a folder with all runs is made.
        console: where progress is shown.

    Raises:
        UserError: the fleet cannot be run so, or a scheduler is unknown or stands there twice.
    """
    given = {scheduler_word(one): one for one in schedulers}
    if len(given) < len(schedulers):
        raise UserError("schedulers: two of them have the same name; keep one, or name one anew")
    config = with_gpus(fleet, gpus)
    for one in schedulers:
        require_world(config, one, live=live)
    if live:
        if card is not None:
            raise UserError("card: a live run plans with what it measures here; leave out --live")
        return Comparison(tuple(given), _compare_live(config, given, seeds, Path(runs), console, overload))
    # Sizes are the same for all, so they leave time for trials if any scheduler of these makes them.
    profilers = {config.with_preset(name).preparation.profiler for name in given}
    tried = Profiler.PAPER if Profiler.PAPER in profilers else config.preparation.profiler
    card = None if card is None else Path(card)
    sized = fit_to_card(
        _with_profiler(config, tried), card, console, overload=overload, gpus_asked_for=gpus is not None
    )
    # It brings torch, for which a comparison that is refused need not wait.
    from ekya.simulation.emulated.compare import compare

    options = RunOptions(runs=Path(runs), card=card)
    sized = _with_profiler(sized, config.preparation.profiler)
    return Comparison(tuple(given), compare(sized, schedulers, seeds, options))


def _compare_live(
    fleet: FleetConfig,
    schedulers: Mapping[str, str | Scheduler],
    seeds: Sequence[int],
    runs: Path,
    console: Console,
    overload: bool,
) -> dict[str, Any]:
    from ekya.pipeline.discover_classes import with_classes
    from ekya.results.comparison import compare_schedulers
    from ekya.runtime.driver.live import run_live

    require_credentials(fleet)
    fleet = with_classes(fleet)
    root, sized = runs / f"compare-{fleet.name}-live", fleet

    def play(scheduler: str, seed: int) -> Path:
        nonlocal sized
        options = RunOptions(
            scheduler=schedulers[scheduler],
            seed=seed,
            runs=root,
            name=plain_name(f"{scheduler}-seed{seed}"),
            dashboard=False,
            overload=overload,
            score=Scoring.ALL,
        )
        console.print(f"{scheduler}, seed {seed}", highlight=False, markup=False, soft_wrap=True)
        with remember_ctrl_c():
            path = run_live(sized.with_preset(scheduler), options, console)
        if sized is fleet:
            measured = load_fleet(RunFolder(path).fleet)
            sized = _with_profiler(measured, fleet.preparation.profiler)
        return path

    return compare_schedulers(fleet, tuple(schedulers), seeds, play)


def html_of(parts: Sequence[RenderableType]) -> str:
    """Returns tables and sentences as HTML, as a notebook shows them."""
    console = Console(file=io.StringIO(), record=True, width=100)
    for part in parts:
        console.print(part, highlight=False, markup=False, soft_wrap=isinstance(part, str))
    return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")


def _with_profiler(fleet: FleetConfig, profiler: Profiler) -> FleetConfig:
    preparation = fleet.preparation.model_copy(update={"profiler": profiler})
    return fleet.model_copy(update={"preparation": preparation})

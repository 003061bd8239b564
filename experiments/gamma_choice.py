"""Choosing γ against a fixed γ, on recorded traces, and where the difference comes from.

    python experiments/gamma_choice.py
    ekya profile --seed 21 --out city21.parquet
    python experiments/gamma_choice.py --trace city21.parquet --trace city22.parquet

A trace is recorded for each seed: the letters of a file's name are the data, the number at its end the seed
(0 without one). For each seed the fixed γ is the one that is best, for these data and GPUs, on the traces of
the other seeds, as an operator could have found it. The best on the shown traces themselves is known only
afterwards, and the fewer windows count, the more of its lead is luck. A fixed γ is Ekya with this γ as its
whole Γ: it tries no other family.

Without ``--trace`` those of ten cameras are played, on which nothing was tuned. The frames are the same with
each seed there, so a γ that is best on the others is nearly the best afterwards. Of the city and the video,
seeds for tuning are 0 to 5, and 0 is shipped.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer
from detect_gains import Estimate
from played import EKYA, EXACT, NO_RETRAIN, ORACLE, TEN_CAMERAS, accuracy_of, conditions
from recipe import RESULTS, Json, Out, as_csv, run
from rich.progress import track
from rich.table import Table

from ekya.cli.output import output
from ekya.cli.simulate import open_trace
from ekya.core.trace import Trace
from ekya.planning.schedulers.options import gamma_word
from ekya.planning.schedulers.registry import make_scheduler
from ekya.simulation.trace.simulate import simulate
from ekya.system.files import write_text_atomic

GPUS_PER_STREAM = (0.2, 0.4, 0.8)

FREE, EXACT_LABELS = "ekya, trials free", "ekya, every γ trained"
FIXED, HINDSIGHT, EVERY_GAMMA = "γ best on the others", "γ best here", "mean of all γ"


@dataclass(frozen=True, slots=True)
class Row:
    """Accuracy of one way to choose γ over one trace.

    Attributes:
        data, seed: of the trace.
        who: a scheduler, a way to plan with ``ekya``, or a fixed γ.
    """

    data: str
    seed: int
    gpus_per_stream: float
    who: str
    accuracy: float


def rows_of(path: Path) -> Iterator[Row]:
    """Yields the accuracy of every way to choose γ over a trace."""
    trace = open_trace(path)
    name = re.fullmatch(r"(.*?)(\d*)", path.stem)
    data, seed = (name[1].rstrip("-"), int(name[2] or 0)) if name else (path.stem, 0)
    for per_stream in GPUS_PER_STREAM:
        under = conditions(round(per_stream * len(trace.streams), 2))
        ways = {
            EKYA: (trace, EKYA, under),
            FREE: (without_cost_of_trials(trace), EKYA, under),
            EXACT_LABELS: (trace, EKYA, replace(under, error_sd=EXACT)),
            ORACLE: (trace, ORACLE, under),
            NO_RETRAIN: (trace, NO_RETRAIN, under),
        } | {
            gamma_word(gamma): (replace(trace, retrain_configs=(gamma,)), EKYA, under)
            for gamma in trace.retrain_configs
        }
        for who, (played, scheduler, conditions_of) in ways.items():
            reached = accuracy_of(simulate(played, make_scheduler(scheduler), conditions_of))
            yield Row(data, seed, per_stream, who, reached)


def without_cost_of_trials(trace: Trace) -> Trace:
    """Returns the trace with trials of γ that cost nothing."""
    return replace(
        trace,
        streams=tuple(
            replace(
                stream,
                windows=tuple(
                    replace(window, trials=tuple(replace(trial, gpu_s=0.0) for trial in window.trials))
                    for window in stream.windows
                ),
            )
            for stream in trace.streams
        ),
    )


def compared(rows: Sequence[Row]) -> dict[str, dict[int, float]]:
    """Returns accuracies by seed: of each way, of the γ chosen before and afterwards, and of all γ.

    The rows are of one data and one number of GPUs.
    """
    known: dict[str, dict[int, float]] = {}
    for row in rows:
        known.setdefault(row.who, {})[row.seed] = row.accuracy
    fixed = {who: of for who, of in known.items() if "/" in who}
    told = {who: of for who, of in known.items() if who not in fixed}
    seeds = list(told[EKYA])
    if len(seeds) > 1:
        told[FIXED] = {seed: best(fixed, [other for other in seeds if other != seed])[seed] for seed in seeds}
    told[HINDSIGHT] = {seed: best(fixed, [seed])[seed] for seed in seeds}
    told[EVERY_GAMMA] = {seed: fmean(of[seed] for of in fixed.values()) for seed in seeds}
    return told


def best(fixed: Mapping[str, Mapping[int, float]], seeds: Sequence[int]) -> Mapping[int, float]:
    """Returns the accuracies of the fixed γ that is best over these seeds."""
    return max(fixed.values(), key=lambda of: fmean(of[seed] for seed in seeds))


def table_of(rows: Sequence[Row]) -> Table:
    """Returns accuracies, and what choosing gains over each other way, with 95% intervals over seeds."""
    table = Table(title="accuracy, and points by which choosing γ is above it (95% interval over seeds)")
    for name in ("data", "GPUs a stream", "", "seeds", "accuracy", "choosing gains"):
        table.add_column(name, justify="left" if name in ("data", "") else "right", no_wrap=True)
    for data, per_stream in dict.fromkeys((row.data, row.gpus_per_stream) for row in rows):
        told = compared([row for row in rows if (row.data, row.gpus_per_stream) == (data, per_stream)])
        for who, of in told.items():
            gain = Estimate.of([told[EKYA][seed] - accuracy for seed, accuracy in of.items()])
            table.add_row(
                data,
                f"{per_stream:g}",
                who,
                str(len(of)),
                f"{fmean(of.values()):.1%}",
                "" if who == EKYA else gain.told(),
            )
    return table


def shown(rows: Sequence[Row]) -> Iterator[dict[str, str]]:
    """Yields what choosing gains over each other way, as in docs/results.md."""
    places = dict.fromkeys((row.data, row.gpus_per_stream) for row in rows)
    told = {
        (data, per_stream): compared(
            [row for row in rows if (row.data, row.gpus_per_stream) == (data, per_stream)]
        )
        for data, per_stream in places
    }
    for who in dict.fromkeys(who for of in told.values() for who in of if who != EKYA):
        cells = {"points by which choosing is above": who}
        for (data, per_stream), of in told.items():
            gains = [of[EKYA][seed] - accuracy for seed, accuracy in of.get(who, {}).items()]
            cells[f"{data}, {per_stream:g}"] = Estimate.of(gains).told() if gains else ""
        yield cells


def main(
    trace: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Recorded trace, instead of those of ten cameras; may be repeated."
        ),
    ] = None,
    out: Out = RESULTS,
    json_to: Json = None,
) -> None:
    """Compare choosing γ with fixed γ on recorded traces."""
    with output(json_to) as channel:
        rows = [
            row
            for path in track(trace or TEN_CAMERAS, "traces", console=channel.console)
            for row in rows_of(path)
        ]
        channel.console.print(table_of(rows))
        out.mkdir(parents=True, exist_ok=True)
        write_text_atomic(out / "gamma_choice.csv", as_csv([asdict(row) for row in rows]))
        write_text_atomic(out / "gamma_choice_paper.csv", as_csv(list(shown(rows))))
        channel.report({"rows": [asdict(row) for row in rows]})


if __name__ == "__main__":
    run(
        main,
        "python experiments/gamma_choice.py",
        "python experiments/gamma_choice.py --trace city21.parquet --trace city22.parquet",
    )

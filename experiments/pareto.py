"""The two configurations of the paper's uniform baseline, found on held-out streams (§6.1, Figure 3b).

    python experiments/pareto.py --generate 7
    python experiments/pareto.py profiles.parquet --held-out cam-3,cam-4
    python experiments/pareto.py profiles.parquet --json - | jq -r '.schedulers[]'

For each γ: mean GPU-seconds and mean accuracy after a retraining, over all windows of two streams that are
then never played again. The Pareto frontier holds the γ that no other γ beats in both. Config 1 is its most
accurate point, Config 2 the cheapest that is nine tenths as accurate (`experiments/optimum/pareto.py`). Both
are printed as ``ekya simulate --scheduler`` takes them, with the parts for inference of Figure 6, and the
streams that are left to play. Reads every trace that ``ekya simulate`` reads.
"""

import csv
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from optimum.pareto import (
    mean_options,
    pareto_frontier,
    pareto_points,
    uniform_baselines,
)
from optimum.problems import view_of
from rich.console import Console
from rich.table import Table

from ekya.cli.output import output
from ekya.cli.simulate import open_trace
from ekya.core.configs import RetrainConfig
from ekya.core.errors import UserError
from ekya.core.trace import Trace
from ekya.core.view import RetrainOption
from ekya.planning.schedulers.registry import uniform_word
from ekya.simulation.trace.generate import generate_trace
from ekya.system.files import atomic_path, user_errors, write_text_atomic

HELD_OUT = 2
"""Streams that the paper holds out."""

GAMMA = tuple(field.name for field in fields(RetrainConfig))
"""Columns that identify the γ of a row."""

RESULTS = Path(__file__).resolve().parent / "results"


def parted(trace: Trace, names: Sequence[str]) -> tuple[Trace, Trace]:
    """Splits a trace into the held-out streams and the others.

    Args:
        trace: all streams.
        names: of the held-out streams; empty takes the last two.

    Raises:
        UserError: a name is unknown, or no stream would be left.
    """
    there = [stream.stream for stream in trace.streams]
    held = list(names) or [str(name) for name in there[-HELD_OUT:]]
    missing = sorted(set(held) - set(there))
    if missing:
        raise UserError(f"--held-out: the trace has no {missing[0]!r}; choose from {', '.join(there)}")
    if len(set(held)) == len(there):
        raise UserError(f"--held-out: no stream of {', '.join(there)} would be left to play; hold out fewer")
    return (
        replace(trace, streams=tuple(one for one in trace.streams if one.stream in held)),
        replace(trace, streams=tuple(one for one in trace.streams if one.stream not in held)),
    )


def profiles(trace: Trace) -> Iterator[tuple[RetrainOption, ...]]:
    """Yields the outcome of every γ, for each window of each stream in which a retraining was recorded."""
    for window in range(1, trace.windows):
        for stream in view_of(trace, window, capacity_milli=1000).streams:
            if stream.retrain_options:
                yield stream.retrain_options


def found(trace: Trace, names: Sequence[str]) -> dict[str, Any]:
    """Returns the results as JSON values.

    Raises:
        UserError: see ``parted``; or no γ was tried in all of these windows.
    """
    held_out, rest = parted(trace, names)
    options = list(profiles(held_out))
    try:
        frontier = {one.config for one in pareto_frontier(options)}
        high, low = pareto_points(options)
    except ValueError as error:
        raise UserError(f"TRACE: {error}; record one with ekya profile") from error
    return {
        "held_out": [stream.stream for stream in held_out.streams],
        "streams": [stream.stream for stream in rest.streams],
        "profiles": len(options),
        "rows": [
            {
                **{key: getattr(one.config, key) for key in GAMMA},
                "gpu_s": round(one.gpu_s, 4),
                "accuracy": round(one.accuracy_after, 6),
                "pareto": one.config in frontier,
                # A γ that is both configurations is listed as Config 1.
                "config": {low: 2, high: 1}.get(one.config),
            }
            for one in sorted(mean_options(options), key=lambda one: (one.gpu_s, one.config))
        ],
        "schedulers": [uniform_word(options) for options in uniform_baselines(high, low)],
    }


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns CSV with one line for each γ."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draws Figure 3b: accuracy over GPU-seconds, the frontier as a line, the two points named."""
    figure = Figure(figsize=(6.4, 4.2))
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.plot([row["gpu_s"] for row in rows], [100 * row["accuracy"] for row in rows], "o", color="0.7")
    frontier = [row for row in rows if row["pareto"]]
    axes.plot([row["gpu_s"] for row in frontier], [100 * row["accuracy"] for row in frontier], "C0o-")
    dearest_gpu_s = max(row["gpu_s"] for row in rows)
    for row in rows:
        if row["config"]:
            axes.annotate(
                f"Config {row['config']}",
                (row["gpu_s"], 100 * row["accuracy"]),
                (0, -16),
                ha="right" if row["gpu_s"] == dearest_gpu_s else "left",
                textcoords="offset points",
            )
    axes.set(title="γ on the held-out streams", xlabel="GPU-seconds", ylabel="accuracy after, %")
    axes.grid(alpha=0.3)
    figure.tight_layout()
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120, metadata={"Software": None})


def show(console: Console, result: Mapping[str, Any]) -> None:
    """Prints the frontier and the commands to run next."""
    table = Table(
        title=f"Pareto frontier over {result['profiles']} retrainings of {' and '.join(result['held_out'])}",
        title_justify="left",
    )
    for heading in ("γ", "GPU-seconds", "accuracy", "Config"):
        table.add_column(heading, justify="left" if heading == "γ" else "right")
    for row in result["rows"]:
        if row["pareto"]:
            config = RetrainConfig(**{key: row[key] for key in GAMMA})
            table.add_row(
                config.name, f"{row['gpu_s']:.1f}", f"{row['accuracy']:.1%}", str(row["config"] or "")
            )
    console.print(table)
    console.print(
        f"Play it on the other streams with --streams {','.join(result['streams'])} "
        f"--scheduler ekya,{','.join(result['schedulers'])}",
        highlight=False,
        soft_wrap=True,
    )


def main(
    trace: Annotated[
        Path | None, typer.Argument(metavar="TRACE", help="What ekya profile recorded, or public profiles.")
    ] = None,
    generate: Annotated[
        int | None, typer.Option(min=0, metavar="SEED", help="Instead of TRACE: draw one from this seed.")
    ] = None,
    streams: Annotated[int, typer.Option(min=2, help="With --generate: how many.")] = 10,
    windows: Annotated[int, typer.Option(min=2, help="With --generate: how many.")] = 10,
    held_out: Annotated[
        str, typer.Option(metavar="NAME,...", help="Held-out streams; the last two if left out.")
    ] = "",
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder of pareto.csv and pareto.png.")
    ] = RESULTS,
    json_to: Annotated[
        str | None,
        typer.Option(
            "--json", metavar="FILE", help="Also write it all as JSON; - is stdout, and then only that."
        ),
    ] = None,
) -> None:
    """Find the two configurations that the uniform baseline fixes, on streams that are never played."""
    with output(json_to) as channel:
        if (trace is None) == (generate is None):
            raise UserError("TRACE: name a trace, or draw one with --generate SEED; one of the two")
        known = generate_trace(generate or 0, streams, windows) if trace is None else open_trace(trace)
        result = found(known, [name for name in held_out.split(",") if name])
        with user_errors(out):
            out.mkdir(parents=True, exist_ok=True)
        write_text_atomic(out / "pareto.csv", as_csv(result["rows"]))
        draw(result["rows"], out / "pareto.png")
        channel.report(result)
        show(channel.console, result)


if __name__ == "__main__":
    try:
        typer.run(main)
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)

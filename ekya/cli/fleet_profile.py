"""``ekya fleet profile``: runs Deep-Edge's Profiler on this machine."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from ekya.cli import options as opt
from ekya.cli.command import Output, command, open_bars, require_writable
from ekya.cli.options import parse_fractions, parse_integers
from ekya.core.errors import UserError
from ekya.fleet.policy.deep_edge.estimates import EdgeWork
from ekya.results.report.formatting import make_table

if TYPE_CHECKING:
    from ekya.fleet.fitting.boosted import JudgedModel
    from ekya.fleet.run.deep_edge.profiler import ProfileRun


@dataclass(frozen=True, kw_only=True)
class FleetProfileConfig:
    """Options of ``ekya fleet profile``."""

    kind: opt.MachineKind
    points: Annotated[
        Path, typer.Option(metavar="FILE", help="Data points (Parquet); those that it has are kept.")
    ]
    model: Annotated[str, typer.Option(metavar="NAME", help="Edge model that is trained.")] = "resnet18"
    side: Annotated[int, typer.Option(min=8, max=512, help="Side of the crops, in pixels.")] = 32
    blocks: Annotated[int, typer.Option(min=0, help="Blocks to train, from the model's end.")] = 1
    batches: Annotated[str, typer.Option(metavar="SAMPLES,...", help="Batch sizes.")] = "4,8,16,32"
    cpu: Annotated[
        str, typer.Option(metavar="PART,...", help="Stress of the processor, parts of one below 1.")
    ] = "0,0.25,0.5,0.75"
    mem: Annotated[
        str, typer.Option(metavar="PART,...", help="Stress of the memory, parts of one below 1.")
    ] = "0,0.1,0.2"
    hold: Annotated[str, typer.Option(metavar="PART,...", help="Shares to which the training is held.")] = "1"
    seconds: Annotated[float, typer.Option(min=0.5, help="Duration of each measurement.")] = 3.0
    shares: opt.Shares = "auto"
    json_to: opt.Json = None


@command(
    FleetProfileConfig,
    "ekya fleet profile --kind nano --points nano.parquet",
    "ekya fleet profile --kind nano --points nano.parquet --batches 8,16,32 --cpu 0,0.5 --mem 0,0.1",
    "ekya fleet profile --kind nano --points nano.parquet --hold 1,0.7,0.4 --json -",
)
def profile(config: FleetProfileConfig, output: Output) -> None:
    """Measure this machine for Deep-Edge: a training beside inference, under stress of stress-ng.

    Each combination of --batches, --cpu, --mem and --hold is a data point. After Ctrl-C, the same command
    goes on with what is missing.
    """
    from ekya.fleet.fitting.points_file import add_points, measured_models, read_points, read_tried
    from ekya.fleet.run.deep_edge.profiler import StressPoint, profiled, stress_ng
    from ekya.gpu.backends.registry import choose_backend

    run = _run_of(config)
    work, points = run.work, config.points
    require_writable("--points", points, is_read=True)
    done = read_tried(points) if points.exists() else []
    for other in {tried.work for tried in done if tried.work.kind == work.kind} - {work}:
        raise UserError(
            f"--points {points}: it has points of a {work.kind} with {other.architecture}, {other.side} "
            f"pixels and {other.trainable_blocks} trainable blocks; name another file, or profile that again"
        )
    if any(stress != StressPoint() for stress in run.points):
        stress_ng()
    chosen = choose_backend(config.shares)
    wanted = run.tried()
    left = len([tried for tried in wanted if tried not in done])
    with chosen.backend.open(1) as opened, open_bars(output.console) as bars:
        bar = bars.add_task(f"{work.architecture} on {work.kind}", total=len(wanted))
        bars.advance(bar, len(wanted) - left)
        try:
            for tried, point in profiled(run, opened, done):
                add_points(points, [point], [tried])
                bars.advance(bar)
        except KeyboardInterrupt:
            output.print_text(f"Stopped; what was measured is in {points}, and the same command goes on.")
            raise
    own = [point for point in read_points(points) if point.kind == work.kind]
    output.print_text(
        f"{left} points measured with {chosen.name}, {len(wanted) - left} were there; "
        f"{points} has {len(own)} of a {work.kind}."
    )
    rows: Sequence[JudgedModel] = ()
    try:
        rows = measured_models(own, str(points)).rows
    except UserError as error:
        output.print_text(f"Not enough yet: {error}.")
    else:
        output.console.print(_table(work.kind, rows))
    output.write_json(
        {
            "points": str(points),
            "kind": work.kind,
            "measured": left,
            "in_all": len(own),
            "errors": [asdict(row) for row in rows],
        }
    )


def _run_of(config: FleetProfileConfig) -> "ProfileRun":
    """Returns the profiling run that the options describe.

    Raises:
        UserError: the model is unknown, a batch is smaller than two, or a share is not in (0, 1].
    """
    from ekya.fleet.run.deep_edge.profiler import ProfileRun, StressPoint
    from ekya.models.edge.architectures import EDGE_MODELS

    batches = parse_integers(config.batches, "--batches")
    cpu, mem = parse_fractions(config.cpu, "--cpu"), parse_fractions(config.mem, "--mem")
    hold = parse_fractions(config.hold, "--hold")
    if config.model not in EDGE_MODELS:
        known = ", ".join(EDGE_MODELS)
        raise UserError(f"--model {config.model}: there is no such edge model; use one of {known}")
    if min(batches) < 2:
        raise UserError(f"--batches {min(batches)}: a batch has two samples at the least")
    if 0 in hold:
        raise UserError("--hold 0: give parts of the whole, as 1,0.5")
    return ProfileRun(
        EdgeWork(config.kind, config.model, config.side, config.blocks),
        config.seconds,
        batches,
        tuple(round(1000 * part) for part in hold),
        tuple(StressPoint(*parts) for parts in product(cpu, mem)),
    )


def _table(kind: str, rows: "Sequence[JudgedModel]") -> Table:
    title = f"Errors on held-out points of a {kind}"
    table = make_table("Function", "Learned from", "Held out", "MAPE %", title=title)
    for row in rows:
        table.add_row(row.function, str(row.train), str(row.test), f"{row.mape:.1f} ± {row.deviation:.1f}")
    return table

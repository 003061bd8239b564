"""``ekya fleet profile``: runs Deep-Edge's Profiler on this machine."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path

from rich.table import Table

from ekya.cli.output import Output, bars_of, require_writable
from ekya.core.errors import UserError
from ekya.fleet.fitting.judged import Judged
from ekya.fleet.fitting.measured import measured_models
from ekya.fleet.fitting.points_file import add_points, read_points, read_tried
from ekya.fleet.policy.deep_edge.profile import EdgeWork, Tried
from ekya.fleet.run.deep_edge.profiler import ProfileRun, profiled
from ekya.fleet.run.deep_edge.stress import StressPoint, stress_ng
from ekya.gpu.backends.registry import choose_backend
from ekya.models.edge.architectures import EDGE_MODELS


def read_run(
    work: EdgeWork,
    batches: Sequence[int],
    cpu: Sequence[float],
    mem: Sequence[float],
    hold: Sequence[float],
    seconds: float,
) -> ProfileRun:
    """Builds the profiling run from the options.

    Raises:
        UserError: the model is unknown, a batch is smaller than two, or a share is not in (0, 1].
    """
    if work.architecture not in EDGE_MODELS:
        known = ", ".join(EDGE_MODELS)
        raise UserError(f"--model {work.architecture}: there is no such edge model; use one of {known}")
    if min(batches) < 2:
        raise UserError(f"--batches {min(batches)}: a batch has two samples at the least")
    for part in hold:
        if not 0 < part <= 1:
            raise UserError(f"--hold {part:g}: give parts of the whole, as 1,0.5")
    points = tuple(StressPoint(*parts) for parts in product(cpu, mem))
    shares = tuple(round(1000 * part) for part in hold)
    return ProfileRun(work, seconds, tuple(batches), shares, points)


def profile_machine(run: ProfileRun, points: Path, shares: str, output: Output) -> None:
    """Measures the points that the file lacks, and adds each to it immediately.

    Raises:
        UserError: stress-ng is missing, or the file holds no points or those of another model.
        KeyboardInterrupt: after Ctrl-C; the measured points are in the file.
    """
    require_writable("--points", points)
    done = read_tried(points) if points.exists() else []
    _require_same_work(points, run.work, done)
    if any(stress != StressPoint() for stress in run.points):
        stress_ng()
    chosen = choose_backend(shares)
    asked = run.tried()
    left = len([tried for tried in asked if tried not in done])
    with chosen.backend.open(1) as opened, bars_of(output.console) as bars:
        bar = bars.add_task(f"{run.work.architecture} on {run.work.kind}", total=len(asked))
        bars.advance(bar, len(asked) - left)
        try:
            for tried, point in profiled(run, opened, done):
                add_points(points, [point], [tried])
                bars.advance(bar)
        except KeyboardInterrupt:
            output.console.print(
                f"Stopped; what was measured is in {points}, and the same command goes on.",
                highlight=False,
                soft_wrap=True,
            )
            raise
    found = read_points(points)
    own = [point for point in found if point.kind == run.work.kind]
    output.console.print(
        f"{left} points measured with {chosen.name}, {len(asked) - left} were there; {points} has {len(own)} "
        f"of a {run.work.kind}.",
        highlight=False,
        soft_wrap=True,
    )
    try:
        rows: Sequence[Judged] = measured_models(own, str(points)).rows
    except UserError as error:
        rows = ()
        output.console.print(f"Not enough yet: {error}.", highlight=False, soft_wrap=True)
    else:
        output.console.print(_table(run.work.kind, rows))
    output.report(
        {
            "points": str(points),
            "kind": run.work.kind,
            "measured": left,
            "in_all": len(own),
            "errors": [asdict(row) for row in rows],
        }
    )


def _require_same_work(path: Path, work: EdgeWork, done: Sequence[Tried]) -> None:
    others = {tried.work for tried in done if tried.work.kind == work.kind} - {work}
    for other in others:
        raise UserError(
            f"--points {path}: it has points of a {work.kind} with {other.architecture}, {other.side} pixels "
            f"and {other.trainable_blocks} trainable blocks; name another file, or profile that again"
        )


def _table(kind: str, rows: Sequence[Judged]) -> Table:
    table = Table(title=f"Errors on held-out points of a {kind}", title_justify="left")
    for heading in ("Function", "Learned from", "Held out", "MAPE %"):
        table.add_column(heading, justify="right" if heading != "Function" else "left")
    for row in rows:
        table.add_row(row.function, str(row.train), str(row.test), f"{row.mape:.1f} ± {row.deviation:.1f}")
    return table

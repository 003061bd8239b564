"""Accuracy of the ``cpu`` backend's shares for two jobs, and the delay of a resize.

    python experiments/bench_cpu_shares.py
    python experiments/bench_cpu_shares.py --seconds 20 --json -

Two processes run a ResNet18 on the six crops of a frame in a loop, each through a handle of the ``cpu``
backend. They hold one pair of shares for ten seconds, then both are resized in the running process to the
next pair. Used processor time comes from the operating system, not from the handle. Too little use shows a
share that the cores could not give because of other load; too much shows a share that is not held.
"""

import multiprocessing
import os
import time
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Annotated, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import psutil
import torch
import typer
from recipe import RESULTS, Json, Out, as_csv, run
from rich.console import Console
from rich.table import Table

from ekya.cli.output import output
from ekya.core.units import FULL_GPU_MILLI
from ekya.gpu.backends.backend import ShareJob
from ekya.gpu.backends.cpu import CpuShares
from ekya.models.edge.model import build_edge_model
from ekya.system.files import write_text_atomic
from ekya.system.host import cpu_limit

PAIRS_MILLI = ((300, 700), (500, 500), (200, 900), (100, 400))
"""Pairs of shares of the two jobs, measured one after the other."""

LEAST_EXACT = 0.05
"""A share is held if the used time differs from it by at most this part."""

_SETTLE_S = 0.5
"""Wait after a resize; the token bucket lets a job spend up to a tenth of a second that it has saved."""

_CROPS, _SIDE = 6, 32


@dataclass(frozen=True, slots=True)
class Row:
    """One job at one share.

    Attributes:
        job: 1 or 2.
        share_milli: granted share.
        used_milli: processor milliseconds used per second, from the operating system.
        off: relative difference of used from granted; above 0 is too much.
        resize_ms: time until the share took effect, as its handle reports; 0 for the first pair.
    """

    job: int
    share_milli: int
    used_milli: float
    off: float
    resize_ms: float


def work(orders: Connection, number: int, share_milli: int, cores: float) -> None:
    """Runs batches without a pause in a process; a share received through the pipe holds from then on."""
    torch.set_num_threads(1)
    model = build_edge_model(("car", "person"), 0, 0).eval()
    crops = torch.zeros(_CROPS, 3, _SIDE, _SIDE)
    handle = CpuShares(cores).attach(ShareJob(f"job-{number}", "inference", share_milli))
    orders.send(os.getpid())
    with torch.inference_mode():
        while True:
            if orders.poll():
                share_milli = orders.recv()
                if share_milli < 0:
                    return
                orders.send(handle.resize(share_milli).took_us)
            with handle.scope():
                model(crops)


def measure(seconds: float, console: Console) -> list[Row]:
    """Measures all pairs of shares in the same two processes."""
    spawned, cores = multiprocessing.get_context("spawn"), cpu_limit()
    pipes, processes = [], []
    for number, share_milli in enumerate(PAIRS_MILLI[0], start=1):
        mine, theirs = spawned.Pipe()
        process = spawned.Process(target=work, args=(theirs, number, share_milli, cores), daemon=True)
        process.start()
        pipes.append(mine)
        processes.append(process)
    used_by = [psutil.Process(pipe.recv()) for pipe in pipes]
    rows = []
    for place, pair in enumerate(PAIRS_MILLI):
        console.print(f"{pair[0]} and {pair[1]} thousandths of a core for {seconds:g} s", highlight=False)
        took_us = [0, 0]
        if place:
            for pipe, share_milli in zip(pipes, pair, strict=True):
                pipe.send(share_milli)
            took_us = [pipe.recv() for pipe in pipes]
        time.sleep(_SETTLE_S)
        began_s, before = time.monotonic(), [_used_s(process) for process in used_by]
        time.sleep(seconds)
        passed_s, after = time.monotonic() - began_s, [_used_s(process) for process in used_by]
        for job, share_milli in enumerate(pair):
            used_milli = FULL_GPU_MILLI * (after[job] - before[job]) / passed_s
            off = used_milli / share_milli - 1.0
            rows.append(
                Row(job + 1, share_milli, round(used_milli, 1), round(off, 4), round(took_us[job] / 1000, 3))
            )
    for pipe, process in zip(pipes, processes, strict=True):
        pipe.send(-1)
        process.join()
    return rows


def _used_s(process: psutil.Process) -> float:
    times: Any = process.cpu_times()
    return float(times.user + times.system)


def show(console: Console, rows: list[Row]) -> None:
    """Prints the rows as a table."""
    table = Table(title="Two jobs on these cores", title_justify="left")
    for name in ("job", "share", "used", "off", "resized after"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            str(row.job),
            f"{row.share_milli / 10:g}%",
            f"{row.used_milli / 10:.1f}%",
            f"{row.off:+.1%}",
            f"{row.resize_ms:.1f} ms",
        )
    console.print(table)


def main(
    seconds: Annotated[float, typer.Option(min=1.0, help="How long each pair of shares is held.")] = 10.0,
    out: Out = RESULTS,
    json_to: Json = None,
) -> None:
    """Measure how exactly the cpu backend holds two jobs to their shares."""
    with output(json_to) as channel:
        rows = measure(seconds, channel.console)
        held = all(abs(row.off) <= LEAST_EXACT for row in rows)
        channel.report({"seconds": seconds, "held": held, "jobs": [asdict(row) for row in rows]})
        out.mkdir(parents=True, exist_ok=True)
        write_text_atomic(out / "bench_cpu_shares.csv", as_csv([asdict(row) for row in rows]))
        show(channel.console, rows)


if __name__ == "__main__":
    run(main, "python experiments/bench_cpu_shares.py --seconds 20 --json -")

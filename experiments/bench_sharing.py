"""Inference in a process for each stream and in one process for all, on the same live fleet.

    python experiments/bench_sharing.py
    python experiments/bench_sharing.py --rounds 3 --windows 5 --json -

The default fleet runs live in both ways (``processes: stream`` and ``gpu`` in its fleet file), with the same
seed and scheduler. The use of the inference processes comes from the operating system, from the first window
on, so that their start is excluded: total processor time by analysed frame, and memory (PSS, so that shared
pages count once). Decoders are separate processes, the same in both ways, and are not counted. Six minutes on
two cores.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import psutil
import typer
from recipe import RESULTS, Json, Out, Seed, as_csv, run
from rich.console import Console
from rich.table import Table

from ekya.cli.output import output
from ekya.config.fleet_file import DEFAULT_FLEET
from ekya.config.fleet_reading import dump_fleet, load_fleet
from ekya.config.shipped import shipped_path
from ekya.core.errors import UserError
from ekya.planning.placement.homes import Processes
from ekya.results.storage.run_folder import RunFolder
from ekya.system.files import write_text_atomic

_LOOK_EVERY_S = 0.5
_RUN = (sys.executable, "-c", "import sys; from ekya.cli import main; sys.exit(main())", "run")


@dataclass(frozen=True, slots=True)
class Row:
    """One run.

    Attributes:
        process: as in the fleet file.
        processes: number of inference processes.
        arrived, analysed, lost: frames.
        cpu_s: processor time of inference since the first window opened.
        ms_a_frame: that time by analysed frame.
        pss_mib: peak of their total memory.
        load: mean load average of the machine: threads running or ready to run.
        accuracy: mean over streams.
        retrainings: number that finished.
    """

    process: str
    processes: int
    arrived: int
    analysed: int
    lost: int
    cpu_s: float
    ms_a_frame: float
    pss_mib: float
    load: float
    accuracy: float
    retrainings: int


@dataclass(slots=True)
class _Looked:
    """Measurements of a run's inference so far: processor seconds by process, peak memory, load averages."""

    began_s: dict[int, float]
    now_s: dict[int, float]
    pss_bytes: int
    loads: list[float]


def ran(process: Processes, windows: int, seed: int, runs: Path) -> Row:
    """Executes one run.

    Raises:
        UserError: the run failed.
    """
    shipped = load_fleet(shipped_path(DEFAULT_FLEET), {"windows": windows, "name": process.value})
    path = runs / f"{process.value}.yaml"
    path.write_text(dump_fleet(shipped.model_copy(update={"processes": process})))
    folder = RunFolder(runs / process.value)
    command = [*_RUN, str(path), "--runs", str(runs), "--seed", str(seed), "--no-dashboard"]
    looked = _Looked({}, {}, 0, [])
    with (runs / f"{process.value}.log").open("w") as log:
        run = subprocess.Popen(command, stderr=log, stdout=log)
        while run.poll() is None:
            look(psutil.Process(run.pid), folder, looked)
            time.sleep(_LOOK_EVERY_S)
    if run.returncode != 0:
        raise UserError(f"the run ended with {run.returncode}; {log.name} says why.")
    summary = json.loads(folder.summary.read_text())
    frames: Mapping[str, int] = summary["frames"]
    cpu_s = sum(seconds - looked.began_s[pid] for pid, seconds in looked.now_s.items())
    return Row(
        process.value,
        len(looked.now_s),
        frames["arrived"],
        frames["analysed"],
        frames["lost"],
        round(cpu_s, 2),
        round(1000 * cpu_s / frames["analysed"], 2),
        round(looked.pss_bytes / (1 << 20), 1),
        round(sum(looked.loads) / len(looked.loads), 2),
        round(float(summary["mean_accuracy"]), 4),
        summary["retrainings"]["finished"],
    )


def look(run: psutil.Process, folder: RunFolder, looked: _Looked) -> None:
    """Measures every inference process through the operating system, once the first window is open."""
    if not folder.journal.is_file() or '"WindowOpened"' not in folder.journal.read_text():
        return
    pss_bytes = 0
    for process in inferences(run):
        try:
            times: Any = process.cpu_times()
            memory: Any = process.memory_full_info()
        except psutil.Error:
            continue
        looked.now_s[process.pid] = times.user + times.system
        looked.began_s.setdefault(process.pid, looked.now_s[process.pid])
        pss_bytes += memory.pss
    looked.pss_bytes = max(looked.pss_bytes, pss_bytes)
    looked.loads.append(os.getloadavg()[0])


def inferences(run: psutil.Process) -> Iterator[psutil.Process]:
    """Yields the inference processes of a run, without its decoders."""
    try:
        children = run.children(recursive=True)
    except psutil.Error:
        return
    for process in children:
        try:
            title = process.cmdline()[:1]
        except psutil.Error:
            continue
        if title and title[0].startswith("ray::") and "InferenceActor" in title[0]:
            yield process


def show(console: Console, rows: list[Row]) -> None:
    """Prints the rows as a table."""
    table = Table(title="Inference of four streams", title_justify="left")
    for name in ("a process for each", "analysed", "lost", "ms a frame", "memory", "accuracy", "load"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            f"{row.process} ({row.processes})",
            f"{row.analysed} of {row.arrived}",
            str(row.lost),
            f"{row.ms_a_frame:.1f}",
            f"{row.pss_mib:.0f} MiB",
            f"{row.accuracy:.1%}",
            f"{row.load:.1f}",
        )
    console.print(table)


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each way; they take turns.")] = 1,
    windows: Annotated[int, typer.Option(min=2, help="Of each run.")] = 5,
    seed: Seed = 0,
    out: Out = RESULTS,
    json_to: Json = None,
) -> None:
    """Measure the cost of serving four streams in four processes, and in one."""
    rows = []
    with output(json_to) as channel:
        for number in range(rounds):
            for process in (Processes.STREAM, Processes.GPU):
                channel.console.print(f"round {number + 1}: a process for each {process.value}")
                with tempfile.TemporaryDirectory(prefix="ekya-bench-") as runs:
                    rows.append(ran(process, windows, seed, Path(runs)))
        channel.report({"windows": windows, "runs": [asdict(row) for row in rows]})
        out.mkdir(parents=True, exist_ok=True)
        write_text_atomic(out / "bench_sharing.csv", as_csv([asdict(row) for row in rows]))
        show(channel.console, rows)


if __name__ == "__main__":
    run(main, "python experiments/bench_sharing.py --rounds 3 --windows 5 --json -")

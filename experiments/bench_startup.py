"""Start time of a live run until its first window opens, and recovery time after a process was killed.

    python experiments/bench_startup.py
    python experiments/bench_startup.py --cameras 10 --json -
    python experiments/bench_startup.py --cameras 20 --video V.mp4 --golden D.onnx --classes person,car,truck

`ekya run` is started in a separate process, as by a user, and watched from outside. In its second window an
inference process is killed, and some seconds after its streams are back the run is stopped.

- Start: from the call of the command until window 0 opens, when every camera and model is ready.
- Processes and memory: of the whole tree, with Ray's processes and the decoders. Memory is PSS, so that
  shared pages count once.
- Away: from the death of the process to the first analysed frame that arrived after the restart, of the
  stream that waited longest.
- Doctor: `ekya doctor` from its call to its end.

Four cameras are those of the default fleet; another number repeats them with other seeds, or plays a video.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import psutil
import typer
import yaml
from recipe import RESULTS, Json, Out, publish_rows, run

from ekya.cli.command import open_output
from ekya.config.fleet_file import DEFAULT_FLEET
from ekya.config.fleet_reading import dump_fleet, load_fleet
from ekya.config.shipped import shipped_path
from ekya.core import events as ev
from ekya.core.errors import UserError
from ekya.core.units import StreamId
from ekya.results.storage.journal import read_journal
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_tables import read_predictions

_EKYA = (sys.executable, "-c", "import sys; from ekya.cli import main; sys.exit(main())")
_NAME = "startup"
_LOOK_EVERY_S = 1.0
_READY_WITHIN_S = 600.0
_SETTLED_S = 6.0
"""Wait after a window has opened, until its preparation is over."""
_BACK_WITHIN_S = 120.0
_AFTER_S = 20.0
"""Wait after the killed process is back; results are written to disk every second."""


@dataclass(frozen=True, slots=True)
class Row:
    """One run.

    Attributes:
        cameras: number of cameras.
        ready_s: until window 0 opened.
        ready_pss_mib, processes: memory and processes of the whole run at that moment.
        pss_mib: peak memory of the whole run.
        torch_processes: how many of ``processes`` had torch loaded.
        away_s: after the kill; None if no process was killed.
        doctor_s: of ``ekya doctor``.
        load: mean load average of the machine: threads running or ready to run.
    """

    cameras: int
    ready_s: float
    ready_pss_mib: float
    processes: int
    torch_processes: int
    pss_mib: float
    away_s: float | None
    doctor_s: float
    load: float


@dataclass(slots=True)
class Seen:
    """Measurements of a run so far."""

    pss_mib: float = 0.0
    loads: list[float] = field(default_factory=list)


def measured(cameras: Sequence[str], count: int, kill: bool, work: Path) -> Row:
    """Executes one run, from its start to its stop.

    Raises:
        UserError: the run failed, or took too long.
    """
    folder, seen = RunFolder(work / _NAME), Seen()
    log = work / "log.txt"
    with log.open("w") as written:
        began_s = time.monotonic()
        process = subprocess.Popen(
            [*_EKYA, "run", *cameras, "--runs", str(work), "--name", _NAME], stdout=written, stderr=written
        )
        try:
            _wait(process, log, lambda: len(_opened(folder)) >= 1, seen, _READY_WITHIN_S)
            ready_s = time.monotonic() - began_s
            tree = list(_tree(process.pid))
            ready_mib = _pss_mib(tree)
            with_torch = sum(_has_torch(one) for one in tree)
            away_s = None
            if kill:
                away_s = _killed(process, log, folder, seen)
        finally:
            _stop(process)
    return Row(
        count,
        round(ready_s, 1),
        round(ready_mib),
        len(tree),
        with_torch,
        round(max(seen.pss_mib, ready_mib)),
        None if away_s is None else round(away_s, 1),
        round(_doctor_s(), 1),
        round(float(np.mean(seen.loads)), 1),
    )


def _killed(process: "subprocess.Popen[bytes]", log: Path, folder: RunFolder, seen: Seen) -> float:
    """Kills an inference process in window 1; returns for how many seconds its streams were away."""
    _wait(process, log, lambda: len(_opened(folder)) >= 2, seen, _READY_WITHIN_S)
    settled_s = time.monotonic() + _SETTLED_S
    _wait(process, log, lambda: time.monotonic() > settled_s, seen, _READY_WITHIN_S)
    victim = next(one for one in _tree(process.pid) if "InferenceActor" in _title(one))
    victim.kill()
    back: list[StreamId] = []

    def is_back() -> bool:
        died = {event.stream for event in _events(folder, ev.WorkerDied)}
        back[:] = sorted(event.stream for event in _events(folder, ev.WorkerBack))
        return bool(died) and died <= set(back)

    _wait(process, log, is_back, seen, _BACK_WITHIN_S)
    after_s = time.monotonic() + _AFTER_S
    _wait(process, log, lambda: time.monotonic() > after_s, seen, _BACK_WITHIN_S)
    died_us = {event.stream: event.t_us for event in _events(folder, ev.WorkerDied)}
    back_us = {event.stream: event.t_us for event in _events(folder, ev.WorkerBack)}
    _stop(process)
    return float(max(_first_us(folder, one, back_us[one]) - died_us[one] for one in back)) / 1e6


def _first_us(folder: RunFolder, stream: StreamId, from_us: int) -> int:
    """Returns the arrival of the first analysed frame from a time on; earlier frames may be analysed late."""
    frames = read_predictions(folder.predictions(stream))
    analysed_us = frames.t_us[frames.analysed & (frames.t_us >= from_us)]
    if not len(analysed_us):
        raise UserError(f"{stream}: no frame was analysed after its process was back")
    return int(analysed_us[0])


def _opened(folder: RunFolder) -> list[ev.WindowOpened]:
    return _events(folder, ev.WindowOpened)


def _events(folder: RunFolder, kind: type[Any]) -> list[Any]:
    if not folder.journal.is_file() or '"WindowOpened"' not in folder.journal.read_text():
        return []
    _, _, turns = read_journal(folder.journal)
    return [event for turn in turns for event in turn.events if isinstance(event, kind)]


def _wait(process: "subprocess.Popen[bytes]", log: Path, until: Any, seen: Seen, within_s: float) -> None:
    deadline_s, look_s = time.monotonic() + within_s, 0.0
    while not until():
        if process.poll() is not None:
            raise UserError(f"the run ended with {process.returncode}: {log.read_text()[-2000:]}")
        if time.monotonic() > deadline_s:
            raise UserError(f"what was waited for did not happen within {within_s:g} s")
        if time.monotonic() > look_s:
            look_s = time.monotonic() + _LOOK_EVERY_S
            seen.pss_mib = max(seen.pss_mib, _pss_mib(_tree(process.pid)))
            seen.loads.append(os.getloadavg()[0])
        time.sleep(0.1)


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Interrupts the run as Ctrl-C does; after a timeout kills it with all processes that it has started."""
    if process.poll() is not None:
        return
    tree = list(_tree(process.pid))
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_BACK_WITHIN_S)
    except subprocess.TimeoutExpired:
        for one in tree:
            with suppress(psutil.Error):
                one.kill()


def _tree(pid: int) -> Iterator[psutil.Process]:
    with suppress(psutil.Error):
        root = psutil.Process(pid)
        yield root
        yield from root.children(recursive=True)


def _pss_mib(processes: Iterator[psutil.Process] | list[psutil.Process]) -> float:
    total = 0
    for one in processes:
        with suppress(psutil.Error):
            memory: Any = one.memory_full_info()
            total += memory.pss
    return total / (1 << 20)


def _has_torch(process: psutil.Process) -> bool:
    try:
        return any("libtorch" in mapped.path for mapped in process.memory_maps())
    except psutil.Error:
        return False


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()[:1])
    except psutil.Error:
        return ""


def _doctor_s() -> float:
    began_s = time.monotonic()
    subprocess.run([*_EKYA, "doctor"], check=False, capture_output=True)
    return time.monotonic() - began_s


def repeated_fleet(cameras: int, work: Path) -> Path:
    """Writes the default fleet with this number of cameras, which repeat its own with other seeds."""
    shipped = load_fleet(shipped_path(DEFAULT_FLEET))
    raw = yaml.safe_load(dump_fleet(shipped))
    known = raw["streams"]
    raw["streams"] = [
        known[place % len(known)]
        | {
            "id": f"cam-{place + 1:02}",
            "source": known[place % len(known)]["source"] | {"seed": 1000 + place},
        }
        for place in range(cameras)
    ]
    # Removed, so that the defaults fit the number of cameras.
    for key in ("gpus", "window_s", "preparation"):
        raw.pop(key)
    path = work / "fleet.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


def main(
    cameras: Annotated[int, typer.Option(min=1, help="How many.")] = 4,
    video: Annotated[Path | None, typer.Option(metavar="FILE", help="What each of them shows.")] = None,
    golden: Annotated[str | None, typer.Option(help="With --video: as of ekya run.")] = None,
    classes: Annotated[str | None, typer.Option(help="With --video: as of ekya run.")] = None,
    fleet: Annotated[Path | None, typer.Option(metavar="FILE", help="A fleet file instead.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Runs, one after the other.")] = 1,
    kill: Annotated[bool, typer.Option(help="A process of inference, in the second window.")] = True,
    out: Out = RESULTS,
    json_to: Json = None,
) -> None:
    """Measure how long a live run takes to start, and how long a killed process is away."""
    rows = []
    with open_output(json_to) as channel:
        for _ in range(rounds):
            with tempfile.TemporaryDirectory(prefix="ekya-bench-") as work:
                if fleet is not None:
                    arguments, count = [str(fleet)], len(load_fleet(fleet).streams)
                elif video is not None:
                    if golden is None:
                        raise UserError("--video: a golden detector has to label what it shows; add --golden")
                    # A short video would end before its streams are back.
                    arguments, count = ["--golden", golden, "--loop", "--windows", "9"], cameras
                    arguments += ["--task", "classify"]
                    arguments += [part for _ in range(cameras) for part in ("--video", str(video))]
                    arguments += [] if classes is None else ["--classes", classes]
                else:
                    shipped = shipped_path(DEFAULT_FLEET)
                    path = shipped if cameras == 4 else repeated_fleet(cameras, Path(work))
                    arguments, count = [str(path)], cameras
                rows.append(measured(arguments, count, kill, Path(work)))
        title = "Start, memory and recovery of a live run"
        publish_rows(channel, title, rows, out / "bench_startup.csv")


if __name__ == "__main__":
    run(main, "python experiments/bench_startup.py --cameras 4 --json -")

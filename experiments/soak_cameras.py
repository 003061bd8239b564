"""Soak test: a long run over RTSP cameras, one of which is killed repeatedly.

    python experiments/soak_cameras.py --minutes 30
    python experiments/soak_cameras.py --minutes 3 --every 45 --json -

Each camera is a real RTSP server (``rtsp_server.py``) that plays a real video in a loop; ``ekya run`` watches
them all, live. Every two minutes the next camera's server is killed as by a power cut and started again some
seconds later. Measured are the time until the run reports the loss, the time from the server's restart until
the run reports the camera back, the outcome of every decoded frame, the memory of the streams' processes over
time, and the processes that are left when the run has ended. The test fails if a camera takes longer than ten
seconds to come back, a frame is lost, or a process is left.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
import yaml
from recipe import RESULTS, Json, Out, as_csv, run
from rich.console import Console
from rich.table import Table

from ekya.cli.output import output
from ekya.core.errors import UserError
from ekya.core.units import StreamId
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_tables import read_predictions
from ekya.system.files import write_text_atomic

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
VIDEOS = ("ahmetozlu_input_video.mp4", "intel_one-by-one-person-detection.mp4", "degirum_Traffic.mp4")
SERVER = Path(__file__).resolve().parent / "rtsp_server.py"
SYSTEM_PYTHON = "/usr/bin/python3"
"""Debian's packages of GStreamer belong to Debian's own Python."""

WITHIN_S = 10.0
"""Seconds within which a camera that is available again must be watched again."""

CLASSES = ("person", "bicycle", "car", "motorcycle", "bus", "truck", "background")
_CHILD = "ekya.streams.ingest.process_child"
_TICK_S = 0.1
_MEMORY_EVERY_S = 10.0
_END_S = 900.0
"""Seconds for the run to start and to write its report, in total."""

_TO_GO_S = 30
"""Ray's processes end by themselves after their run, on a busy machine some seconds later."""

_MEGABYTE = 1 << 20


@dataclass(slots=True)
class Loss:
    """One kill of one camera.

    Attributes:
        stream: of the camera.
        killed_s: run time.
        lost_after_s: from then until the run reported it.
        away_s: how long its server was down.
        back_after_s: from the server's restart until the run reported the camera back; None if it never did.
    """

    stream: StreamId
    killed_s: float
    lost_after_s: float | None = None
    away_s: float | None = None
    back_after_s: float | None = None


@dataclass(slots=True, eq=False)
class Camera:
    """RTSP server that can be killed and started again on the same port."""

    stream: StreamId
    video: Path
    port: int = 0
    process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Starts the server; returns when it answers."""
        command = [SYSTEM_PYTHON, str(SERVER), str(self.video), "--port", str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        url = self.process.stdout.readline().strip() if self.process.stdout else ""
        if not url:
            raise UserError(f"{SERVER.name}: it does not start; install the packages that it names")
        self.port = int(url.rsplit(":", 1)[1].split("/")[0])

    def kill(self) -> None:
        """Kills the server, as a power cut would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()
            self.process = None


@dataclass(slots=True, eq=False)
class Journal:
    """The run's journal, read as it grows."""

    path: Path
    _at: int = 0
    _rest: bytes = b""

    def news(self) -> Iterator[Mapping[str, Any]]:
        """Yields events since the last call."""
        if not self.path.is_file():
            return
        with self.path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        self._at += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            yield from json.loads(line).get("events", ())


@dataclass(slots=True, eq=False)
class Soak:
    """Observes a run while cameras are killed."""

    cameras: Sequence[Camera]
    journal: Journal
    mark: str
    every_s: float
    away_s: float
    losses: list[Loss] = field(default_factory=list)
    memory: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    began_s: float | None = None
    _returned_s: float | None = None

    def watch(self, running: subprocess.Popen[bytes], seconds: float) -> None:
        """Watches until the run has ended; cameras are killed while at least one interval is left."""
        noted_s = 0.0
        deadline_s = time.monotonic() + seconds + _END_S
        while running.poll() is None and (now_s := time.monotonic()) < deadline_s:
            for event in self.journal.news():
                self._hear(event, now_s)
            if self.began_s is not None:
                self._strike(now_s, self.began_s, seconds)
                if now_s - noted_s >= _MEMORY_EVERY_S:
                    noted_s = now_s
                    self._note_memory(now_s - self.began_s)
            time.sleep(_TICK_S)

    def _hear(self, event: Mapping[str, Any], now_s: float) -> None:
        if event["kind"] == "WindowOpened" and self.began_s is None:
            self.began_s = now_s
        if not self.losses or event.get("stream") != self.losses[-1].stream or self.began_s is None:
            return
        loss = self.losses[-1]
        if event["kind"] == "StreamLost" and loss.lost_after_s is None:
            loss.lost_after_s = now_s - self.began_s - loss.killed_s
        if event["kind"] == "StreamBack" and loss.back_after_s is None and self._returned_s is not None:
            loss.back_after_s = now_s - self._returned_s

    def _strike(self, now_s: float, began_s: float, seconds: float) -> None:
        """Kills the next camera when it is due, and restarts it after ``away_s``."""
        if self.losses and self._returned_s is None:
            loss = self.losses[-1]
            if now_s - began_s - loss.killed_s >= self.away_s:
                self._camera(loss.stream).start()
                self._returned_s = time.monotonic()
                loss.away_s = self._returned_s - began_s - loss.killed_s
            return
        due_s = (len(self.losses) + 1) * self.every_s
        if now_s - began_s >= due_s and due_s + self.away_s + 2 * WITHIN_S <= seconds:
            camera = self.cameras[len(self.losses) % len(self.cameras)]
            camera.kill()
            self.losses.append(Loss(camera.stream, time.monotonic() - began_s))
            self._returned_s = None

    def _camera(self, stream: StreamId) -> Camera:
        return next(camera for camera in self.cameras if camera.stream == stream)

    def _note_memory(self, at_s: float) -> None:
        for process in of_run(self.mark):
            try:
                if any(_CHILD in part for part in process.cmdline()):
                    megabytes = process.memory_info().rss / _MEGABYTE
                    self.memory.setdefault(process.pid, []).append((at_s, megabytes))
            except psutil.Error:
                continue


def of_run(mark: str) -> Iterator[psutil.Process]:
    """Yields processes that have inherited an environment variable of this name."""
    for process in psutil.process_iter():
        try:
            if mark in process.environ() and process.status() != psutil.STATUS_ZOMBIE:
                yield process
        except psutil.Error:
            continue


def fleet(cameras: Sequence[Camera], golden: Path, window_s: float, windows: int) -> Mapping[str, Any]:
    """Returns a fleet file over the cameras."""
    return {
        "name": "soak",
        "classes": list(CLASSES),
        "gpus": 1.0,
        "window_s": window_s,
        "windows": windows,
        "preparation": {"share_milli": 600},
        "golden": {"model": "fastestdet", "weights": str(golden.resolve())},
        "streams": [
            {
                "id": camera.stream,
                "source": {"kind": "camera", "url": f"rtsp://127.0.0.1:{camera.port}/live"},
            }
            for camera in cameras
        ],
    }


def left_over(mark: str) -> list[str]:
    """Returns the processes that are still running ``_TO_GO_S`` after the run's end."""
    for _ in range(_TO_GO_S * 5):
        if not list(of_run(mark)):
            return []
        time.sleep(0.2)
    return [" ".join(process.cmdline())[:120] for process in of_run(mark)]


def stream_rows(folder: RunFolder, soak: Soak) -> list[dict[str, Any]]:
    """Returns the outcome of each camera's frames."""
    rows = []
    for camera in soak.cameras:
        predictions = read_predictions(folder.predictions(camera.stream))
        losses = [loss for loss in soak.losses if loss.stream == camera.stream]
        rows.append(
            {
                "stream": camera.stream,
                "video": camera.video.name,
                "decoded": int(predictions.frame[-1]) + 1 if len(predictions.frame) else 0,
                "in_predictions": len(set(predictions.frame.tolist())),
                "analysed": int(predictions.analysed.sum()),
                "skipped": int((~predictions.analysed).sum()),
                "killed": len(losses),
                "slowest_back_s": max((loss.back_after_s or float("inf") for loss in losses), default=0.0),
            }
        )
    return rows


def memory_rows(soak: Soak) -> list[dict[str, Any]]:
    """Returns the memory of each process that held a stream, after its first half minute and at its end."""
    rows = []
    for pid, seen in soak.memory.items():
        settled = [megabytes for at_s, megabytes in seen if at_s >= seen[0][0] + 30.0] or [seen[-1][1]]
        rows.append(
            {
                "pid": pid,
                "from_s": round(seen[0][0], 1),
                "to_s": round(seen[-1][0], 1),
                "first_mb": round(settled[0], 1),
                "last_mb": round(settled[-1], 1),
                "most_mb": round(max(megabytes for _, megabytes in seen), 1),
            }
        )
    return rows


def show(console: Console, rows: Sequence[Mapping[str, Any]], title: str) -> None:
    """Prints the rows as a table."""
    table = Table(title=title, title_justify="left")
    for name in rows[0]:
        table.add_column(
            name.replace("_", " "), justify="left" if isinstance(rows[0][name], str) else "right"
        )
    for row in rows:
        table.add_row(*(f"{cell:.1f}" if isinstance(cell, float) else str(cell) for cell in row.values()))
    console.print(table)


def main(
    minutes: Annotated[float, typer.Option(min=1.0, help="How long the run goes on.")] = 30.0,
    every: Annotated[float, typer.Option(min=30.0, help="Seconds from one power cut to the next.")] = 120.0,
    away: Annotated[float, typer.Option(min=1.0, help="Seconds for which a camera is gone.")] = 10.0,
    window: Annotated[float, typer.Option(min=10.0, help="Length of a retraining window, seconds.")] = 60.0,
    video: Annotated[list[Path] | None, typer.Option(help="What a camera shows; once for each.")] = None,
    golden: Annotated[Path, typer.Option(help="FastestDet's ONNX file.")] = DATA
    / "weights"
    / "FastestDet.onnx",
    runs: Annotated[Path, typer.Option(help="Folder in which the run is kept.")] = Path("runs"),
    out: Out = RESULTS,
    json_to: Json = None,
) -> None:
    """Run over RTSP cameras while one after the other is killed and comes back."""
    videos = video or [DATA / "videos" / name for name in VIDEOS]
    for file in (*videos, golden):
        if not file.is_file():
            raise UserError(f"{file}: there is no such file; name others with --video and --golden")
    mark = f"EKYA_SOAK_{uuid.uuid4().hex}"
    windows = max(1, round(60.0 * minutes / window))
    with output(json_to) as channel, ExitStack() as stack:
        cameras = [Camera(StreamId(f"cam-{number}"), file) for number, file in enumerate(videos, start=1)]
        for camera in cameras:
            stack.callback(camera.kill)
            camera.start()
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        fleet_file = scratch / "soak.yaml"
        fleet_file.write_text(yaml.safe_dump(dict(fleet(cameras, golden, window, windows))))
        name = f"soak-{uuid.uuid4().hex[:6]}"
        command = [sys.executable, "-c", "import sys; from ekya.cli import main; sys.exit(main())", "run"]
        running = subprocess.Popen(
            [*command, str(fleet_file), "--runs", str(runs), "--name", name, "--no-dashboard"],
            env=os.environ | {mark: "1"},
            stdout=subprocess.DEVNULL,
        )
        folder = RunFolder(runs / name)
        soak = Soak(cameras, Journal(folder.journal), mark, every, away)
        try:
            soak.watch(running, windows * window)
        finally:
            if running.poll() is None:
                running.terminate()
                running.wait()
        if running.returncode:
            raise UserError(f"{folder.path}: the run ended with code {running.returncode}; see what it said")
        left = left_over(mark)
        rows = stream_rows(folder, soak)
        memory = memory_rows(soak)
        frames = json.loads(folder.summary.read_text())["frames"]
        result = {
            "minutes": minutes,
            "frames": frames,
            "streams": rows,
            "losses": [asdict(loss) for loss in soak.losses],
            "memory": memory,
            "left_over": left,
        }
        channel.report(result)
        out.mkdir(parents=True, exist_ok=True)
        write_text_atomic(out / "soak_cameras.csv", as_csv(rows))
        write_text_atomic(out / "soak_cameras_memory.csv", as_csv(memory))
        show(channel.console, rows, "Frames, and how soon a camera is back")
        show(channel.console, memory, "Processes of streams")
        wrong = _wrong(rows, frames, left)
        channel.console.print(
            wrong or "Every camera came back in time, no frame is lost, no process is left."
        )
        if wrong:
            raise typer.Exit(1)


def _wrong(rows: Sequence[Mapping[str, Any]], frames: Mapping[str, int], left: Sequence[str]) -> str:
    """Returns the failures in words; empty if there are none."""
    said = [
        f"{row['stream']} was back after {row['slowest_back_s']:.1f} s"
        for row in rows
        if row["slowest_back_s"] > WITHIN_S
    ]
    said += [f"{row['stream']} misses frames" for row in rows if row["decoded"] != row["in_predictions"]]
    if frames["lost"] or frames["arrived"] != sum(row["in_predictions"] for row in rows):
        said.append(f"of {frames['arrived']} frames that arrived {frames['lost']} are lost")
    said += [f"left: {one}" for one in left]
    return "; ".join(said)


if __name__ == "__main__":
    run(main, "python experiments/soak_cameras.py --minutes 3 --every 45 --json -")

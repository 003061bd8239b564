"""Memory and time of reading the Waymo Open Dataset, in both versions.

    python experiments/bench_waymo.py
    python experiments/bench_waymo.py --frames 60 --json -

Segments of the true size are drawn (1920x1280 pixels, 350 kB a picture, five cameras, row groups of 256
rows) and one camera is read to the end, on demand, in a separate process. Memory is resident, libraries
included: half of it is code that all streams of a machine share.
"""

import importlib
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import cv2
import numpy as np
import psutil
import typer
from recipe import RESULTS, Json, Out, as_csv, run
from rich.console import Console
from rich.table import Table

from ekya.cli.output import output
from ekya.config.shipped import shipped_root
from ekya.streams.datasets.waymo import WaymoSpec
from ekya.streams.datasets.waymo.shots import Camera
from ekya.streams.ingest.process import SourceProcess
from ekya.system.files import write_text_atomic

WIDTH, HEIGHT = 1920, 1280
ROWS_A_GROUP = 256
SEGMENTS = 2
_MEGABYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class Row:
    """One version.

    Attributes:
        version: of the data set.
        frames: number of frames read.
        file_mb: of one segment's pictures.
        usual_mb: resident memory, the median over frames.
        most_mb: peak resident memory, between frames too.
        cpu_ms: processor time a frame, without opening.
    """

    version: str
    frames: int
    file_mb: float
    usual_mb: float
    most_mb: float
    cpu_ms: float


def noisy_jpeg() -> Callable[[Any, Camera, int], bytes]:
    """Returns a function that makes pictures as large as street pictures, each one different."""
    noise = np.random.default_rng(0).integers(0, 255, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    street = cv2.GaussianBlur(noise, (0, 0), 2)

    def jpeg(_: Any, camera: Camera, frame: int) -> bytes:
        moved = np.roll(street, 7 * frame + 100 * camera.number, axis=1)
        return bytes(cv2.imencode(".jpg", moved, [cv2.IMWRITE_JPEG_QUALITY, 85])[1])

    return jpeg


def measure(version: str, root: Path, frames: int) -> Row:
    """Draws segments and reads one camera of them."""
    sys.path.insert(0, str(shipped_root() / "datasets" / "waymo"))
    sample = importlib.import_module("waymo_sample")
    large = type("Large", (sample.Segment,), {"__slots__": (), "jpeg": noisy_jpeg()})
    for number in range(SEGMENTS):
        segment = large(
            name=f"{number}_0",
            first_us=1_550_000_000_000_000 + number * 60_000_000,
            frames=frames,
            cameras=tuple(Camera),
            size=(WIDTH, HEIGHT),
        )
        if version == "v1":
            file = sample.write_v1(root, segment)
        else:
            file = sample.write_v2(root, segment, ROWS_A_GROUP)
    spec = WaymoSpec(root=root, segments=tuple(f"{number}_0" for number in range(SEGMENTS)))
    before = {child.pid for child in psutil.Process().children()}
    with SourceProcess(spec, ("vehicle",)) as source:
        source.wait_open()
        process = next(child for child in psutil.Process().children() if child.pid not in before)
        spent_s = _processor_s(process)
        resident, count, most_kb, cpu_s = [], 0, 0, 0.0
        source.begin(None)
        while not source.ended:
            for _ in source.poll(1.0):
                count += 1
                # The process ends with its last frame, so memory is measured before.
                if count < SEGMENTS * frames:
                    resident.append(process.memory_info().rss / _MEGABYTE)
                    most_kb, cpu_s = _most_kb(process.pid), _processor_s(process) - spent_s
    return Row(
        version,
        count,
        round(file.stat().st_size / _MEGABYTE, 1),
        round(median(resident), 1),
        round(most_kb / 1024, 1),
        round(1000 * cpu_s / (count - 1), 2),
    )


def _processor_s(process: psutil.Process) -> float:
    spent = process.cpu_times()
    return float(spent.user + spent.system)


def _most_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def show(console: Console, rows: list[Row]) -> None:
    """Prints the rows as a table."""
    table = Table(title="Reading a camera of the Waymo Open Dataset", title_justify="left")
    for name in ("version", "frames", "file MB", "usual MB", "most MB", "ms a frame"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*map(str, asdict(row).values()))
    console.print(table)


def main(
    frames: Annotated[int, typer.Option(min=2, help="Of each of two segments.")] = 198,
    out: Out = RESULTS,
    json_to: Json = None,
) -> None:
    """Measure memory and time of both versions."""
    with output(json_to) as channel:
        rows = []
        for version in ("v1", "v2"):
            channel.console.print(
                f"{version}: drawing {SEGMENTS} segments, and reading them", highlight=False
            )
            with tempfile.TemporaryDirectory() as folder:
                rows.append(measure(version, Path(folder), frames))
        out.mkdir(parents=True, exist_ok=True)
        write_text_atomic(out / "bench_waymo.csv", as_csv([asdict(row) for row in rows]))
        channel.report({"rows": [asdict(row) for row in rows]})
        show(channel.console, rows)


if __name__ == "__main__":
    run(main, "python experiments/bench_waymo.py --frames 60 --json -")

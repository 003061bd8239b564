"""Number of cameras that the machine can decode and crop, and memory for each camera.

    python experiments/bench_sources.py --video ../shared/data/videos/ahmetozlu_input_video.mp4
    python experiments/bench_sources.py --streams 4,8,12,16 --seconds 20 --json -
    python experiments/bench_sources.py --seconds 1800 --streams 8

Every stream is a process that plays a looped video at its own rate, as in a run, and this process takes the
newest frame of each and crops some objects from it, as an inference actor does before it infers. Inference is
off. A stream keeps up if frames leave their process when they are due and are taken before the next one
arrives. Without ``--video`` a video of 640x352 at 24 frames a second is drawn (ten seconds of the synthetic
city).
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import cv2
import numpy as np
import psutil
import typer
from numpy.typing import NDArray
from recipe import RESULTS, Json, Out, publish_rows, run

from ekya.cli.command import open_output
from ekya.core.errors import UserError
from ekya.streams.ingest.crops import crop_objects
from ekya.streams.ingest.playing import PlayConfig, PlayedSpec
from ekya.streams.ingest.process import Arrived, SourceProcess
from ekya.streams.ingest.video import VideoSpec
from ekya.streams.synthetic import KINDS, CitySpec

SIDE = 32
"""Side of a crop in pixels, as in the shipped fleet."""

LATE_NS = 40_000_000
"""A frame that leaves its process later than this after it is due counts as late."""

LEAST_KEPT = 0.99
"""A fleet keeps up if this part of its frames is on time and this part is taken."""

WARM_UP_S = 3.0
_BEGIN_IN_S = 1.0
_MEGABYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class Row:
    """One number of streams.

    Attributes:
        streams: number of streams.
        seconds: duration, after a warm-up.
        due: frames that should arrive at the streams' rates.
        on_time: part of them that left their process on time.
        taken: part of them whose pixels were available and were cropped.
        keeps_up: whether both parts reach ``LEAST_KEPT``.
        cores: processor seconds a second, of the streams' processes and of this one together.
        first_mb, last_mb, most_mb: resident memory of the stream process that has most: after the warm-up, at
            the end, and at its peak.
    """

    streams: int
    seconds: float
    due: int
    on_time: float
    taken: float
    keeps_up: bool
    cores: float
    first_mb: float
    last_mb: float
    most_mb: float


@dataclass(slots=True, eq=False)
class _Camera:
    """A stream and its counters."""

    source: SourceProcess
    process: psutil.Process
    began_ns: int
    fps: float
    boxes: NDArray[np.float32]
    late: int = 0
    arrived: int = 0
    taken: int = 0
    memory_mb: list[float] = field(default_factory=list)

    def take(self, counting: bool) -> None:
        """Takes all frames that arrived since the last call; crops the newest one."""
        for arrived in self.source.poll_frames(0.0):
            if arrived.frame is not None:
                crop_objects(arrived.frame.image, self.boxes, SIDE)
            if counting:
                self._count(arrived)

    def note_memory(self) -> None:
        """Records the resident memory of its process."""
        self.memory_mb.append(self.process.memory_info().rss / _MEGABYTE)

    def _count(self, arrived: Arrived) -> None:
        self.arrived += 1
        self.taken += arrived.frame is not None
        self.late += arrived.released_ns - (self.began_ns + arrived.t_us * 1000) > LATE_NS


def measure(video: Path, streams: int, seconds: float, objects: int) -> Row:
    """Plays ``streams`` copies of a video for ``seconds`` and measures them."""
    spec = PlayedSpec(source=VideoSpec(files=(video,)), play=PlayConfig(loop=True))
    with ExitStack() as stack:
        sources = [stack.enter_context(SourceProcess(spec, ())) for _ in range(streams)]
        rates = [source.wait_open() for source in sources]
        began_ns = time.monotonic_ns() + int(_BEGIN_IN_S * 1e9)
        cameras = [
            _Camera(source, psutil.Process(source.pid), began_ns, fps, _spread_boxes(objects))
            for source, fps in zip(sources, rates, strict=True)
        ]
        for camera in cameras:
            camera.source.start_frames(began_ns)
        _take_for(cameras, _BEGIN_IN_S + WARM_UP_S, counting=False)
        before_s, began_s = _processor_s(cameras), time.monotonic()
        _take_for(cameras, seconds, counting=True)
        took_s, used_s = time.monotonic() - began_s, _processor_s(cameras) - before_s
    due = sum(round(camera.fps * took_s) for camera in cameras)
    on_time = sum(camera.arrived - camera.late for camera in cameras) / due
    taken = sum(camera.taken for camera in cameras) / due
    return Row(
        streams=streams,
        seconds=round(took_s, 1),
        due=due,
        on_time=round(min(on_time, 1.0), 4),
        taken=round(min(taken, 1.0), 4),
        keeps_up=min(on_time, taken) >= LEAST_KEPT,
        cores=round(used_s / took_s, 2),
        first_mb=round(max(camera.memory_mb[0] for camera in cameras), 1),
        last_mb=round(max(camera.memory_mb[-1] for camera in cameras), 1),
        most_mb=round(max(max(camera.memory_mb) for camera in cameras), 1),
    )


def _take_for(cameras: Sequence[_Camera], seconds: float, counting: bool) -> None:
    """Takes frames from all cameras, about four times as often as they arrive."""
    pause_s = 0.25 / max(camera.fps for camera in cameras)
    until_s = time.monotonic() + seconds
    noted_s = 0.0
    while (now_s := time.monotonic()) < until_s:
        for camera in cameras:
            camera.take(counting)
        if counting and now_s - noted_s >= 1.0:
            noted_s = now_s
            for camera in cameras:
                camera.note_memory()
        time.sleep(pause_s)


def _processor_s(cameras: Sequence[_Camera]) -> float:
    times = [camera.process.cpu_times() for camera in cameras]
    return time.process_time() + sum(spent.user + spent.system for spent in times)


def _spread_boxes(count: int) -> NDArray[np.float32]:
    """Returns boxes of the size of street objects, side by side."""
    left = np.linspace(0, 560, count)
    return np.stack([left, np.full(count, 120), left + 72, np.full(count, 200)], axis=1).astype(np.float32)


def draw_video(path: Path) -> Path:
    """Draws a video of the synthetic city and returns its path."""
    city = CitySpec(seed=5, fps=24.0, duration_s=10.0, width=640, height=352)
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), city.fps, (city.width, city.height))
    for frame, _ in city.open(KINDS).frames():
        writer.write(frame.image)
    writer.release()
    return path


def _numbers(text: str) -> Iterator[int]:
    for part in text.split(","):
        if not part.strip().isdigit() or int(part) < 1:
            raise UserError(f"--streams {text}: write numbers of streams separated by commas, as in 4,8")
        yield int(part)


def main(
    video: Annotated[Path | None, typer.Option(help="What every stream plays; drawn if left out.")] = None,
    streams: Annotated[str, typer.Option(metavar="N,...", help="How many, one after the other.")] = "4,8,12",
    seconds: Annotated[float, typer.Option(min=1.0, help="How long each is measured.")] = 20.0,
    objects: Annotated[int, typer.Option(min=1, help="Crops of a frame.")] = 8,
    out: Out = RESULTS,
    json_to: Json = None,
) -> None:
    """Measure how many streams are decoded and cropped at their rate."""
    with open_output(json_to) as channel, tempfile.TemporaryDirectory() as folder:
        counts = list(_numbers(streams))
        played = video or draw_video(Path(folder) / "city.mp4")
        rows = []
        for count in counts:
            channel.console.print(f"{count} streams of {played.name} for {seconds:g} s", highlight=False)
            rows.append(measure(played, count, seconds, objects))
        publish_rows(
            channel,
            "Decoding and cropping, inference off",
            rows,
            out / "bench_sources.csv",
            {"on_time": ".1%", "taken": ".1%"},
            video=played.name,
            objects=objects,
        )


if __name__ == "__main__":
    run(main, "python experiments/bench_sources.py --streams 8 --seconds 30 --json -")

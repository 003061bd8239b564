"""Recall and speed of object detection on real video when the detector runs on every n-th frame only.

    python experiments/bench_following.py --golden FastestDet.onnx street.mp4 motorway.mp4
    python experiments/bench_following.py --golden FastestDet.onnx --pan 6 --json - street.mp4

An object is a confident detection of the golden detector in a frame (``--all`` takes everything that it
would propose); it is found if a box overlaps it by IoU 0.5 or more. Between the frames that the detector
analyses, optical flow follows the boxes (``followed``), as with ``objects: {find: detector, every: n}`` in a
fleet file. Compared are the same with moving regions (``with motion``, for fixed cameras:
``find: detector+motion``) and boxes that stay in place (``held``), which shows the gain of following. Times
are processor time a frame, on one thread, and ``counted`` is what a run on virtual time charges, both as a
part of a detector on every frame. ``--pan`` makes a fixed camera turn: seven tenths of its picture are
visible, shifted by this number of pixels in each frame, to and fro.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Annotated

# Must be set before numpy is imported: times are of one core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import cv2
import numpy as np
import typer
from numpy.typing import NDArray
from recipe import Json, run
from rich.progress import Progress
from rich.table import Table

from ekya.cli.output import output
from ekya.core.errors import UserError
from ekya.core.objects import iou_matrix
from ekya.models.golden.detections import Detections, Detector, Proposals
from ekya.models.golden.golden_model import GOLDEN_SCORE, PROPOSAL_SCORE, open_detector_of
from ekya.models.golden.spec import GoldenSpec
from ekya.models.proposer import DetectorAndMotion
from ekya.streams.ingest.frame import Frame
from ekya.streams.ingest.motion import MotionRegions
from ekya.streams.ingest.video import VideoSpec

FOUND_IOU = 0.5
SEEN_PART = 0.7


class OnceADetector:
    """Detector that caches the result for the last picture and how long it took."""

    def __init__(self, detector: Detector) -> None:
        self._detector = detector
        self._picture: NDArray[np.uint8] | None = None
        self.took_s = 0.0
        self.found: Detections | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Class names of the detector."""
        return self._detector.names

    def detect(self, image: NDArray[np.uint8]) -> Detections:
        """Returns the detections; a repeated picture is served from the cache."""
        if self.found is None or self._picture is not image:
            began = time.thread_time()
            self.found = self._detector.detect(image)
            self.took_s = time.thread_time() - began
            self._picture = image
        return self.found

    def operations_per_frame(self, shape: tuple[int, ...]) -> int:
        """Operations of the detector for a frame."""
        return self._detector.operations_per_frame(shape)


class Held:
    """Proposer that keeps the boxes of the last detector frame in place."""

    def __init__(self, detector: Detector, every: int) -> None:
        self._proposer = DetectorAndMotion(detector, None)
        self._every, self._last = every, Proposals(np.zeros((0, 4), np.float32))

    def propose(self, frame: Frame) -> Proposals:
        """Returns the boxes of the last detector frame."""
        if frame.index % self._every == 0:
            self._last = self._proposer.propose(frame)
            return self._last
        return Proposals(self._last.boxes)


@dataclass(slots=True)
class Tally:
    """Totals of one way over one video.

    Attributes:
        found: objects.
        took_s: processor time, the detector's included.
        operations: counted.
    """

    found: int = 0
    took_s: float = 0.0
    operations: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """One way to find a video's objects.

    Attributes:
        every: n.
        way: ``followed``, ``with motion`` or ``held``.
        recall: part of the objects that were found.
        frame_ms: processor time a frame.
        time, counted: as a part of a detector on every frame.
    """

    video: str
    frames: int
    objects: int
    every: int
    way: str
    recall: float
    frame_ms: float
    time: float
    counted: float


def ways_of(detector: OnceADetector, every: list[int]) -> dict[tuple[int, str], DetectorAndMotion | Held]:
    """Returns the proposers to measure, by n and way."""
    ways: dict[tuple[int, str], DetectorAndMotion | Held] = {}
    for n in every:
        ways[n, "followed"] = DetectorAndMotion(detector, None, every=n)
        ways[n, "with motion"] = DetectorAndMotion(detector, MotionRegions(), every=n)
        if n > 1:
            ways[n, "held"] = Held(detector, n)
    return ways


def frames_of(video: Path, limit: int, pan: int) -> Iterator[Frame]:
    """Yields the first frames of a video, as in a run, or as a turning camera would see them."""
    for frame, _ in islice(VideoSpec(files=(video,)).open(()).frames(), limit):
        yield replace(frame, image=panned(frame.image, frame.index * pan)) if pan else frame


def panned(image: NDArray[np.uint8], turned: int) -> NDArray[np.uint8]:
    """Returns the part of a picture that is visible after turning by ``turned`` pixels, to and fro."""
    height, width = image.shape[:2]
    seen = round(SEEN_PART * width)
    room = width - seen
    left = room - abs(room - turned % (2 * room))
    return np.ascontiguousarray(image[: round(SEEN_PART * height), left : left + seen])


def measure(
    video: Path, detector: OnceADetector, every: list[int], limit: int, everything: bool, pan: int
) -> list[Row]:
    """Measures all ways over one video, frame by frame."""
    ways = ways_of(detector, every)
    tallies = {key: Tally() for key in ways}
    frames = objects = 0
    detector_s, detector_operations = 0.0, 0
    for frame in frames_of(video, limit, pan):
        seen = detector.detect(frame.image)
        detector_s += detector.took_s
        detector_operations += detector.operations_per_frame(frame.image.shape)
        there = seen.boxes if everything else seen.boxes[seen.scores >= GOLDEN_SCORE]
        frames, objects = frames + 1, objects + len(there)
        for key, proposer in ways.items():
            began = time.thread_time()
            proposals = proposer.propose(frame)
            took_s = time.thread_time() - began
            looked = proposals.found is not None
            tally = tallies[key]
            tally.took_s += took_s + (detector.took_s if looked else 0.0)
            tally.operations += proposals.count_operations()
            tally.found += int((iou_matrix(there, proposals.boxes) >= FOUND_IOU).any(axis=1).sum())
    if not objects:
        raise UserError(f"{video}: the detector finds nothing in it; give a video that shows what it knows.")
    return [
        Row(
            video=video.name,
            frames=frames,
            objects=objects,
            every=n,
            way=way,
            recall=tally.found / objects,
            frame_ms=1000 * tally.took_s / frames,
            time=tally.took_s / detector_s,
            counted=tally.operations / detector_operations,
        )
        for (n, way), tally in tallies.items()
    ]


def main(
    videos: Annotated[list[Path], typer.Argument(exists=True, dir_okay=False, help="Videos to look at.")],
    golden: Annotated[Path, typer.Option(exists=True, dir_okay=False, help="A detector's ONNX file.")],
    every: Annotated[list[int] | None, typer.Option(min=1, max=30, help="n; may be repeated.")] = None,
    frames: Annotated[int, typer.Option(min=2, help="Maximum number of frames of each video.")] = 300,
    pan: Annotated[int, typer.Option(min=0, help="Pixels a frame that the camera turns.")] = 0,
    everything: Annotated[
        bool, typer.Option("--all", help="Count what the detector half believes in.")
    ] = False,
    json_to: Json = None,
) -> None:
    """Measure what following saves, and which objects it misses."""
    cv2.setNumThreads(1)
    with output(json_to) as out:
        rows = []
        with Progress(console=out.console, transient=True) as bars:
            for video in bars.track(videos, description="watching"):
                detector = OnceADetector(open_detector_of(GoldenSpec(weights=golden), PROPOSAL_SCORE))
                rows.extend(measure(video, detector, every or [1, 2, 3, 5], frames, everything, pan))
        out.report({"rows": [asdict(row) for row in rows]})
        for name in dict.fromkeys(row.video for row in rows):
            own = [row for row in rows if row.video == name]
            table = Table(
                "every", "way", "found", "ms a frame", "time", "counted",
                title=f"{name}: {own[0].objects} objects in {own[0].frames} frames",
            )  # fmt: skip
            for row in own:
                table.add_row(
                    str(row.every),
                    row.way,
                    f"{row.recall:.1%}",
                    f"{row.frame_ms:.1f}",
                    f"{row.time:.0%}",
                    f"{row.counted:.0%}",
                )
            out.console.print(table)


if __name__ == "__main__":
    run(
        main,
        "python experiments/bench_following.py --golden FastestDet.onnx street.mp4 motorway.mp4",
    )

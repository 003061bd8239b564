"""F1 and cost of a detector on every n-th frame, with its boxes held or followed by optical flow between.

    python experiments/flow_worth.py --student FastestDet.safetensors --golden deimv2.onnx street.mp4 gate.mp4

The student, with the weights of its file, analyses every n-th frame at each side; the frames between are
answered by its last boxes (``held``), or by these followed into them (``flow``). So is the golden detector.
F1 at IoU 0.5 with class is against the golden detector on every frame. Costs are those of a cost card, in
GPU-seconds for a second of video.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated

# Must be set before numpy is imported: runs on virtual time use one thread.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import cv2
import numpy as np
import typer
from detect_fleet import CLASSES, fleet_of
from detect_options import Golden, Student
from numpy.typing import NDArray
from recipe import Json, run
from rich.table import Table

from ekya.cli.options import numbers
from ekya.cli.output import output
from ekya.config.fleet_file import FleetConfig
from ekya.core.configs import GOLDEN_RESOLUTION, InferenceConfig
from ekya.core.records import NO_LABELS, FramePrediction, PredictionColumns, ReferenceColumns
from ekya.core.units import BASE_VERSION
from ekya.models.edge.detection.suppress import Found
from ekya.models.golden.detections import GoldenObjects, Question
from ekya.models.golden.golden_model import GoldenModel, open_golden
from ekya.models.proposer import NoProposals
from ekya.pipeline.base_model import base_model
from ekya.pipeline.costs import CostCard, load_card
from ekya.pipeline.inference import FrameSteps, Proposed, serving
from ekya.pipeline.reference import Referee
from ekya.pipeline.setup import stream_setup
from ekya.results.metrics.detection_accuracy import score_detections
from ekya.streams.ingest.crops import whole_frame
from ekya.streams.ingest.frame import Frame
from ekya.streams.ingest.video import VideoSpec


@dataclass(frozen=True, slots=True)
class Row:
    """Result of one λ on one video.

    Attributes:
        side: of the student's input in pixels; ``GOLDEN_RESOLUTION`` for the golden detector.
        f1: against the golden detector on every frame; None without objects.
        gpu_s: for a second of video.
    """

    video: str
    side: int
    every: int
    flow: bool
    f1: float | None
    gpu_s: float


def answers_of(
    frames: Sequence[Frame], found: Sequence[Found], every: int, fleet: FleetConfig, follows: bool
) -> tuple[PredictionColumns, int]:
    """Returns the answers to all frames, and the operations of optical flow."""
    steps = FrameSteps(
        NoProposals(), stream_setup(fleet, 0, 30.0, 0).collector(), fleet.edge.task, follows=follows
    )
    config = InferenceConfig(every, fleet.edge.resolution)
    rows: list[FramePrediction] = []
    operations = 0
    for frame, of in zip(frames, found, strict=True):
        if frame.index % every == 0:
            rows += steps.answers([_proposed(frame)], config, BASE_VERSION, [of])
            steps.answered(frame.index)
        elif followed := steps.follow(frame, config, BASE_VERSION) if follows else None:
            rows.append(followed[0])
            operations += followed[1]
        else:
            rows.append(steps.skip(frame.index, frame.t_us, config, BASE_VERSION))
    return PredictionColumns.of(rows), operations


def _proposed(frame: Frame) -> Proposed:
    none: NDArray[np.float32] = np.zeros((0, 4), np.float32)
    size = (frame.image.shape[1], frame.image.shape[0])
    return Proposed(frame.index, frame.t_us, none, np.zeros((1, 1, 1, 3), np.uint8), size, frame.image)


def _as_found(of: GoldenObjects, frame: Frame) -> Found:
    scale = np.tile(np.array(frame.image.shape[1::-1], np.float32), 2)
    return Found(of.boxes / scale, of.classes, np.ones(len(of.classes), np.float32))


def rows_of(
    video: Path,
    fleet: FleetConfig,
    golden: GoldenModel,
    sides: Sequence[int],
    every: Sequence[int],
    most: int,
) -> Iterator[Row]:
    """Yields the results of all λ on one video."""
    card: CostCard = load_card().of(fleet.edge.model)
    frames = [frame for frame, _ in islice(VideoSpec(files=(video,)).open(()).frames(), most)]
    referee = Referee(golden, fleet.streams[0].id)
    judged = [referee.judge(frame) for frame in frames]
    reference = ReferenceColumns.of([row for row in judged if row is not None])
    seconds = len(frames) * (frames[-1].t_us - frames[0].t_us) / (len(frames) - 1) / 1e6
    model = serving(base_model(fleet, 0), CLASSES)
    for side in (*sides, GOLDEN_RESOLUTION):
        found: list[Found] = []
        for frame in frames:
            if side == GOLDEN_RESOLUTION:
                objects = golden.find(frame.image)
                assert objects is not None
                found.append(_as_found(objects, frame))
                continue
            found += model.predict(whole_frame(frame.image, side), side)
        if side == GOLDEN_RESOLUTION:
            counted = golden.operations([Question(np.zeros((0, 4), np.float32), frames[0].image)])
            one_s = card.proposing_gpu_s(counted)
        else:
            one_s = card.frame_gpu_s(1.0, side)
        for n in every:
            for follows in (False, True) if n > 1 else (False,):
                answers, operations = answers_of(frames, found, n, fleet, follows)
                score = score_detections(
                    answers, reference, NO_LABELS, decoded=len(frames), class_count=len(CLASSES)
                )
                used_s = -(-len(frames) // n) * one_s + card.proposing_gpu_s(operations)
                yield Row(video.name, side, n, follows, score.accuracy, used_s / seconds)


def main(
    videos: Annotated[list[Path], typer.Argument(exists=True, dir_okay=False, help="Recorded cameras.")],
    student: Student,
    golden: Golden,
    sides: Annotated[str, typer.Option(metavar="N,...", help="Sides of the student's input.")] = "352,224",
    every: Annotated[str, typer.Option(metavar="N,...", help="Analyse every n-th frame.")] = "1,2,3,5,10,15",
    frames: Annotated[int, typer.Option(min=2, help="Most frames of a video.")] = 600,
    json_to: Json = None,
) -> None:
    """Compare boxes that are held with boxes that are followed."""
    cv2.setNumThreads(1)
    rows: list[Row] = []
    with output(json_to) as out:
        for video in videos:
            fleet = fleet_of((video,), student, golden, 20.0, 1)
            model = open_golden(fleet.golden, CLASSES, fleet.edge.task)
            rows += rows_of(video, fleet, model, numbers(sides, "--sides"), numbers(every, "--every"), frames)
        out.report({"rows": [asdict(row) for row in rows]})
        out.console.print(_table(rows))


def _table(rows: Sequence[Row]) -> Table:
    table = Table("video", "detector", "every", "F1 held", "F1 flow", "GPU-s/s held", "GPU-s/s flow")
    flowing = {(row.video, row.side, row.every): row for row in rows if row.flow}
    for row in rows:
        if row.flow:
            continue
        other = flowing.get((row.video, row.side, row.every), row)
        name = "golden" if row.side == GOLDEN_RESOLUTION else f"{row.side} px"
        table.add_row(
            *(row.video, name, str(row.every), _percent(row.f1), _percent(other.f1)),
            *(f"{row.gpu_s:.3f}", f"{other.gpu_s:.3f}"),
        )
    return table


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


if __name__ == "__main__":
    run(main)

"""Compares an adapted small detector with a golden one that runs less often, on recorded cameras.

    python experiments/detect_worth.py --student FastestDet.onnx --golden deimv2.onnx street.mp4 gate.mp4
    python experiments/detect_worth.py ... --prices real,20,100 --json worth.json
    python experiments/detect_worth.py ... --schedulers ekya,no-retrain --seeds 11,12,13 --tuned-on street.mp4

Each video is one camera of a run on virtual time, played so that it lasts all windows. Compared are the
student under several schedulers, and, without a student, the golden detector on every frame and on every n-th
with optical flow between. F1 at IoU 0.5 with class is against the golden detector on every frame; frames that
any run took labels from count for none. A price is what a golden frame is charged as a multiple of a
student's; ``real`` is the cost card's own. At each price n is the smallest at which the golden detector on
every n-th frame costs no more than the adapted student with its labels, profiles and retrainings. A dearer
golden detector labels fewer frames: half of the preparation pays for them.

With several seeds a gain has a 95% interval; it says what the draws of seeds do, not what other videos would.
"""

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil
from pathlib import Path
from statistics import mean
from typing import Annotated

# Must be set before numpy is imported: runs on virtual time use one thread.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import typer
from cases import Jobs, run_cases
from detect_gains import ADAPTED, FROZEN, Gain, Row, gains, lower
from numpy.typing import NDArray
from recipe import Json, print_rows, run

from ekya.cli.command import open_output
from ekya.cli.options import parse_integers, refuse_repeats
from ekya.config.fleet_file import FleetConfig
from ekya.core.errors import UserError
from ekya.core.events import ModelSwapped
from ekya.core.host import TYPICAL_FRAME
from ekya.core.objects import DOUBTFUL, SURE
from ekya.core.records import FramePrediction, LabelledBoxes, PredictionColumns, ReferenceColumns
from ekya.core.units import StreamId
from ekya.models.golden.golden_model import open_detector_of
from ekya.pipeline.costs import CostCard, load_card
from ekya.results.metrics.accuracy import StreamScore
from ekya.results.metrics.detection_accuracy import score_detections
from ekya.results.metrics.run_history import summarize_steps
from ekya.results.storage.journal import read_journal
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_state import StateStore
from ekya.results.storage.run_tables import read_predictions, read_reference
from ekya.simulation.emulated.run import emulate
from ekya.streams.ingest.motion import BoxFlow
from ekya.streams.ingest.video import VideoSpec
from ekya.system.files import write_bytes_atomic

SCHEDULERS = (ADAPTED, "thief", "uniform", FROZEN)
REAL = "real"

CLASSES = ("person", "bicycle", "car", "motorcycle", "bus", "truck")
CAMERA = StreamId("camera")

Student = Annotated[Path, typer.Option(exists=True, dir_okay=False, help="Weights of the student.")]
Golden = Annotated[Path, typer.Option(exists=True, dir_okay=False, help="A detector's ONNX file.")]


@dataclass(frozen=True, slots=True, eq=False)
class Ran:
    """A finished run.

    Attributes:
        predictions: of its stream.
        labelled: frames that it took labels from.
        gpu_s: GPU-seconds of inference, labels, profiles and retrainings.
        first_swap_us: time of the first hot swap; None if there was none.
    """

    predictions: PredictionColumns
    labelled: LabelledBoxes
    gpu_s: float
    first_swap_us: int | None


def fleet_of(
    video: Path, student: Path, golden: Path, window_s: float, windows: int, speed: float
) -> FleetConfig:
    """Returns a fleet of one camera that shows a video."""
    return FleetConfig.model_validate(
        {
            "name": video.stem.replace(".", "-"),
            "classes": list(CLASSES),
            "gpus": 1.0,
            "window_s": window_s,
            "windows": windows,
            "golden": {"model": "onnx", "weights": golden},
            "edge": {"task": "detect", "weights": student},
            "streams": [
                {
                    "id": CAMERA,
                    "source": {"kind": "video", "files": [video]},
                    "play": {"speed": speed},
                }
            ],
        }
    )


def duration_s(video: Path) -> float:
    """Returns the stream time of the last frame: a container's own duration is a hint."""
    last_us = 0
    for frame, _ in VideoSpec(files=(video,)).open(()).frames():
        last_us = frame.t_us
    return max(last_us / 1e6, 1.0)


def with_price(card: CostCard, fleet: FleetConfig, price: str) -> CostCard:
    """Returns the card with a golden frame charged as this many of the student's finest frames."""
    if price == REAL:
        return card
    operations = open_detector_of(fleet.golden, 0.5).operations_per_frame(TYPICAL_FRAME)
    frame_s = card.of(fleet.edge.model).frame_gpu_s(1.0, max(fleet.inference.resolutions))
    return replace(card, detector_ops_per_s=operations / (float(price) * frame_s))


def affordable_labels(fleet: FleetConfig, card: CostCard) -> FleetConfig:
    """Returns the fleet with as many labelled frames as half of its preparation can pay for."""
    preparation = fleet.preparation
    half_s = fleet.window_s * preparation.fraction * preparation.share_milli / 1000 / 2
    count = int(half_s / card.proposing_gpu_s(golden_operations(fleet)))
    spec = fleet.golden.model_copy(update={"frames_per_window": min(max(count, 4), 24)})
    return fleet.model_copy(update={"golden": spec})


def ran(folder: RunFolder, fleet: FleetConfig, scheduler: str, seed: int, card: CostCard) -> Ran:
    """Makes one run on virtual time."""
    emulate(folder, fleet, scheduler, seed, lambda batch, step: None, card)
    _, _, steps = read_journal(folder.journal)
    history = summarize_steps(steps)
    predictions = read_predictions(folder.predictions(CAMERA))
    own = card.of(fleet.edge.model)
    sides, counts = np.unique(predictions.resolution[predictions.analysed], return_counts=True)
    inference_s = sum(
        int(count) * own.frame_gpu_s(1.0, int(side)) for side, count in zip(sides, counts, strict=True)
    )
    training_s = sum(one.gpu_s for one in history.retrainings)
    swaps = [event.t_us for step in steps for event in step.events if isinstance(event, ModelSwapped)]
    with StateStore(folder.state) as store:
        labelled = store.read_labels(CAMERA)
    used_s = inference_s + training_s + history.labelling_gpu_s + history.profiling_gpu_s
    return Ran(predictions, labelled, used_s, min(swaps, default=None))


def score(
    predictions: PredictionColumns, reference: ReferenceColumns, labelled: LabelledBoxes
) -> StreamScore:
    """Scores answers to frames that no run took labels from."""
    return score_detections(predictions, reference, labelled, decoded=0, class_count=len(CLASSES))


def after(
    predictions: PredictionColumns, reference: ReferenceColumns, labelled: LabelledBoxes, from_us: int | None
) -> float | None:
    """Returns the F1 of all frames from a time on, counted together; None if there is no such time."""
    if from_us is None:
        return None
    windows = score(
        predictions, reference.select_frames(reference.frame[reference.t_us >= from_us]), labelled
    ).windows
    counted = sum(window.counted for window in windows)
    return sum(window.correct for window in windows) / counted if counted else None


def golden_every(
    n: int, fleet: FleetConfig, reference: ReferenceColumns, window_us: int
) -> PredictionColumns:
    """Returns the golden detector's sure boxes on every n-th frame, followed by optical flow between them."""
    rows, flow = [], BoxFlow()
    begun: NDArray[np.int16] = np.zeros(0, np.int16)
    at = {int(frame): row for row, frame in enumerate(reference.frame)}
    for frame, _ in fleet.streams[0].played.open(CLASSES).frames():
        if frame.index not in at:
            continue
        part = slice(*reference.offsets[at[frame.index] : at[frame.index] + 2])
        sure = reference.classes[part] != DOUBTFUL
        if frame.index % n == 0:
            boxes, classes = reference.boxes[part][sure], reference.classes[part][sure]
            if n > 1:
                flow.start_boxes(frame.image, boxes)
                begun = classes
        else:
            boxes, classes = flow.follow_boxes(frame.image), begun[flow.rows]
        rows.append(
            FramePrediction(
                frame=frame.index,
                t_us=frame.t_us,
                window=frame.t_us // window_us,
                analysed=True,
                answered_by=frame.index,
                model_version=0,
                every=n,
                resolution=0,
                boxes=boxes,
                classes=classes,
                confidence=np.full(len(boxes), SURE, np.float32),
            )
        )
    return PredictionColumns.from_rows(rows)


@dataclass(frozen=True, slots=True)
class Case:
    """All ways on one video with one seed at one price.

    Attributes:
        fleet: of one camera, which shows the video.
        schedulers: of the student.
        root: folder of all runs.
    """

    video: Path
    fleet: FleetConfig
    seed: int
    price: str
    schedulers: tuple[str, ...]
    root: Path


def rows_of(case: Case) -> list[Row]:
    """Returns the results of a case."""
    video, price, card = case.video, case.price, load_card()
    priced = with_price(card, case.fleet, price)
    fleet = affordable_labels(case.fleet, priced)
    runs: dict[str, Ran] = {}
    reference_file = case.root / f"{video.stem}.parquet"
    for scheduler in case.schedulers:
        name = f"{video.stem}-{scheduler}-{case.seed}-{price}".replace(".", "-")
        folder = RunFolder.create_numbered(case.root, name)
        own_file = folder.reference(CAMERA)
        # The golden detector finds the same in every run.
        if reference_file.exists():
            write_bytes_atomic(own_file, reference_file.read_bytes())
        runs[scheduler] = ran(folder, fleet, scheduler, case.seed, priced)
        if not reference_file.exists():
            write_bytes_atomic(reference_file, own_file.read_bytes())
    adapted = runs[ADAPTED]
    arrived = adapted.predictions.frame
    reference = read_reference(reference_file).select_frames(arrived)
    labelled = LabelledBoxes.join_boxes(one.labelled for one in runs.values())
    golden_s = priced.proposing_gpu_s(golden_operations(fleet))
    flow_s = priced.proposing_gpu_s(BoxFlow().count_operations(TYPICAL_FRAME, _BOXES))

    def row(way: str, predictions: PredictionColumns, gpu_s: float) -> Row:
        return Row(
            video.name,
            case.seed,
            price,
            way,
            score(predictions, reference, labelled).accuracy,
            after(predictions, reference, labelled, adapted.first_swap_us),
            gpu_s,
        )

    rows = [row(scheduler, one.predictions, one.gpu_s) for scheduler, one in runs.items()]
    frames, window_us = len(arrived), round(fleet.window_s * 1e6)
    spare_s = adapted.gpu_s - frames * flow_s
    every = ceil(frames * golden_s / spare_s) if spare_s > 0 else frames
    for n in dict.fromkeys((1, max(every, 1))):
        costs = frames / n * golden_s + (frames * flow_s if n > 1 else 0.0)
        rows.append(row(f"golden 1/{n}", golden_every(n, fleet, reference, window_us), costs))
    return rows


def golden_operations(fleet: FleetConfig) -> int:
    """Returns the counted operations of the golden detector on a frame."""
    return open_detector_of(fleet.golden, 0.5).operations_per_frame(TYPICAL_FRAME)


_BOXES = 6.0


def way_rows(rows: Sequence[Row], price: str) -> Iterator[dict[str, object]]:
    """Yields all ways, in the mean over the seeds."""

    def percent_of(values: Sequence[float | None]) -> str:
        known = [value for value in values if value is not None]
        return f"{mean(known):.1%}" if known else "-"

    for video, way in dict.fromkeys((row.video, row.way) for row in rows if row.price == price):
        own = [row for row in rows if (row.video, row.way, row.price) == (video, way, price)]
        yield {
            "video": video,
            "way": way,
            "F1": percent_of([row.f1 for row in own]),
            "after the first retraining": percent_of([row.after for row in own]),
            "GPU-seconds": mean(row.gpu_s for row in own),
        }


def gain_row(gain: Gain) -> dict[str, object]:
    """Returns a gain in points for display."""
    return {
        "over": gain.over,
        "seeds": gain.seeds,
        "whole run": gain.whole.in_points(),
        "after the first retraining": gain.after.in_points(),
    }


def main(
    videos: Annotated[list[Path], typer.Argument(exists=True, dir_okay=False, help="One camera each.")],
    student: Student,
    golden: Golden,
    prices: Annotated[str, typer.Option(metavar="PRICE,...", help="real, or frames of the student.")] = REAL,
    seeds: Annotated[str, typer.Option(metavar="N,...", help="Seeds.")] = "0",
    schedulers: Annotated[str, typer.Option(metavar="NAME,...", help="Schedulers.")] = ",".join(SCHEDULERS),
    window: Annotated[float, typer.Option(min=4.0, help="Seconds of a window.")] = 20.0,
    windows: Annotated[int, typer.Option(min=2, help="Number of windows.")] = 4,
    tuned_on: Annotated[
        list[Path] | None,
        typer.Option(
            help="Video that settings were chosen on; may be repeated. The others are stated apart."
        ),
    ] = None,
    jobs: Jobs = 1,
    json_to: Json = None,
) -> None:
    """Compare an adapted student with a golden detector that runs less often."""
    names = tuple(schedulers.split(","))
    if not {ADAPTED, FROZEN} <= set(names):
        raise UserError(f"--schedulers: {ADAPTED} and {FROZEN} are compared with all others; name both.")
    refuse_repeats("videos", [video.stem for video in videos])
    tuned = {video.name for video in tuned_on or ()}
    if missing := sorted(tuned - {video.name for video in videos}):
        raise UserError(
            f"--tuned-on: {missing[0]} is none of the videos; leave it out, or name it as a video."
        )
    with open_output(json_to) as out, tempfile.TemporaryDirectory() as folder:
        fleets = {
            video: fleet_of(video, student, golden, window, windows, duration_s(video) / (window * windows))
            for video in videos
        }
        cases = [
            Case(video, fleets[video], seed, price, names, Path(folder))
            for seed in parse_integers(seeds)
            for video in videos
            for price in prices.split(",")
        ]
        rows = [row for found in run_cases(rows_of, cases, jobs, out.console) for row in found]
        every = {price: list(gains(rows, price, tuned)) for price in prices.split(",")}
        out.write_json(
            {
                "rows": [asdict(row) for row in rows],
                "gains": [asdict(gain) for own in every.values() for gain in own],
            }
        )
        for price, own in every.items():
            title = f"gain of adapting, in points (95% interval over seeds); price: {price}"
            print_rows(out.console, f"price: {price}", list(way_rows(rows, price)))
            print_rows(out.console, title, [gain_row(one) for one in own])
            worse = lower(own, [video.name for video in videos])
            out.print_text(
                f"More than 2 points lower than without retraining: {', '.join(worse) or 'no video'}"
            )


if __name__ == "__main__":
    run(main, "python experiments/detect_worth.py --student FastestDet.onnx --golden deimv2.onnx street.mp4")

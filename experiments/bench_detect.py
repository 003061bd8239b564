"""Time of detectors on one core: a frame, new weights, and a step of training.

    python experiments/bench_detect.py
    python experiments/bench_detect.py --sides 352,160 --rounds 50 --json -

*Frames*: our predictor, from an RGB image of the largest side to the boxes of all cells, and with
suppression (of a street of the shared data, if that is there); the same in torch; and the bare network in
onnxruntime, on an input that is prepared already. The published ONNX file has a fixed side of 352 pixels, so
for the other sides the plain network is exported from the student: the same layers, and outputs that end in
probabilities. They take turns, a frame each, and each round gives ratios to the bare network; torch takes
turns with the bare network alone.

*Cameras*: a frame of each of four cameras with the same weights, one by one and in one pass, in both engines.

*New weights*: from a model to the boxes of its first frame, as in a hot swap. The first of a process imports
onnxruntime and exports the network.

*Training*: epochs of retrainings of the heads, of the heads and the neck (SPP), and of everything, on 24
frames in batches of 8 with the activations of frozen blocks kept, and with distillation. They take turns too.

Times are thread time, so that the ratios hold on a busy machine. About half a minute.
"""

import io
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Annotated, Any

# Must be set before numpy is imported: times are of one core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import cv2
import numpy as np
import onnxruntime
import torch
import typer
from city_windows import one_thread
from numpy.typing import NDArray
from recipe import Json, Seed, print_rows, run
from torch import Tensor, nn

from ekya.cli.command import open_output
from ekya.core.configs import RetrainConfig
from ekya.core.errors import UserError
from ekya.models.edge.architecture_table import FASTESTDET, INPUT_MEAN, INPUT_SCALE
from ekya.models.edge.detection.predictor import DetectorPredictor
from ekya.models.edge.detection.read_objects import fleet_outputs, found_in
from ekya.models.edge.detection.weights import open_detector_weights
from ekya.models.edge.forward import ONNXRUNTIME, PLAIN, TORCH, ForwardWay
from ekya.models.edge.model import EdgeModel, build_edge_model
from ekya.models.edge.predictor import prepared
from ekya.models.training.frames import FrameObjects, LabelledFrames
from ekya.models.training.trainer import Retraining, RetrainingData

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"
VIDEO = "ahmetozlu_input_video.mp4"
CLASSES = ("person", "bicycle", "car", "motorcycle", "bus", "truck")
SIDES = "352,288,224,160"
FILE_SIDE = 352
"""Side of the published ONNX file's input."""

BARE, OURS, SUPPRESSED, IN_TORCH = "bare", "ours", "ours, suppressed", "torch"
FILE = "published file"
CAMERAS = 4

FRAMES, BATCH, OBJECTS = 24, 8, 5
PARTS: Mapping[str, int] = {"heads": 0, "heads and neck": 1, "everything": 5}
"""Number of blocks that train, by the name of the part."""

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Row:
    """Time of one thing, and its ratio to another in the same round.

    Attributes:
        name: of what was timed.
        ms: median, in milliseconds.
        ratio: median over rounds; 1.0 for what the others are compared with.
        low, high: quartiles of the ratio.
    """

    name: str
    ms: float
    ratio: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Swap:
    """Time from new weights to the boxes of their first frame, in seconds.

    Attributes:
        first_s: thread time of the first in the process, with the export.
        next_s: median of those after it.
        first_wall_s, next_wall_s: likewise by the wall clock, which a busy machine stretches.
        engine: that serves.
    """

    first_s: float
    next_s: float
    first_wall_s: float
    next_wall_s: float
    engine: str


class PlainNetwork(nn.Module):
    """A detector as the published file has it: from pixels in [0, 1] to probabilities of cells."""

    def __init__(self, model: EdgeModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> Tensor:
        """Maps (1, 3, S, S) to (1, 5 + C, h, w)."""
        outputs = self.model((pixels - INPUT_MEAN) / INPUT_SCALE)
        return torch.cat([outputs[:, :1].sigmoid(), outputs[:, 1:5], outputs[:, 5:].softmax(dim=1)], dim=1)


def plain_file(model: EdgeModel, side: int) -> bytes:
    """Returns the plain network as an ONNX file with this side."""
    file: Any = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = PlainNetwork(prepared(model, "cpu", PLAIN)).eval()
        torch.onnx.export(network, (torch.zeros(1, 3, side, side),), file, dynamo=False)
    written: bytes = file.getvalue()
    return written


def bare(file: bytes | str, side: int) -> Call:
    """Returns a pass of an ONNX file in onnxruntime, on one thread and an input of this side."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(file, options, ["CPUExecutionProvider"])
    given = {session.get_inputs()[0].name: np.random.default_rng(0).random((1, 3, side, side), np.float32)}
    return lambda: session.run(None, given)


def published(file: Path) -> Call:
    """Returns a pass of the published file.

    Raises:
        UserError: it is damaged, or takes something else than an image of ``FILE_SIDE``.
    """
    try:
        call = bare(str(file), FILE_SIDE)
        call()
    except Exception as error:  # onnxruntime's exceptions have no other common base.
        raise UserError(
            f"{file}: is no FastestDet that onnxruntime can run, named by the option --onnx "
            f"({str(error).splitlines()[0][:120]}); copy it again."
        ) from error
    return call


def frame_rows(
    model: EdgeModel, file: Path | None, side: int, image: NDArray[np.uint8], rounds: int
) -> list[Row]:
    """Times frames at one side, compared with the published file if it has that side.

    Args:
        model: the student.
        file: the published ONNX file; None if there is none.
        side: that images are resized to.
        image: (1, S, S, 3) uint8 RGB.
        rounds: frames of each.
    """
    ours = DetectorPredictor(model)
    in_torch = DetectorPredictor(model, way=ForwardWay(engine=TORCH))
    in_fleet = fleet_outputs(model.classes, CLASSES)
    calls: dict[str, Call] = {}
    if file is not None and side == FILE_SIDE:
        calls[FILE] = published(file)
    calls[BARE] = bare(plain_file(model, side), side)
    calls[OURS] = lambda: ours.predict(image, side)
    calls[SUPPRESSED] = lambda: found_in(ours.predict(image, side), in_fleet)
    against = next(iter(calls))
    rows = compared(calls, rounds, against)
    # Apart: torch's pass empties the caches, at the cost of whatever follows it.
    apart = {against: calls[against], IN_TORCH: lambda: in_torch.predict(image, side)}
    return [*rows, compared(apart, rounds, against)[1]]


def camera_rows(model: EdgeModel, side: int, image: NDArray[np.uint8], rounds: int) -> list[Row]:
    """Times frames of several cameras, one by one and in one pass; times are of a frame."""
    images, rows = np.repeat(image, CAMERAS, axis=0), []
    for engine in (ONNXRUNTIME, TORCH):
        calls: dict[str, Call] = {}
        for way in (ForwardWay(engine=engine), ForwardWay(engine=engine, images_a_pass=CAMERAS)):
            calls[str(way)] = partial(DetectorPredictor(model, way=way).predict, images, side)
        rows += compared(calls, rounds, str(ForwardWay(engine=engine)), CAMERAS)
    return rows


def compared(
    calls: Mapping[str, Call],
    rounds: int,
    baseline: str,
    units: float = 1.0,
    now_s: Callable[[], float] = time.thread_time,
) -> list[Row]:
    """Times calls in turn, and compares each with the baseline's call of the same round.

    Args:
        calls: by name. Each is called once before.
        rounds: calls of each.
        baseline: name of one of them.
        units: that a call does; times are of one unit.
        now_s: the clock.
    """
    names = list(calls)
    took: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        calls[name]()
    rng = np.random.default_rng(0)
    for _ in range(rounds):
        # In a new order each time: what runs after another finds that one's weights in the cache.
        for name in rng.permutation(names).tolist():
            began_s = now_s()
            calls[name]()
            took[name].append(now_s() - began_s)
    rows = []
    for name in names:
        ratios = [own / other for own, other in zip(took[name], took[baseline], strict=True)]
        low, middle, high = quantiles(ratios, n=4, method="inclusive")
        rows.append(Row(name, median(took[name]) * 1e3 / units, middle, low, high))
    return rows


def swap_of(models: Sequence[EdgeModel], image: NDArray[np.uint8]) -> Swap:
    """Times new weights; the first model's must be the first of the process, or its export is not counted."""
    took, wall, engine = [], [], ""
    for model in models:
        began_s, began_wall_s = time.thread_time(), time.perf_counter()
        predictor = DetectorPredictor(model)
        predictor.predict(image, image.shape[1])
        took.append(time.thread_time() - began_s)
        wall.append(time.perf_counter() - began_wall_s)
        engine = str(predictor.way.engine)
    return Swap(took[0], median(took[1:]), wall[0], median(wall[1:]), engine)


def training_rows(model: EdgeModel, side: int, rounds: int, seed: int) -> list[Row]:
    """Times epochs, compared with training everything; times are of a picture."""
    frames = labelled(side, seed)
    calls: dict[str, Call] = {}
    for name, blocks in PARTS.items():
        config = RetrainConfig(rounds + 1, BATCH, 0, blocks, 1.0)
        data = RetrainingData(frames, frames.select_rows(np.zeros(0, np.int64)), model.classes, seed=seed)
        retraining = Retraining(model, config, data)
        retraining.prepare_training()
        calls[name] = retraining.run_epoch
    return compared(calls, rounds, list(PARTS)[-1], FRAMES)


def labelled(side: int, seed: int) -> LabelledFrames:
    """Returns frames of noise with objects anywhere; times do not depend on what they show."""
    rng = np.random.default_rng(seed)
    objects = []
    for _ in range(FRAMES):
        low = rng.random((OBJECTS, 2)) * 0.7
        boxes = np.concatenate([low, low + 0.05 + 0.25 * rng.random((OBJECTS, 2))], axis=1)
        named = rng.integers(0, len(CLASSES), OBJECTS)
        objects.append(FrameObjects(boxes.astype(np.float32), named, np.zeros((0, 4), np.float32)))
    images = rng.integers(0, 256, (FRAMES, side, side, 3)).astype(np.uint8)
    order = np.arange(FRAMES, dtype=np.int64)
    return LabelledFrames(images, tuple(objects), CLASSES, order, order * 1_000_000)


def students(student: Path | None, count: int, seed: int) -> list[EdgeModel]:
    """Returns a student several times, with slightly other heads; fresh weights if no file is named."""
    names = CLASSES + tuple(f"other {place}" for place in range(80 - len(CLASSES)))
    models = []
    for place in range(count):
        if student is None:
            models.append(build_edge_model(names, 0, seed + place, FASTESTDET))
            continue
        model = open_detector_weights(student, FASTESTDET, CLASSES)
        with torch.no_grad():
            for weight in model.head.parameters():
                weight.mul_(1 + 0.001 * place)
        models.append(model)
    return models


def picture(side: int, seed: int) -> NDArray[np.uint8]:
    """Returns (1, side, side, 3) uint8 RGB: a frame of the shared data with many objects, or noise."""
    video = data_folder() / "videos" / VIDEO
    if not video.is_file():
        return np.random.default_rng(seed).integers(0, 256, (1, side, side, 3)).astype(np.uint8)
    _, frame = cv2.VideoCapture(str(video)).read()
    return np.ascontiguousarray(cv2.resize(frame, (side, side))[None, :, :, ::-1])


def data_folder() -> Path:
    """Returns the folder of the shared data, which may be missing."""
    return Path(os.environ.get("EKYA_DATA", DATA))


def sides_of(text: str) -> list[int]:
    """Reads sides, multiples of 32.

    Raises:
        UserError: it is something else.
    """
    parts = text.split(",")
    if not all(part.strip().isdigit() and int(part) > 0 and int(part) % 32 == 0 for part in parts):
        raise UserError(f"--sides {text}: sides are multiples of 32 with commas between; try {SIDES}.")
    return [int(part) for part in parts]


def found(path: Path | None, default: str, option: str) -> Path | None:
    """Returns a named file, or one of the shared data if it is there.

    Raises:
        UserError: the named file is missing.
    """
    if path is None:
        shared = data_folder() / "weights" / default
        return shared if shared.is_file() else None
    if not path.is_file():
        raise UserError(f"{path}: no such file, named by the option {option}; correct the path.")
    return path


def main(
    student: Annotated[
        Path | None,
        typer.Option(help="Weights of FastestDet; those of the shared data, or fresh ones, if not named."),
    ] = None,
    onnx: Annotated[
        Path | None,
        typer.Option(help="Published FastestDet.onnx; that of the shared data, or none, if not named."),
    ] = None,
    sides: Annotated[
        str, typer.Option(help="Of the network's input in pixels; the first one trains.")
    ] = SIDES,
    rounds: Annotated[int, typer.Option(min=3, help="Frames of each way; a fifth as many epochs.")] = 100,
    seed: Seed = 0,
    json_to: Json = None,
) -> None:
    """Time frames, new weights and training of a detector."""
    one_thread()
    # Live runs do without, and it fills memory that is written anyway.
    torch.use_deterministic_algorithms(False)
    asked = sides_of(sides)
    weights = found(student, "FastestDet_coco.safetensors", "--student")
    file = found(onnx, "FastestDet.onnx", "--onnx")
    models = students(weights, 6, seed)
    largest = max(asked)
    image = picture(largest, seed)
    with open_output(json_to) as out:
        swap = swap_of(models, image)
        frames = {side: frame_rows(models[0], file, side, image, rounds) for side in asked}
        cameras = {side: camera_rows(models[0], side, image, max(3, rounds // 5)) for side in asked}
        training = training_rows(models[0], asked[0], max(3, rounds // 5), seed)
        out.write_json(
            {
                "student": None if weights is None else weights.name,
                "onnx": None if file is None else file.name,
                "rounds": rounds,
                "seed": seed,
                "frames": {str(side): [asdict(row) for row in rows] for side, rows in frames.items()},
                "cameras": {str(side): [asdict(row) for row in rows] for side, rows in cameras.items()},
                "swap": asdict(swap),
                "training": [asdict(row) for row in training],
            }
        )

        def show(title: str, rows: Sequence[Row]) -> None:
            print_rows(out.console, title, [asdict(row) for row in rows])

        for side, rows in frames.items():
            show(f"A frame at {side} pixels, ratio to {rows[0].name}", rows)
            show(f"A frame of {CAMERAS} cameras at {side} pixels, ratio to one by one", cameras[side])
        out.console.print(
            f"New weights serve in {swap.engine} after {swap.next_s:.2f} s (by the wall clock "
            f"{swap.next_wall_s:.2f}), the first of a process after {swap.first_s:.2f} s "
            f"({swap.first_wall_s:.2f}).",
            highlight=False,
            soft_wrap=True,
        )
        show(f"Training at {asked[0]} pixels, a picture and step, ratio to {training[-1].name}", training)


if __name__ == "__main__":
    run(
        main,
        "python experiments/bench_detect.py",
        "python experiments/bench_detect.py --sides 352,160 --rounds 50 --json -",
    )

"""Detectors as ONNX files, in the output layouts of the YOLO family.

Supported layouts, for C classes and N boxes. The input is an image letterboxed to H x W pixels with grey
borders, RGB in [0, 1], except for FastestDet:

| output | boxes | exported by |
|---|---|---|
| (1, 4+C, N) | centre, size in pixels; a score per class | YOLOv8, v9, v11, v12 |
| (1, N, 5+C) | centre, size in pixels; objectness; a score per class; three boxes per cell | YOLOv5, v7 |
| (1, N, 6) | corners in pixels, score, class; after suppression | YOLOv10, v26, and exports with NMS |
| (N, 7) | index of the image, corners, class, score; after suppression | YOLOv7 with NMS |
| (1, 5+C, n, n) | see ``fastestdet.py`` | FastestDet |

(1, N, 5+C) with one box per cell is rejected: YOLOX and YOLOv6 use it with different meanings.
"""

import ast
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnxruntime
from numpy.typing import NDArray

from ekya.core.errors import UserError
from ekya.models.golden.boxes import nms
from ekya.models.golden.checksum import existing
from ekya.models.golden.coco import coco_names, listed_names
from ekya.models.golden.detections import Detections, Detector
from ekya.models.golden.fastestdet import FastestDet

USUAL_SIDE = 640
"""Side of a dynamic input in pixels: the size that these networks are trained with."""

_TYPES: Mapping[str, type[np.floating[Any]]] = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
_PRODUCTS = frozenset({"Conv", "Gemm", "MatMul"})


@dataclass(frozen=True, slots=True, eq=False)
class OnnxFile:
    """An ONNX network that takes one image.

    Attributes:
        path: of the file, for errors.
        height, width: of its input, pixels.
        notes: metadata of the file, by key.
    """

    path: Path
    height: int
    width: int
    notes: Mapping[str, str]
    _session: Any
    _input: str
    _type: type[np.floating[Any]]

    def run(self, picture: NDArray[np.float32]) -> list[NDArray[Any]]:
        """Returns all outputs for an image, (3, height, width)."""
        answers: list[NDArray[Any]] = self._session.run(
            None, {self._input: np.ascontiguousarray(picture[None].astype(self._type))}
        )
        return answers

    def operations(self) -> int:
        """Returns the multiplications and additions of convolutions and matrix products for one image."""
        with tempfile.TemporaryDirectory() as folder:
            options = _options()
            options.enable_profiling = True
            options.profile_file_prefix = str(Path(folder) / "counted")
            # Without optimisation: fused layers cannot be recognised by name.
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            session = onnxruntime.InferenceSession(str(self.path), options, ["CPUExecutionProvider"])
            session.run(None, {self._input: np.zeros((1, 3, self.height, self.width), self._type)})
            events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        return sum(_products(event.get("args", {})) for event in events)


def _open_file(path: Path) -> OnnxFile:
    """Load a network and read the shape of its input.

    Raises:
        UserError: the file is damaged, or its input is not one image.
    """
    try:
        session = onnxruntime.InferenceSession(str(path), _options(), ["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions have no other common base.
        raise UserError(
            f"{path}: no ONNX network that onnxruntime can run, named by the key 'weights' "
            f"({str(error).splitlines()[0][:160]}); export or copy it again."
        ) from error
    inputs = session.get_inputs()
    shape = list(inputs[0].shape) if len(inputs) == 1 else []
    if len(shape) != 4 or shape[1] != 3 or inputs[0].type not in _TYPES or shape[0] not in (1, *_open(shape)):
        taken = ", ".join(f"{one.name} {one.type} {one.shape}" for one in inputs)
        raise UserError(
            f"{path}: takes {taken} where one picture of floats (1, 3, height, width) is expected, named "
            "by the key 'weights'; export it so."
        )
    height, width = (side if isinstance(side, int) else USUAL_SIDE for side in shape[2:])
    notes = {str(key): str(value) for key, value in session.get_modelmeta().custom_metadata_map.items()}
    return OnnxFile(path, height, width, notes, session, inputs[0].name, _TYPES[inputs[0].type])


def _open(shape: Sequence[object]) -> list[object]:
    """Returns the batch dimension in a list, if the network leaves it open, else an empty list."""
    return [] if isinstance(shape[0], int) else [shape[0]]


def _options() -> Any:
    """Returns session options: one thread, as in all of Ekya, and no logs, as errors are raised."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return options


def _products(layer: Mapping[str, Any]) -> int:
    """Returns the operations of one layer, from the shapes of its inputs and outputs."""
    if layer.get("op_name") not in _PRODUCTS or "output_type_shape" not in layer:
        return 0
    left, right, *_ = [next(iter(one.values())) for one in layer["input_type_shape"]]
    given = next(iter(layer["output_type_shape"][0].values()))
    # Number of products per value of the output. A Gemm's left matrix may be transposed.
    match layer["op_name"]:
        case "Conv":
            summed = int(np.prod(right[1:]))
        case "MatMul":
            summed = left[-1]
        case _:
            summed = int(np.prod(left)) // max(given[0], 1)
    return 2 * int(np.prod(given)) * summed


_GREY = 114
_MAX_IOU = 0.45
_MOST_BOXES = 300
_STRIDES = ((8, 16, 32), (8, 16, 32, 64), (16, 32))
_ANCHORS = 3

_Answer = NDArray[np.float32]
_Decode = Callable[[_Answer], Detections]


def open_onnx(name: str, weights: Path | None, min_score: float) -> Detector:
    """Opens a detector from an ONNX file; its output layout is determined by running it once.

    Args:
        name: of the detector, for errors.
        weights: the file. Its classes are those in its metadata under ``names``, or the lines of a ``.names``
            file of the same name or of ``coco.names`` beside it, or COCO's.
        min_score: detections below are dropped.

    Raises:
        UserError: the file is missing, damaged, or has none of the layouts above.
    """
    path = existing(name, weights)
    file = _open_file(path)
    try:
        answers = file.run(np.zeros((3, file.height, file.width), np.float32))
    except Exception as error:  # onnxruntime's exceptions have no other common base.
        raise _refused(path, f"nothing to a black picture ({str(error)[:160]})", "export it again") from error
    shape = np.shape(answers[0])
    if len(answers) == 1 and len(shape) == 4 and shape[2] == shape[3] and shape[0] == 1:
        return FastestDet(path, min_score)
    names = _names(file)
    if len(answers) != 1:
        raise _refused(path, f"{len(answers)} answers", "export it with one")
    return OnnxDetector(file, names, _decoder(file, shape, len(names)), min_score)


@dataclass(slots=True, eq=False)
class OnnxDetector:
    """``Detector`` from an ONNX file. Suppression is class-wise at IoU 0.45; repeating it changes nothing."""

    file: OnnxFile
    names: tuple[str, ...]
    decode: _Decode
    min_score: float
    _operations: int = 0

    def detect(self, image: NDArray[np.uint8]) -> Detections:
        """Returns the objects in an (H, W, 3) uint8 BGR image, at most 300."""
        picture, scale, left, top = fitted(image, self.file.height, self.file.width)
        found = self.decode(self.file.run(picture)[0].astype(np.float32))
        keep = np.flatnonzero((found.scores >= self.min_score) & (found.classes < len(self.names)))
        best = keep[np.argsort(-found.scores[keep], kind="stable")[:_MOST_BOXES]]
        height, width = image.shape[:2]
        boxes = (found.boxes[best] - np.array([left, top, left, top], np.float32)) / scale
        inside = np.clip(boxes, 0.0, [width, height, width, height]).astype(np.float32)
        sure = Detections(inside, found.classes[best], np.clip(found.scores[best], 0.0, 1.0))
        return sure.take(nms(sure.boxes, sure.scores, sure.classes, _MAX_IOU))

    def operations_per_frame(self, shape: tuple[int, ...]) -> int:
        """Returns the multiplications and additions; the same for every shape, as images are resized."""
        if not self._operations:
            self._operations = self.file.operations()
        return self._operations


def fitted(image: NDArray[np.uint8], height: int, width: int) -> tuple[_Answer, float, float, float]:
    """Letterboxes an image for these networks: in proportion, centred, with grey borders.

    Args:
        image: (H, W, 3) uint8 BGR.
        height, width: of the network's input, pixels.

    Returns:
        (3, height, width) float32 RGB in [0, 1]; the factor of scaling; and the left and upper border in
        pixels.
    """
    scale = min(height / image.shape[0], width / image.shape[1])
    inner = (max(1, round(image.shape[1] * scale)), max(1, round(image.shape[0] * scale)))
    left, top = (width - inner[0]) // 2, (height - inner[1]) // 2
    canvas = np.full((height, width, 3), _GREY, np.uint8)
    canvas[top : top + inner[1], left : left + inner[0]] = cv2.resize(image, inner)
    picture = np.asarray(canvas[:, :, ::-1].transpose(2, 0, 1), dtype=np.float32) / np.float32(255)
    return picture, scale, left, top


def _decoder(file: OnnxFile, shape: tuple[int, ...], classes: int) -> _Decode:
    """Returns the decoder for an output of this shape.

    Raises:
        UserError: the layout is not supported, or ambiguous.
    """
    path = file.path
    if file.notes.get("task", "detect") != "detect":
        raise _refused(path, f"the task '{file.notes['task']}'", "export a network that detects")
    if len(shape) == 2 and shape[1] == 7:
        return _suppressed_of_pictures
    if len(shape) == 3 and shape[0] == 1:
        cells = {_cells(file, strides) for strides in _STRIDES}
        if shape[1] == 4 + classes and shape[2] in cells:
            return _scores_a_class
        if shape[2] == 5 + classes and shape[1] in {_ANCHORS * count for count in cells}:
            return _objectness
        if shape[2] == 5 + classes and shape[1] in cells:
            raise _refused(
                path,
                f"{shape}, which YOLOX and YOLOv6 answer and mean different things by",
                "export it with suppression (NMS)",
            )
        if shape[2] == 6:
            return _suppressed
    raise _refused(
        path,
        f"{shape} to a picture of {file.height} x {file.width}, none of the layouts that are known for "
        f"{classes} classes",
        f"export it as YOLOv8 does, (1, {4 + classes}, N), or list its classes in {path.stem}.names "
        "beside it",
    )


def _refused(path: Path, answers: str, remedy: str) -> UserError:
    return UserError(f"{path}: answers {answers}, named by the key 'weights'; {remedy}.")


def _cells(file: OnnxFile, strides: tuple[int, ...]) -> int:
    return sum((file.height // stride) * (file.width // stride) for stride in strides)


def _scores_a_class(answer: _Answer) -> Detections:
    rows = answer[0].T
    return _best_class(rows[:, :4], rows[:, 4:])


def _objectness(answer: _Answer) -> Detections:
    rows = answer[0]
    return _best_class(rows[:, :4], rows[:, 5:] * rows[:, 4:5])


def _suppressed(answer: _Answer) -> Detections:
    rows = answer[0]
    return Detections(rows[:, :4], rows[:, 5].astype(np.int64), rows[:, 4])


def _suppressed_of_pictures(answer: _Answer) -> Detections:
    return Detections(answer[:, 1:5], answer[:, 5].astype(np.int64), answer[:, 6])


def _best_class(boxes: _Answer, scores: _Answer) -> Detections:
    """Returns detections from centres and sizes, and a score for each class."""
    half = boxes[:, 2:] / 2
    corners = np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1)
    return Detections(corners, scores.argmax(axis=1).astype(np.int64), scores.max(axis=1))


def _names(file: OnnxFile) -> tuple[str, ...]:
    if "names" in file.notes:
        return _written_names(file)
    for beside in (file.path.with_suffix(".names"), file.path.with_name("coco.names")):
        if beside.is_file():
            return listed_names(beside)
    return coco_names()


def _written_names(file: OnnxFile) -> tuple[str, ...]:
    """Returns the class names in the metadata: ``{0: 'person', 1: 'bicycle'}`` or a list."""
    try:
        written = ast.literal_eval(file.notes["names"])
        names = [written[index] for index in range(len(written))]
    except (ValueError, SyntaxError, KeyError, TypeError, MemoryError, RecursionError) as error:
        raise UserError(
            f"{file.path}: what it says under 'names' is no list of classes; export it again."
        ) from error
    if not isinstance(written, Mapping | list | tuple) or not names:
        raise UserError(f"{file.path}: what it says under 'names' is no list of classes; export it again.")
    return tuple(str(name) for name in names)

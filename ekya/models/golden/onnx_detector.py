"""Detectors as ONNX files: what they are shown, and what they find.

What their answers mean is in ``answer_layout.py``. YOLO networks see the frame letterboxed with grey borders;
networks that answer boxes, scores and labels apart, and FastestDet's, see it stretched to the input.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ekya.core.objects import iou_matrix
from ekya.models.golden.answer_layout import Layout, decide_layout
from ekya.models.golden.answer_rows import name_one, refused, shapes_in_words
from ekya.models.golden.checksum import existing
from ekya.models.golden.detections import Detections, ObjectDetector, RunsOn, suppressed
from ekya.models.golden.onnx_file import Answers, OnnxFile, names_of, open_file
from ekya.models.golden.spec import LAYOUT_WORDS, layout_words

_GREY = 114
_LEARNT_FRAMES = 4
_SAME_IOU, _CLEAR_IOU = 0.35, 0.15
_IMAGENET_MEAN = np.array([0.485, 0.456, 0.406], np.float32).reshape(3, 1, 1)
_IMAGENET_STD = np.array([0.229, 0.224, 0.225], np.float32).reshape(3, 1, 1)

_Picture = tuple[NDArray[np.float32], tuple[float, float], tuple[float, float]]


def letterboxed(image: NDArray[np.uint8], height: int, width: int) -> _Picture:
    """Fits an image into a picture in proportion, centred, with grey borders.

    Args:
        image: (H, W, 3) uint8 BGR.
        height, width: of the network's input, pixels.

    Returns:
        (3, height, width) float32 RGB in [0, 1]; the factors of scaling across and down; and the left and
        upper border in pixels.
    """
    scale = min(height / image.shape[0], width / image.shape[1])
    # Of a very long image at least a row or a column is left.
    inner = (max(1, round(image.shape[1] * scale)), max(1, round(image.shape[0] * scale)))
    left, top = (width - inner[0]) // 2, (height - inner[1]) // 2
    canvas = np.full((height, width, 3), _GREY, np.uint8)
    canvas[top : top + inner[1], left : left + inner[0]] = cv2.resize(image, inner)
    return _rgb(canvas), (scale, scale), (left, top)


def stretched(image: NDArray[np.uint8], height: int, width: int) -> _Picture:
    """Fits an image into a picture without borders, out of proportion; returns what ``letterboxed`` does."""
    scale = (width / image.shape[1], height / image.shape[0])
    return _rgb(cv2.resize(image, (width, height))), scale, (0.0, 0.0)


def _rgb(image: NDArray[Any]) -> NDArray[np.float32]:
    return np.asarray(image[:, :, ::-1].transpose(2, 0, 1), dtype=np.float32) / np.float32(255)


def in_range(picture: NDArray[np.float32], words: Mapping[str, str]) -> NDArray[np.float32]:
    """Returns an RGB picture in [0, 1] with the order and the range of colours that a layout asks for."""
    match words["range"]:
        case "0..255":
            picture = picture * np.float32(255)
        case "imagenet":
            picture = (picture - _IMAGENET_MEAN) / _IMAGENET_STD
    return picture[::-1] if words["colours"] == "bgr" else picture


def open_onnx(
    name: str, weights: Path | None, min_score: float, layout: str = "", device: str = "cpu"
) -> ObjectDetector:
    """Opens a detector from an ONNX file; its layout is determined by running it.

    Args:
        name: of the detector, for errors.
        weights: the file. Its classes are those of ``names_of``.
        min_score: detections below are dropped.
        layout: words on it, as ``golden.layout`` has them.
        device: torch's name.

    Raises:
        UserError: the file is missing, damaged, or has none of the supported layouts.
    """
    file = open_file(existing(name, weights), device)
    names, said = names_of(file), layout_words(layout)
    noise = _tried(file, said)
    return OnnxDetector(file, names, decide_layout(file, names, said, noise), min_score, said, noise)


@dataclass(slots=True, eq=False)
class OnnxDetector:
    """``ObjectDetector`` from an ONNX file. Suppression is class-wise; repeating it changes nothing.

    Attributes:
        layout: the first frames in which something is found count in it.
        said: words of ``golden.layout``, by kind.
        noise: what the network answers to noise.
    """

    file: OnnxFile
    names: tuple[str, ...]
    layout: Layout
    min_score: float
    said: Mapping[str, str]
    noise: Answers
    _seen: list[Answers] = field(default_factory=list)
    _agreements: dict[str, list[float]] = field(default_factory=dict)
    _operations: int = 0

    @property
    def runs_on(self) -> RunsOn:
        return self.file.runs_on

    def detect_each(self, images: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        """Returns the objects of each image, one after the other: most files take one picture."""
        return [self.detect_objects(image) for image in images]

    def detect_objects(self, image: NDArray[np.uint8]) -> Detections:
        """Returns the objects in an (H, W, 3) uint8 BGR image, at most 300.

        Raises:
            UserError: now that the network finds something, its layout is ambiguous.
        """
        height, width = image.shape[:2]
        with np.errstate(all="ignore"):  # Foreign answers may overflow; what is not finite is dropped.
            answers, scale, border = self._ask(image, self.layout.words)
            self._learn_layout(image, answers)
            found = self.layout.decode_answers(answers)
            boxes = found.boxes
            if not self.layout.in_frame:
                boxes = ((boxes - np.tile(border, 2)) / np.tile(scale, 2)).astype(np.float32)
        placed = Detections(boxes, found.classes, found.scores)
        return suppressed(placed, width, height, len(self.names), self.min_score, self.layout.max_iou)

    def operations_per_frame(self, shape: tuple[int, ...]) -> int:
        """Returns the multiplications and additions; the same for every shape, as images are resized."""
        if not self._operations:
            self._operations = self.file.operations()
        return self._operations

    def say_layout(self) -> str | None:
        """Returns the layout in words of ``golden.layout``; None before frames have shown it."""
        return " ".join(self.layout.words.values()) if self._seen and not self.layout.order_open else None

    def _ask(
        self, image: NDArray[np.uint8], words: Mapping[str, str]
    ) -> tuple[Answers, tuple[float, float], tuple[float, float]]:
        fit = letterboxed if words["fit"] == "letterbox" else stretched
        picture, scale, border = fit(image, self.file.height, self.file.width)
        return self.file.run(in_range(picture, words), (image.shape[1], image.shape[0])), scale, border

    def _learn_layout(self, image: NDArray[np.uint8], answers: Answers) -> None:
        """Decides the layout of what was found so far, in the first frames in which something is."""
        if len(self._seen) >= _LEARNT_FRAMES:
            return
        seen = [*self._seen, answers]
        layout = decide_layout(self.file, self.names, self.said, self.noise, seen)
        if not len(layout.decode_found(answers).boxes):
            return
        self.layout = layout
        if "order" not in self.said and layout.form.order_open is not None:
            order = self._try_mirrored(image, answers)
            if order is not None:
                self.said = {**self.said, "order": order}
                self.layout = decide_layout(self.file, self.names, self.said, self.noise, seen)
        if self.layout.order_open and len(seen) >= _LEARNT_FRAMES:
            box = " ".join(f"{value:.4g}" for value in layout.form.read(answers).boxes[0])
            what = f"{shapes_in_words(answers)}, boxes such as {box}, whose order {_LEARNT_FRAMES} frames and"
            remedy = name_one(LAYOUT_WORDS["order"])
            raise refused(self.file.path, f"{what} their mirror images do not show", remedy)
        self._seen = seen

    def _try_mirrored(self, image: NDArray[np.uint8], answers: Answers) -> str | None:
        """Returns the order of numbers in which boxes of mirrored frames are the mirrored boxes.

        None if no order is clearly better than the others in the frames so far.
        """
        mirrored = self._ask(np.ascontiguousarray(image[:, ::-1]), self.layout.words)[0]
        width = image.shape[1] if self.layout.in_frame else self.file.width
        for order in self.layout.orders:
            read = replace(self.layout, words={**self.layout.words, "order": order})
            here, there = read.decode_found(answers).boxes, read.decode_found(mirrored).boxes
            if not len(there):
                return None
            back = there.copy()
            back[:, [0, 2]] = width - there[:, [2, 0]]
            overlaps = iou_matrix(here, back)
            same = float(overlaps.max(axis=0).mean() + overlaps.max(axis=1).mean()) / 2
            self._agreements.setdefault(order, []).append(same)
        means = {order: np.mean(self._agreements[order]) for order in self.layout.orders}
        best, *others = sorted(means, key=lambda order: -means[order])
        second = means[others[0]] if others else 0.0
        return best if means[best] >= max(_SAME_IOU, second + _CLEAR_IOU) else None


def _tried(file: OnnxFile, said: Mapping[str, str]) -> Answers:
    """Returns the answers to noise, in which a network half sees objects of many classes."""
    noise = np.random.default_rng(0).random((3, file.height, file.width), np.float32)
    words = {"range": "0..255" if file.takes_bytes else "0..1", "colours": "rgb", **said}
    try:
        return file.run(in_range(noise, words), (file.width, file.height))
    except Exception as error:  # onnxruntime's exceptions have no other common base.
        raise refused(
            file.path, f"nothing to a picture of noise ({str(error)[:160]})", "export it again"
        ) from error

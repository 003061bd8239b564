"""The layout of a detector's answers, decided from their shapes, their values, and what the fleet file says.

Which numbers belong to one box is in ``answer_rows.py``. What they mean is decided here, of what the network
answers to noise and to frames of the run in which it found something. What values leave open is as the tools
that write such outputs have it, or refused; ``golden.layout`` names it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekya.models.golden.answer_rows import Form, Rows, find_form, name_one, refused, shapes_in_words
from ekya.models.golden.class_map import CLASS_OF_CATEGORY, coco_names
from ekya.models.golden.detections import Detections
from ekya.models.golden.onnx_file import Answers, OnnxFile
from ekya.models.golden.spec import LAYOUT_WORDS

_ENOUGH = 8
_YOLO_IOU = 0.45
_DETR_IOU = 0.7  # Its queries compete in training; what is left are near copies.
_TOLD_SCORE, _MOST_TOLD = 0.25, 100
_MOSTLY, _NEARLY_ALL = 0.9, 0.98
_MOST_OF_PARTS = 2.0  # Parts of the picture reach little beyond 1, pixels far beyond this.
_OVER = 0.05  # Boxes may reach over the edges by this part of the picture.

_Floats = NDArray[np.float32]


def _centred(boxes: _Floats) -> _Floats:
    half = boxes[:, 2:] / 2
    return np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1)


_CORNERS: Mapping[str, Callable[[_Floats], _Floats]] = {
    "x1y1x2y2": lambda boxes: boxes,
    "y1x1y2x2": lambda boxes: boxes[:, [1, 0, 3, 2]],
    "cxcywh": _centred,
    "xywh": lambda boxes: np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1),
}


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """What a network's input and outputs mean.

    Attributes:
        file: the network.
        form: which of its numbers belong together.
        words: of ``LAYOUT_WORDS``, by kind.
        class_count: number of its classes.
        background: its column of scores for no object; None without one.
        orders: in which its boxes may have their numbers.
        order_open: which of them holds is a guess.
    """

    file: OnnxFile
    form: Form
    words: Mapping[str, str]
    class_count: int
    background: int | None
    orders: tuple[str, ...]
    order_open: bool

    @property
    def in_frame(self) -> bool:
        """True if boxes are in pixels of the frame."""
        return self.file.takes_size and self.words["units"] == "pixels"

    @property
    def max_iou(self) -> float:
        """Overlap of two boxes of one class above which they show one object."""
        return _DETR_IOU if self.in_frame or self.form.are_queries else _YOLO_IOU

    def decode_answers(self, answers: Answers) -> Detections:
        """Returns what is answered, with duplicates, in any order.

        Boxes are in pixels of the input, or of the frame if ``in_frame``. Answers of foreign networks are not
        checked: any value may occur.
        """
        rows = self.form.read(answers)
        scores = _probabilities(rows.scores, self.words["scores"], self.background)
        numbers = _whole_numbers(rows.labels) if rows.labels is not None else scores.argmax(axis=1)
        class_of = {
            "from-0": np.arange(self.class_count),
            "from-1": np.arange(-1, self.class_count),
            "categories": CLASS_OF_CATEGORY,
        }[self.words["classes"]]
        # A label that is no class must not be an index.
        known = (numbers >= 0) & (numbers < len(class_of))
        classes = np.where(known, class_of[np.where(known, numbers, 0)], -1)
        sides = (self.file.width, self.file.height) if self.words["units"] == "parts" else (1, 1)
        boxes = _CORNERS[self.words["order"]](rows.boxes) * np.array(sides * 2, np.float32)
        return Detections(boxes.astype(np.float32), classes, _highest(scores).astype(np.float32))

    def decode_found(self, answers: Answers) -> Detections:
        """Returns of ``decode_answers`` what is answered with some certainty, the surest ones."""
        found = self.decode_answers(answers)
        rows = np.flatnonzero(np.isfinite(found.boxes).all(axis=1) & (found.scores >= _TOLD_SCORE))
        return found.select_rows(rows[np.argsort(-found.scores[rows], kind="stable")[:_MOST_TOLD]])


@np.errstate(all="ignore")  # Foreign answers may overflow.
def decide_layout(
    file: OnnxFile,
    names: tuple[str, ...],
    said: Mapping[str, str],
    noise: Answers,
    seen: Sequence[Answers] = (),
) -> Layout:
    """Returns the layout of a network.

    Args:
        file: the network.
        names: its classes.
        said: words of ``golden.layout``, by kind; values cannot overrule them.
        noise: what it answers to a picture of noise.
        seen: what it answered to frames in which it found something.

    Raises:
        UserError: the layout is not supported, ambiguous, or does not fit the number of classes.
    """
    form = find_form(file, len(names), said, [noise, *seen])
    answered = f"{shapes_in_words(noise)} to a picture of {file.height} x {file.width}"
    every = form.join_rows_of([noise, *seen])
    words = {kind: of_kind[0] for kind, of_kind in LAYOUT_WORDS.items() if kind != "columns"}
    words |= {**({"range": "0..255"} if file.takes_bytes else {}), **form.usual, **said}
    kind, background = _kind_of_scores(file, every.scores, len(names), answered)
    words["scores"] = said.get("scores", kind)
    told = form.join_rows_of(seen) if seen else every
    sound = _are_sound(told)
    if seen:
        sound &= _highest(_probabilities(told.scores, words["scores"], background)) >= _TOLD_SCORE
    boxes = told.boxes[sound]
    if "units" not in said and len(boxes):
        reach = np.quantile(np.abs(boxes).max(axis=1), _MOSTLY)
        words["units"] = "pixels" if reach > _MOST_OF_PARTS else "parts"
    limit = [1, 1] if words["units"] == "parts" else [file.width, file.height]
    if file.takes_size and words["units"] == "pixels":
        limit = [1 << 30] * 2  # Of frames, whose sizes are not kept.
    # What is answered to noise is of no worth.
    orders = _possible_orders(boxes if seen else boxes[:0], np.array(limit, np.float32))
    fits = words["order"] in orders or not orders
    if "order" not in said and not fits:
        words["order"] = orders[0]
    if every.labels is not None:
        numbers = _whole_numbers(every.labels[_are_sound(every)])
        words["classes"] = _classes_of(file, numbers, names, said, words["classes"], answered)
    elif every.scores.shape[1] - (background is not None) != len(names):
        words["classes"] = said.get("classes", "categories")
    if words["classes"] == "categories" and names != coco_names():
        raise refused(file.path, f"categories of COCO for {len(names)} classes", "list COCO's, or say from-0")
    is_guess = form.order_open or (not fits and len(orders) > 1) or (not orders and len(boxes) >= _ENOUGH)
    order_open = "order" not in said and bool(is_guess)
    return Layout(file, form, words, len(names), background, orders or LAYOUT_WORDS["order"], order_open)


def _are_sound(rows: Rows) -> NDArray[np.bool_]:
    """Returns which rows are finite and no filling."""
    scores = _highest(rows.scores)
    told: NDArray[np.bool_] = np.isfinite(rows.boxes).all(axis=1) & np.isfinite(scores)
    told &= (rows.boxes != rows.boxes[:, :1]).any(axis=1)
    return told if rows.scores.ndim > 1 else told & (scores != 0)


def _highest(scores: _Floats) -> _Floats:
    return scores if scores.ndim == 1 else scores.max(axis=1, initial=-np.inf)


def _whole_numbers(numbers: NDArray[Any]) -> NDArray[np.int64]:
    """Returns class numbers of any type as integers; -1 for what is none."""
    values = np.asarray(numbers, dtype=np.float64)
    # What a cast makes of a number that does not fit depends on the processor.
    return np.where(np.abs(values) < 2**31, values, -1.0).round().astype(np.int64)


def _possible_orders(boxes: _Floats, limit: _Floats) -> tuple[str, ...]:
    """Returns the orders in which most boxes (N, 4) have an area and lie in a picture of this size."""
    first, last = boxes[:, :2], boxes[:, 2:]
    over = _OVER * limit
    sized = (last >= 0).all(axis=1)
    corners = (last > first).all(axis=1)
    fits = {
        "x1y1x2y2": corners,
        "y1x1y2x2": corners,
        "cxcywh": sized & ((first - last / 2 >= -over) & (first + last / 2 <= limit + over)).all(axis=1),
        "xywh": sized & ((first >= -over) & (first + last <= limit + over)).all(axis=1),
    }
    return tuple(word for word, fit in fits.items() if len(boxes) and fit.mean() >= _MOSTLY)


def _classes_of(
    file: OnnxFile,
    numbers: NDArray[np.int64],
    names: tuple[str, ...],
    said: Mapping[str, str],
    usual: str,
    answered: str,
) -> str:
    """Returns how class numbers count: from 0, from 1, or as COCO's categories with their gaps.

    To noise, a network of the DETR family answers its best 300 pairs of query and class, among them most
    classes: a number that is no index tells. ``usual`` is empty where tools differ.
    """
    if "classes" in said or not len(numbers):
        return usual or "from-0"
    lowest, highest, count = int(numbers.min()), int(numbers.max()), len(names)
    coco = names == coco_names() and highest < len(CLASS_OF_CATEGORY)
    if coco and highest > count:
        return "categories"
    fits = {
        "categories": coco and lowest > 0 and bool((CLASS_OF_CATEGORY[numbers] >= 0).all()),
        "from-0": highest < count,
        "from-1": lowest > 0 and highest <= count,
    }
    possible = [word for word, fit in fits.items() if fit]
    if not possible:
        beside = f"list its classes in {file.path.stem}.names beside it, the first one for number 0"
        raise refused(file.path, f"class number {highest} where {count} classes are known", beside)
    if usual == "from-1" and possible[0] == "categories":
        return "categories"
    if len(possible) > 1 and usual not in possible:
        shown = " ".join(map(str, np.unique(numbers)[:9]))
        what = f"{answered}, class numbers {shown}, which may count {' or '.join(possible)}"
        raise refused(file.path, what, name_one(possible))
    return usual if usual in possible else possible[0]


def _kind_of_scores(file: OnnxFile, scores: _Floats, classes: int, answered: str) -> tuple[str, int | None]:
    """Returns what scores are, and the column of those for no object."""
    finite = scores[np.isfinite(scores)]
    raw = bool(finite.size) and float(((finite < -0.01) | (finite > 1.01)).mean()) > 1 - _NEARLY_ALL
    coco = len(CLASS_OF_CATEGORY) if classes == len(coco_names()) else classes
    columns = classes if scores.ndim == 1 else scores.shape[1]
    if columns in (classes, coco):
        return "logits" if raw else "scores", None
    sound = scores[np.isfinite(scores).all(axis=1)]
    sums_to_one = bool(len(sound)) and float((np.abs(sound.sum(axis=1) - 1) < 0.02).mean()) >= _MOSTLY
    if columns in (classes + 1, coco + 1) and (raw or sums_to_one):
        favourite = int(sound.mean(axis=0).argmax())
        if favourite in (0, columns - 1):
            return "softmax" if raw else "scores", favourite
    what = f"{answered}, with {columns} scores for each box where {classes} classes are known"
    raise refused(file.path, what, f"list its classes in {file.path.stem}.names beside it")


def _probabilities(scores: _Floats, kind: str, background: int | None) -> _Floats:
    if kind == "logits":
        scores = np.reciprocal(1 + np.exp(-scores))
    elif kind == "softmax":
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        scores /= scores.sum(axis=1, keepdims=True)
    return scores if background is None else np.delete(scores, background, axis=1)

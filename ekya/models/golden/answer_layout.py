"""The layout of a detector's answers, decided from their shapes, their values, and what the fleet file says.

Which numbers belong to one box is in ``answer_rows.py``. What they mean is decided here, of what the network
answers to noise and to frames of the run in which it found something. What values leave open is as the tools
that write such outputs have it, or refused; ``golden.layout`` names it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekya.models.golden.answer_rows import (
    Form,
    Rows,
    find_form,
    name_one,
    refused,
    shapes_in_words,
    whole_numbers,
)
from ekya.models.golden.class_map import CLASS_OF_CATEGORY, coco_names
from ekya.models.golden.detections import Detections
from ekya.models.golden.onnx_file import Answers, OnnxFile
from ekya.models.golden.spec import LAYOUT_WORDS

SETTLED_ROWS = 8
"""Number of boxes that are found in frames after which a layout stays."""

_YOLO_IOU = 0.45
_DETR_IOU = 0.7  # Its queries compete in training; what is left are near copies.
_TOLD_SCORE, _MOST_TOLD = 0.25, 100
_MOSTLY, _NEARLY_ALL = 0.9, 0.98
_MOST_OF_PARTS = 2.0  # Parts of the picture reach little beyond 1, pixels far beyond this.
_ROWS_OF_ALL = 20
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
        form: which of its numbers belong together.
        words: of ``LAYOUT_WORDS``, by kind.
        class_of: (K,) class of each of its class numbers, -1 for none.
        background: its column of scores for no object; None without one.
        size: width and height of its input, pixels.
        in_frame: its boxes are in pixels of the frame.
        orders: in which its boxes may have their numbers.
        order_open: which of them holds is a guess.
        settled: further answers change nothing.
    """

    form: Form
    words: Mapping[str, str]
    class_of: NDArray[np.int64]
    background: int | None
    size: tuple[int, int]
    in_frame: bool
    orders: tuple[str, ...]
    order_open: bool
    settled: bool

    @property
    def max_iou(self) -> float:
        """Overlap of two boxes of one class above which they show one object."""
        queries = self.form.order == self.words["order"] == "cxcywh" and self.form.axes_open
        return _DETR_IOU if queries or self.in_frame else _YOLO_IOU

    def decode(self, answers: Answers) -> Detections:
        """Returns what is answered, with duplicates, in any order.

        Boxes are in pixels of the input, or of the frame if ``in_frame``. Answers of foreign networks are not
        checked: any value may occur.
        """
        rows = self.form.read(answers)
        scores = _probabilities(rows.scores, self.words["scores"], self.background)
        numbers = whole_numbers(rows.labels) if rows.labels is not None else scores.argmax(axis=1)
        scores = _highest(scores)
        known = (numbers >= 0) & (numbers < len(self.class_of))
        side = np.array(self.size * 2 if self.words["units"] == "parts" else (1, 1, 1, 1), np.float32)
        return Detections(
            (_CORNERS[self.words["order"]](rows.boxes) * side).astype(np.float32),
            # A label that is no class must not be an index.
            np.where(known, self.class_of[np.where(known, numbers, 0)], -1),
            scores.astype(np.float32),
        )

    def decode_found(self, answers: Answers) -> Detections:
        """Returns of ``decode`` what is answered with some certainty, the surest ones."""
        found = self.decode(answers)
        sure = np.isfinite(found.boxes).all(axis=1) & (found.scores >= _TOLD_SCORE)
        rows = np.flatnonzero(sure)
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
    every = form.pooled([noise, *seen])
    kind, background = _kind_of_scores(file, every.scores, len(names), answered)
    scores = said.get("scores", kind)
    # A network that suppresses answers nothing of worth to noise.
    told = form.pooled(seen) if seen and not form.whole else every
    sound = _are_sound(told)
    if told is not every:
        sound &= _highest(_probabilities(told.scores, scores, background)) >= _TOLD_SCORE
    boxes = told.boxes[sound]
    units = said.get("units", _units_of(boxes) or form.units)
    in_frame = file.takes_size and units == "pixels"
    limit = np.array([1, 1] if units == "parts" else [file.width, file.height], np.float32)
    possible = _possible_orders(boxes, np.full(2, np.inf) if in_frame else limit, form.whole)
    orders = possible or () if seen or form.whole else ()
    if "x1y1x2y2" in orders:
        orders = ("x1y1x2y2", "y1x1y2x2", *orders[1:])
    if every.labels is None:
        columns = every.scores.shape[1] - (background is not None)
        classes = said.get("classes", "from-0" if columns == len(names) else "categories")
    else:
        numbers = whole_numbers(every.labels[_are_sound(every)])
        classes = _classes_of(file, numbers, names, said, form.classes, answered)
    class_of = {
        "from-0": np.arange(len(names)),
        "from-1": np.arange(-1, len(names)),
        "categories": CLASS_OF_CATEGORY if names == coco_names() else np.arange(len(names)),
    }
    words = {
        **({} if form.columns is None else {"columns": form.columns}),
        "fit": form.fit,
        "colours": form.colours,
        "range": "0..255" if file.takes_bytes else "0..1",
        "order": form.order if form.order in orders or not orders else orders[0],
        **said,
        "scores": scores,
        "units": units,
        "classes": classes,
    }
    guessed = form.axes_open or possible is None or (form.order not in orders and len(orders) > 1)
    return Layout(
        form,
        words,
        class_of[classes],
        background,
        (file.width, file.height),
        in_frame,
        orders or LAYOUT_WORDS["order"],
        guessed and "order" not in said,
        len(boxes) >= SETTLED_ROWS and (form.whole or bool(seen)),
    )


def _are_sound(rows: Rows) -> NDArray[np.bool_]:
    """Returns which rows are finite and no filling."""
    scores = _highest(rows.scores)
    told: NDArray[np.bool_] = np.isfinite(rows.boxes).all(axis=1) & np.isfinite(scores)
    told &= (rows.boxes != rows.boxes[:, :1]).any(axis=1)
    return told if rows.scores.ndim > 1 else told & (scores != 0)


def _highest(scores: _Floats) -> _Floats:
    return scores if scores.ndim == 1 else scores.max(axis=1, initial=-np.inf)


def _units_of(boxes: _Floats) -> str | None:
    if not len(boxes):
        return None
    return "pixels" if np.quantile(np.abs(boxes).max(axis=1), _MOSTLY) > _MOST_OF_PARTS else "parts"


def _possible_orders(boxes: _Floats, limit: NDArray[np.float32], whole: bool) -> tuple[str, ...] | None:
    """Returns the orders in which most boxes have an area and lie in the picture; None if there is none.

    Few boxes show none, and then it is empty.

    Args:
        boxes: (N, 4), of any order.
        limit: the picture's width and height in their unit.
        whole: they are of all places of the picture, many of no worth.
    """
    first, last = boxes[:, :2], boxes[:, 2:]
    over = _OVER * limit
    sized = (last >= 0).all(axis=1)
    fits = {
        "x1y1x2y2": (last > first).all(axis=1),
        "cxcywh": sized & ((first - last / 2 >= -over) & (first + last / 2 <= limit + over)).all(axis=1),
        "xywh": sized & ((first >= -over) & (first + last <= limit + over)).all(axis=1),
    }
    if len(boxes) < (_ROWS_OF_ALL if whole else 1):
        return ()
    possible = tuple(word for word, fit in fits.items() if fit.mean() >= _MOSTLY)
    if whole:
        # Centres and sizes of no worth reach far over the edges, but seldom look like corners.
        return possible if possible == ("x1y1x2y2",) else ()
    return None if not possible and len(boxes) >= SETTLED_ROWS else possible


def _classes_of(
    file: OnnxFile,
    numbers: NDArray[np.int64],
    names: tuple[str, ...],
    said: Mapping[str, str],
    usual: str | None,
    answered: str,
) -> str:
    """Returns how class numbers count: from 0, from 1, or as COCO's categories with their gaps.

    To noise, a network of the DETR family answers its best 300 pairs of query and class, among them most
    classes: a number that is no index tells.
    """
    if "classes" in said or not len(numbers):
        return said.get("classes", usual or "from-0")
    lowest, highest = int(numbers.min()), int(numbers.max())
    count, coco = len(names), names == coco_names()
    if coco and count < highest < len(CLASS_OF_CATEGORY):
        return "categories"
    fits = {
        "from-0": highest < count,
        "from-1": lowest > 0 and highest <= count,
        "categories": coco and lowest > 0 and highest <= count and (CLASS_OF_CATEGORY[numbers] >= 0).all(),
    }
    possible = [word for word, fit in fits.items() if fit]
    if not possible:
        raise refused(
            file.path,
            f"class number {highest} where {count} classes are known",
            f"list its classes in {file.path.stem}.names beside it, the first one for number 0",
        )
    if usual == "from-1" and "categories" in possible:
        return "categories"
    if usual in possible or len(possible) == 1:
        return usual if usual in possible else possible[0]
    raise refused(
        file.path,
        f"{answered}, class numbers {' '.join(map(str, np.unique(numbers)[:9]))}, which may count "
        f"{' or '.join(possible)}",
        f"say {name_one(possible)}",
    )


def _kind_of_scores(file: OnnxFile, scores: _Floats, classes: int, answered: str) -> tuple[str, int | None]:
    """Returns what scores are, and the column of those for no object."""
    finite = scores[np.isfinite(scores)]
    raw = bool(finite.size) and float(((finite < -0.01) | (finite > 1.01)).mean()) > 1 - _NEARLY_ALL
    if scores.ndim == 1:
        return "logits" if raw else "scores", None
    columns = scores.shape[1]
    coco = len(CLASS_OF_CATEGORY) if classes == len(coco_names()) else classes
    if columns in (classes, coco):
        return "logits" if raw else "scores", None
    sound = scores[np.isfinite(scores).all(axis=1)]
    sums_to_one = bool(len(sound)) and float((np.abs(sound.sum(axis=1) - 1) < 0.02).mean()) >= _MOSTLY
    if columns in (classes + 1, coco + 1) and (raw or sums_to_one):
        favourite = int(sound.mean(axis=0).argmax())
        if favourite in (0, columns - 1):
            return "softmax" if raw else "scores", favourite
    raise refused(
        file.path,
        f"{answered}, with {columns} scores for each box where {classes} classes are known",
        f"list its classes in {file.path.stem}.names beside it",
    )


def _probabilities(scores: _Floats, kind: str, background: int | None) -> _Floats:
    if kind == "logits":
        scores = np.reciprocal(1 + np.exp(-scores))
    elif kind == "softmax":
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        scores /= scores.sum(axis=1, keepdims=True)
    return scores if background is None else np.delete(scores, background, axis=1)

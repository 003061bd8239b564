"""Tells outputs and columns of a detector's answers apart, by shape and value: what belongs to one box.

The layouts and who exports them are listed in ``docs/golden.md``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekya.core.errors import UserError
from ekya.models.golden.class_map import CLASS_OF_CATEGORY
from ekya.models.golden.onnx_file import SIZES_INPUT, Answers, OnnxFile

_STRIDES = ((8, 16, 32), (8, 16, 32, 64), (16, 32))
_ANCHORS = 3
_FEWEST_QUERIES = 100
_OBJECTNESS_POWER = 0.6
_MOSTLY, _NEARLY_ALL = 0.9, 0.98

_Floats = NDArray[np.float32]

_TABLES: Mapping[int, Mapping[str, tuple[int, int, int]]] = {
    6: {"box-score-class": (0, 4, 5), "box-class-score": (0, 5, 4)}
    | {"class-score-box": (2, 1, 0), "score-class-box": (2, 0, 1)},
    7: {"box-class-score": (1, 6, 5), "box-score-class": (1, 5, 6)}
    | {"class-score-box": (3, 2, 1), "score-class-box": (3, 1, 2)},
}
"""First columns of box, score and class, by width and word, the usual ones first; 7 begin with a picture."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Numbers of a network, box by box, as it answers them.

    Attributes:
        boxes: (N, 4).
        scores: (N,), or (N, K) with a column for each class.
        labels: (N,) class numbers; None where scores have columns.
    """

    boxes: _Floats
    scores: _Floats
    labels: NDArray[np.floating[Any]] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """Outputs of a network that were told apart.

    Attributes:
        read: returns the rows of its answers.
        usual: words of ``LAYOUT_WORDS`` that hold where values leave it open, by kind, if others than usual.
        are_queries: boxes compete before they are answered, and are not suppressed.
        order_open: tools differ in the order of a box's numbers; None if no other than the usual one occurs.
    """

    read: Callable[[Answers], Rows]
    usual: Mapping[str, str] = field(default_factory=dict)
    are_queries: bool = False
    order_open: bool | None = False

    def join_rows_of(self, answers: Sequence[Answers]) -> Rows:
        """Returns the rows of several answers."""
        rows = [self.read(one) for one in answers]
        labels = [one.labels for one in rows if one.labels is not None]
        boxes, scores = (
            np.concatenate(of) for of in zip(*((one.boxes, one.scores) for one in rows), strict=True)
        )
        return Rows(boxes, scores, np.concatenate(labels) if labels else None)


def refused(path: Path, answers: str, remedy: str) -> UserError:
    """Returns the error of a network whose answers cannot be read."""
    return UserError(f"{path}: answers {answers}, named by the key 'weights'; {remedy}.")


def name_one(words: Sequence[str]) -> str:
    """Returns how each of several words is written into a fleet file."""
    return "say " + " or ".join(f"golden.layout: {word}" for word in words)


def shapes_in_words(answers: Answers) -> str:
    """Returns the outputs' names and shapes."""
    return ", ".join(f"{name} {np.shape(value)}" for name, value in answers.items())


def find_form(file: OnnxFile, classes: int, said: Mapping[str, str], answers: Sequence[Answers]) -> Form:
    """Tells the outputs of a network apart.

    Args:
        file: the network.
        classes: number of its classes.
        said: words of ``golden.layout``, by kind.
        answers: what it answered, at least once.

    Raises:
        UserError: the outputs are none that are known, or cannot be told apart.
    """
    if file.notes.get("task", "detect") != "detect":
        raise refused(file.path, f"the task '{file.notes['task']}'", "export a network that detects")
    told = shapes_in_words(answers[0])
    if len(answers[0]) > 1:
        form = _form_of_several(file, answers)
        if form is not None:
            return form
        apart = "boxes (1, N, 4), scores (1, N) and labels (1, N)"
        many = f"{len(answers[0])} answers, {told}, of which boxes, scores and labels are not known"
        raise refused(file.path, many, f"export it with {apart}, or with one output")
    if file.takes_size:
        remedy = "export it with the outputs labels, boxes and scores, or without that input"
        raise refused(file.path, f"{told} and takes {SIZES_INPUT}", remedy)
    values = [_only(one) for one in answers]
    shape = values[0].shape
    if len(shape) == 4 and shape[:2] == (1, 5 + classes) and shape[2] == shape[3]:
        return Form(_grid, {"units": "parts", "fit": "stretch", "colours": "bgr"}, order_open=None)
    # The number of boxes follows from the size of the input, which tells the layouts apart.
    cells = {_cells(file, strides) for strides in _STRIDES}
    high, wide = shape[-2:] if len(shape) in (2, 3, 4) and set(shape[:-2]) <= {1} else (0, 0)
    centred = {"order": "cxcywh"}
    if wide == 5 + classes and high in cells and not (values[0].reshape(high, wide)[:, 4] == 1).all():
        what = f"{shape}, which YOLOX and YOLOv6 answer and mean different things by"
        raise refused(file.path, what, "export it with suppression (NMS)")
    # YOLOv6 knows no objectness, and writes 1.
    if wide == 5 + classes and high in {*cells, *(_ANCHORS * count for count in cells)}:
        return Form(partial(_objectness, wide=wide), centred)
    is_head = wide == 4 + classes and len(shape) == 3 and (high in cells or high >= _FEWEST_QUERIES)
    fitting = _fitting_tables(values, classes) if wide in _TABLES else ()
    if wide in _TABLES and (fitting or not is_head):
        usual, columns = next(iter(_TABLES[wide])), said.get("columns") or next(iter(fitting), None)
        # Frames of the run will tell what noise leaves open.
        open_still = "columns" not in said and columns != usual and len(fitting) > 1 and len(values) > 1
        if columns is None or open_still:
            row = " ".join(f"{value:.4g}" for value in values[-1].reshape(-1, wide)[0])
            many = "several columns" if fitting else "no column"
            what = f"{told}, rows such as {row}, of which {many} can be"
            remedy = name_one(fitting) if fitting else "export it with scores in 0..1 and class numbers"
            raise refused(file.path, f"{what} a score in 0..1 beside a class number", remedy)
        of_ssd = {"fit": "stretch", "classes": ""} if wide == 7 and columns == "class-score-box" else {}
        return Form(
            partial(_table, columns=_TABLES[wide][columns], wide=wide), {"columns": columns, **of_ssd}
        )
    if is_head or (len(shape) == 3 and high == 4 + classes and wide in cells):
        return Form(partial(_scores_a_class, transposed=not is_head), centred)
    raise refused(
        file.path,
        f"{told} to a picture of {file.height} x {file.width}, none of the layouts that are known for "
        f"{classes} classes",
        f"export it as YOLOv8 does, (1, {4 + classes}, N), or list its classes in {file.path.stem}.names "
        "beside it",
    )


def _cells(file: OnnxFile, strides: tuple[int, ...]) -> int:
    return sum((file.height // stride) * (file.width // stride) for stride in strides)


def _only(answers: Answers) -> _Floats:
    return np.asarray(next(iter(answers.values())), dtype=np.float32)


def _scores_a_class(answers: Answers, transposed: bool) -> Rows:
    rows = _only(answers)[0].T if transposed else _only(answers)[0]
    return Rows(rows[:, :4], rows[:, 4:])


def _objectness(answers: Answers, wide: int) -> Rows:
    rows = _only(answers).reshape(-1, wide)
    return Rows(rows[:, :4], rows[:, 5:] * rows[:, 4:5])


def _table(answers: Answers, columns: tuple[int, int, int], wide: int) -> Rows:
    rows = _only(answers).reshape(-1, wide)
    box, score, number = columns
    return Rows(rows[:, box : box + 4], rows[:, score], rows[:, number])


def _fitting_tables(values: Sequence[_Floats], classes: int) -> tuple[str, ...]:
    """Returns the orders of columns that these rows may have; all if there are none but filling."""
    wide = values[0].shape[-1]
    rows = np.concatenate([one.reshape(-1, wide) for one in values])
    rows = rows[np.isfinite(rows).all(axis=1) & (rows != rows[:, :1]).any(axis=1)]
    if not len(rows):
        return tuple(_TABLES[wide])
    numbers = rows == rows.round()
    whole = (numbers & (rows >= -1) & (rows <= max(classes, len(CLASS_OF_CATEGORY)))).mean(axis=0)
    scored = ((rows >= 0) & (rows <= 1)).mean(axis=0)

    def fits(box: int, score: int, number: int) -> bool:
        first, last = rows[:, box : box + 2], rows[:, box + 2 : box + 4]
        have_area = ((last > first).all(axis=1) | (last > 0).all(axis=1)).mean()
        return bool(min(whole[number], scored[score]) >= _NEARLY_ALL and have_area >= _MOSTLY)

    if wide == 7 and numbers[:, 0].mean() < _NEARLY_ALL:
        return ()
    return tuple(order for order, columns in _TABLES[wide].items() if fits(*columns))


def _grid(answers: Answers) -> Rows:
    """Returns the box of each cell, row by row; its score is objectness^0.6 x class^0.4."""
    grid = _only(answers)[0]
    # Powers of negative numbers would be NaN.
    objectness, classes = np.clip(grid[0], 0.0, 1.0), np.clip(grid[5:], 0.0, 1.0)
    scores = objectness**_OBJECTNESS_POWER * classes.max(axis=0) ** (1.0 - _OBJECTNESS_POWER)
    rows, columns = np.indices(scores.shape)
    centre = np.stack([columns + np.tanh(grid[1]), rows + np.tanh(grid[2])], axis=-1) / len(scores)
    # Half of the sigmoid of width and height.
    half = 0.5 / (1.0 + np.exp(-grid[3:5].transpose(1, 2, 0)))
    edges = np.concatenate([centre - half, centre + half], axis=-1).reshape(-1, 4)
    labels = grid[5:].argmax(axis=0).reshape(-1)
    return Rows(np.clip(edges, 0.0, 1.0), scores.reshape(-1), labels.astype(np.float32))


def _form_of_several(file: OnnxFile, answers: Sequence[Answers]) -> Form | None:
    """Tells boxes, scores, class numbers and their count apart, in any order and under any names."""
    first = answers[0]
    boxes = [name for name, value in first.items() if np.ndim(value) >= 2 and np.shape(value)[-1] in (4, 5)]
    if len(boxes) > 1:
        boxes = [name for name in boxes if "box" in name.lower() or "dets" in name.lower()]
    if len(boxes) != 1:
        return None
    rest = [name for name in first if name not in boxes]
    wide = np.shape(first[boxes[0]])[-1]
    counts = [np.size(one[boxes[0]]) // wide for one in answers]
    # With a single box its class, its score and the number of boxes have one value each.
    numbers = [
        name
        for name in rest
        if [np.size(one[name]) for one in answers] == counts and "num" not in name.lower()
    ]
    columns = [
        name for name in rest if np.ndim(first[name]) > 1 and np.prod(np.shape(first[name])[:-1]) == counts[0]
    ]
    count = [name for name in rest if name not in numbers and np.size(first[name]) == 1]
    tensorflow = file.channels_last or any("detection_" in name for name in first)
    usual = {"order": "y1x1y2x2", "units": "parts", "classes": "from-1"} if tensorflow else {"classes": ""}
    usual |= {"fit": "stretch"} | ({"classes": "from-0"} if file.takes_size or wide == 5 else {})
    read = partial(_separate, box=boxes[0], wide=wide, count=count[0] if count else None)
    if wide == 5 and len(numbers) == 1 == len(rest):
        read = partial(read, label=numbers[0], score=None)
    elif wide == 4 and len(numbers) == 2 and len(numbers) + len(count) == len(rest):
        label, score = _label_and_score(numbers, answers)
        read = partial(read, label=label, score=score)
    elif wide == 4 and len(columns) == 1 == len(rest):
        read = partial(read, label=None, score=columns[0])
        usual |= {"order": "cxcywh", "units": "parts", "classes": "from-0"}
    else:
        return None
    return Form(read, usual, "cxcywh" in usual.values(), None if file.takes_size else True)


def _label_and_score(numbers: Sequence[str], answers: Sequence[Answers]) -> tuple[str, str]:
    """Returns which output has the class numbers: the one of a whole type, of whole values, or so called."""

    def looks(name: str) -> tuple[bool, bool, bool]:
        of_type = np.issubdtype(np.asarray(answers[0][name]).dtype, np.integer)
        values = np.concatenate([np.ravel(one[name]) for one in answers])
        whole = bool(values.size and (values == np.round(values)).all() and values.any())
        return bool(of_type), whole, any(word in name.lower() for word in ("label", "class"))

    label, score = sorted(numbers, key=looks, reverse=True)
    return label, score


def _separate(
    answers: Answers, box: str, wide: int, count: str | None, label: str | None, score: str | None
) -> Rows:
    boxes = np.asarray(answers[box], dtype=np.float32).reshape(-1, wide)
    many = len(boxes)
    if count is not None:
        many = int(np.clip(np.nan_to_num(np.ravel(answers[count])[0]), 0, many))
    scores = boxes[:, 4:] if score is None else np.asarray(answers[score], dtype=np.float32)
    scores = scores.reshape(len(boxes), -1) if label is None else scores.reshape(-1)
    labels = None if label is None else np.asarray(answers[label], dtype=np.float64).reshape(-1)[:many]
    return Rows(boxes[:many, :4], scores[:many], labels)

"""Tells outputs and columns of a detector's answers apart, by shape and value: what belongs to one box.

For C classes and N boxes.

| output | columns | exported by |
|---|---|---|
| (1, 4+C, N) or (1, N, 4+C) | box; a score per class | YOLOv8, v9, v11, v12; RT-DETR of Ultralytics |
| (1, N, 5+C) | box; objectness; a score per class; three boxes per cell | YOLOv5, v7 |
| the same, one box per cell, objectness 1 | | YOLOv6 |
| (1, N, 6) | box, score, class in any order | YOLOv10, v26, exports with NMS |
| (N, 7) | index of the image; box, score, class in any order | YOLOv7 with NMS, OpenVINO's SSD |
| boxes (1, N, 4), scores, labels (1, N), perhaps their number | | RT-DETR, torchvision, TensorFlow |
| boxes with scores (1, N, 5), labels (1, N) | | MMDetection |
| boxes (1, N, 4), scores (1, N, C) | also logits, and with a column for no object | DETR, RF-DETR, SSD |
| (1, 5+C, n, n) | a cell: objectness; centre, size before tanh, sigmoid; a score per class | FastestDet |
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
_TENSORFLOW = "detection_"

_Floats = NDArray[np.float32]

_TABLES: Mapping[int, Mapping[str, tuple[int, int, int]]] = {
    6: {
        "box-score-class": (0, 4, 5),
        "box-class-score": (0, 5, 4),
        "class-score-box": (2, 1, 0),
        "score-class-box": (2, 0, 1),
    },
    7: {
        "box-class-score": (1, 6, 5),
        "box-score-class": (1, 5, 6),
        "class-score-box": (3, 2, 1),
        "score-class-box": (3, 1, 2),
    },
}
"""First column of the box, that of the score and that of the class, by width; the usual order first."""


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

    def select_rows(self, rows: NDArray[np.bool_]) -> "Rows":
        """Returns these rows only."""
        labels = None if self.labels is None else self.labels[rows]
        return Rows(self.boxes[rows], self.scores[rows], labels)


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """Outputs of a network that were told apart, and what they usually mean.

    Attributes:
        read: returns the rows of its answers.
        order, units, fit, colours, classes: words of ``LAYOUT_WORDS`` that hold where values leave it open;
            no ``classes`` where there is no custom.
        whole: rows are of all places of the picture, found or not.
        axes_open: tools differ in whether x comes before y.
        order_known: no other order occurs.
        columns: word of them; None where outputs are apart.
    """

    read: Callable[[Answers], Rows]
    order: str = "x1y1x2y2"
    units: str = "pixels"
    fit: str = "letterbox"
    colours: str = "rgb"
    classes: str | None = "from-0"
    whole: bool = False
    axes_open: bool = False
    order_known: bool = False
    columns: str | None = None

    def pooled(self, answers: Sequence[Answers]) -> Rows:
        """Returns the rows of several answers."""
        rows = [self.read(one) for one in answers]
        labels = [one.labels for one in rows if one.labels is not None]
        return Rows(
            np.concatenate([one.boxes for one in rows]),
            np.concatenate([one.scores for one in rows]),
            np.concatenate(labels) if labels else None,
        )


def refused(path: Path, answers: str, remedy: str) -> UserError:
    """Returns the error of a network whose answers cannot be read."""
    return UserError(f"{path}: answers {answers}, named by the key 'weights'; {remedy}.")


def name_one(words: Sequence[str]) -> str:
    """Returns how each of several words is written into a fleet file."""
    return " or ".join(f"golden.layout: {word}" for word in words)


def shapes_in_words(answers: Answers) -> str:
    """Returns the outputs' names and shapes."""
    return ", ".join(f"{name} {np.shape(value)}" for name, value in answers.items())


def whole_numbers(numbers: NDArray[Any]) -> NDArray[np.int64]:
    """Returns class numbers of any type as integers; -1 for what is none."""
    values = np.asarray(numbers, dtype=np.float64)
    # What a cast makes of a number that does not fit depends on the processor.
    return np.where(np.abs(values) < 2**31, values, -1.0).round().astype(np.int64)


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
    if len(answers[0]) > 1:
        return _form_of_several(file, answers)
    if file.takes_size:
        raise refused(
            file.path,
            f"{shapes_in_words(answers[0])} and takes {SIZES_INPUT}",
            "export it with the outputs labels, boxes and scores, or without that input",
        )
    values = [np.asarray(next(iter(one.values())), dtype=np.float32) for one in answers]
    shape = values[0].shape
    if len(shape) == 4 and shape[:2] == (1, 5 + classes) and shape[2] == shape[3]:
        return Form(_grid, units="parts", fit="stretch", colours="bgr", whole=True, order_known=True)
    # The number of boxes follows from the size of the input, which tells the layouts apart.
    cells = {_cells(file, strides) for strides in _STRIDES}
    high, wide = shape[-2:] if len(shape) in (2, 3, 4) and set(shape[:-2]) <= {1} else (0, 0)
    head = partial(Form, order="cxcywh", whole=True)
    if len(shape) == 3 and wide == 5 + classes and high in {_ANCHORS * count for count in cells}:
        return head(partial(_objectness, classes=classes))
    if len(shape) == 3 and wide == 5 + classes and high in cells:
        if (values[0][0, :, 4] == 1).all():  # YOLOv6 knows no objectness, and writes 1.
            return head(partial(_objectness, classes=classes))
        raise refused(
            file.path,
            f"{shape}, which YOLOX and YOLOv6 answer and mean different things by",
            "export it with suppression (NMS)",
        )
    is_head = len(shape) == 3 and wide == 4 + classes and (high in cells or high >= _FEWEST_QUERIES)
    if wide in _TABLES and not (is_head and not _fitting(values, classes)):
        order = _order_of_columns(file, classes, said, values)
        of_frames = order == "class-score-box" and wide == 7
        return Form(
            partial(_table, columns=_TABLES[wide][order], wide=wide),
            classes=None if of_frames else "from-0",
            fit="stretch" if of_frames else "letterbox",
            columns=order,
        )
    if is_head:
        return head(_scores_a_class)
    if len(shape) == 3 and high == 4 + classes and wide in cells:
        return head(partial(_scores_a_class, transposed=True))
    raise refused(
        file.path,
        f"{shapes_in_words(answers[0])} to a picture of {file.height} x {file.width}, none of the layouts "
        f"that are known for {classes} classes",
        f"export it as YOLOv8 does, (1, {4 + classes}, N), or list its classes in {file.path.stem}.names "
        "beside it",
    )


def _cells(file: OnnxFile, strides: tuple[int, ...]) -> int:
    return sum((file.height // stride) * (file.width // stride) for stride in strides)


def _only(answers: Answers) -> _Floats:
    return np.asarray(next(iter(answers.values())), dtype=np.float32)


def _scores_a_class(answers: Answers, transposed: bool = False) -> Rows:
    rows = _only(answers)[0].T if transposed else _only(answers)[0]
    return Rows(rows[:, :4], rows[:, 4:])


def _objectness(answers: Answers, classes: int) -> Rows:
    rows = _only(answers).reshape(-1, 5 + classes)
    return Rows(rows[:, :4], rows[:, 5:] * rows[:, 4:5])


def _table(answers: Answers, columns: tuple[int, int, int], wide: int) -> Rows:
    rows = _only(answers).reshape(-1, wide)
    box, score, number = columns
    return Rows(rows[:, box : box + 4], rows[:, score], rows[:, number])


def _fitting(values: Sequence[_Floats], classes: int) -> tuple[str, ...]:
    """Returns the orders of columns that these rows may have; all if there are none but filling."""
    wide = values[0].shape[-1]
    rows = np.concatenate([one.reshape(-1, wide) for one in values])
    rows = rows[np.isfinite(rows).all(axis=1) & (rows != rows[:, :1]).any(axis=1)]
    if not len(rows):
        return tuple(_TABLES[wide])
    numbers = rows == rows.round()
    whole = (numbers & (rows >= -1) & (rows <= max(classes, len(CLASS_OF_CATEGORY)))).mean(axis=0)
    scored = ((rows >= 0) & (rows <= 1)).mean(axis=0)
    one_picture = wide == 6 or numbers[:, 0].mean() >= _NEARLY_ALL

    def have_area(box: int) -> float:
        first, last = rows[:, box : box + 2], rows[:, box + 2 : box + 4]
        return float(((last > first).all(axis=1) | (last > 0).all(axis=1)).mean())

    return tuple(
        order
        for order, (box, score, number) in _TABLES[wide].items()
        if one_picture
        and whole[number] >= _NEARLY_ALL
        and scored[score] >= _NEARLY_ALL
        and have_area(box) >= _MOSTLY
    )


def _order_of_columns(
    file: OnnxFile, classes: int, said: Mapping[str, str], values: Sequence[_Floats]
) -> str:
    fitting = (said["columns"],) if "columns" in said else _fitting(values, classes)
    usual = next(iter(_TABLES[values[0].shape[-1]]))
    # Frames of the run will tell what noise leaves open.
    if len(fitting) == 1 or usual in fitting or (fitting and len(values) == 1):
        return usual if usual in fitting else fitting[0]
    rows = values[-1].reshape(-1, values[-1].shape[-1])
    row = " ".join(f"{value:.4g}" for value in rows[0]) if len(rows) else "none"
    raise refused(
        file.path,
        f"{values[0].shape}, rows such as {row}, of which "
        f"{'several' if fitting else 'no'} columns can be a score in 0 to 1 and a class number",
        f"say {name_one(fitting or tuple(_TABLES[values[0].shape[-1]]))}",
    )


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


def _form_of_several(file: OnnxFile, answers: Sequence[Answers]) -> Form:
    """Tells boxes, scores, class numbers and their count apart, in any order and under any names."""
    first = answers[0]
    boxes = [name for name, value in first.items() if np.ndim(value) >= 2 and np.shape(value)[-1] in (4, 5)]
    if len(boxes) > 1:
        boxes = [name for name in boxes if "box" in name.lower() or "dets" in name.lower()]
    rest = [name for name in first if name not in boxes]
    if len(boxes) == 1:
        wide = np.shape(first[boxes[0]])[-1]
        counts = [np.size(one[boxes[0]]) // wide for one in answers]
        by_columns = [
            name
            for name in rest
            if np.ndim(first[name]) > 1 and np.prod(np.shape(first[name])[:-1]) == counts[0]
        ]
        numbers = [
            name
            for name in rest
            if [np.size(one[name]) for one in answers] == counts and "num" not in name.lower()
        ]
        count = [name for name in rest if name not in numbers and np.size(first[name]) == 1]
        tensorflow = file.channels_last or any(_TENSORFLOW in name for name in first)
        form = partial(
            Form,
            order="y1x1y2x2" if tensorflow else "x1y1x2y2",
            units="parts" if tensorflow else "pixels",
            fit="stretch",
            axes_open=not file.takes_size,
            order_known=file.takes_size,
        )
        read = partial(_separate, box=boxes[0], wide=wide, count=count[0] if count else None)
        if wide == 5 and len(numbers) == 1 == len(rest):
            return form(partial(read, label=numbers[0], score=None))
        if wide == 4 and len(numbers) == 2 and len(numbers) + len(count) == len(rest):
            label, score = _label_and_score(numbers, answers)
            custom = "from-0" if file.takes_size else "from-1" if tensorflow else None
            return form(partial(read, label=label, score=score), classes=custom)
        if wide == 4 and len(by_columns) == 1 == len(rest):
            return form(partial(read, label=None, score=by_columns[0]), order="cxcywh", units="parts")
    raise refused(
        file.path,
        f"{len(first)} answers, {shapes_in_words(first)}, of which boxes, scores and labels are not known",
        "export it with boxes (1, N, 4), scores (1, N) and labels (1, N), or with one output",
    )


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
    many = (
        len(boxes)
        if count is None
        else int(np.clip(np.nan_to_num(np.ravel(answers[count])[0]), 0, len(boxes)))
    )
    if score is None:
        scores = boxes[:, 4]
    else:
        scores = np.asarray(answers[score], dtype=np.float32)
        scores = scores.reshape(len(boxes), -1) if label is None else scores.reshape(-1)
    labels = None if label is None else np.asarray(answers[label], dtype=np.float64).reshape(-1)[:many]
    return Rows(boxes[:many, :4], scores[:many], labels)

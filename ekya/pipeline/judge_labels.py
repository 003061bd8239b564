"""Judges labels of a stream against its video: do they count the same frames, in the same pixels?

Other tools count frames from 1, or only the labelled ones, or milliseconds; their boxes may be parts of the
picture, or pixels of a larger one. Ranges tell most of that. Where they fit, the labels are read in each such
way, and compared with what moves in the pictures, and with what a detector finds there. No file is read here.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ekya.core.configs import every_nth
from ekya.core.objects import iou_matrix
from ekya.models.golden.label_file import StreamTable
from ekya.pipeline.sampled_sources import SampledSource

Detect = Callable[[NDArray[np.uint8]], NDArray[np.float32]]
"""Returns the boxes (N, 4) in pixels that are detected in an (H, W, 3) uint8 BGR picture."""

_UNITS = {
    "seconds": 1.0,
    "milliseconds": 1e3,
    "microseconds": 1e6,
    "nanoseconds": 1e9,
    "ticks of 90 kHz": 9e4,
}
_EVERY = (2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 24, 25, 30, 50, 60)
_WIDTHS = (320, 416, 640, 960, 1280, 1920, 3840)
_OVERLAP, _AGREES, _RIVAL = 0.4, 0.15, 0.3
"""IoU from which on a label is of a moving region, the part of regions that have a label as a rule, and the
part of that by chance. In three videos 0.19 to 0.48 have one, 0.03 in other pixels, and 0.06 where labels of
every 5th frame are read as those of each."""

_FEWEST_FRAMES, _FEWEST_BOXES, _FEWEST_OFFSETS = 4, 12, 40
_HINT = 0.01
_SAME = np.ones(4, np.float32)


class LabelProblem(NamedTuple):
    """What is wrong with labels and what to do, without full stop; and whether nothing else fits."""

    sentence: str
    certain: bool = True


def judge_labels(
    table: StreamTable,
    counts: NDArray[np.bool_],
    sure_score: float,
    video: SampledSource,
    own: bool = False,
    detect: Detect | None = None,
) -> LabelProblem | None:
    """Returns what is wrong, the certain first; None where all fits, or nothing can be decided.

    Args:
        table: labels of the stream.
        counts: (names,) which of the file's classes the fleet has.
        sure_score: confidence from which on a box is an object.
        video: at least one frame.
        own: Ekya has labelled the stream to its end.
        detect: finds objects; without it, labels that are a frame late are not recognised by sight.
    """
    found = table.found
    if not (counts[found.classes] & (found.scores >= sure_score)).any():
        most = f" (the highest is {found.scores.max():.2g})" if len(found.scores) else ""
        return LabelProblem(
            f"has no box of the fleet's classes with a confidence of {sure_score:g} or more{most}, so "
            "nothing is learnt; correct 'class', or 'confidence', which is 1 for what was labelled by hand",
            False,
        )
    labels = _Labels(table, sure_score, video)
    problems = [*_judge_boxes(labels), *_judge_numbers(labels)]
    if not problems and detect is not None and not own:
        problems = [*_judge_shift(labels, detect)]
    return min(problems, key=lambda problem: not problem.certain, default=None)


class _Reading(NamedTuple):
    """A way to read labels: number = frame * per_frame + origin, to half a ``span``, and boxes * scale."""

    words: str
    per_frame: float = 1.0
    origin: int = 0
    scale: tuple[float, float] = (1.0, 1.0)
    span: float = 2e-6


class _Labels:
    """The sure boxes of a stream, by frame, and its video."""

    def __init__(self, table: StreamTable, sure_score: float, video: SampledSource) -> None:
        sure = table.found.scores >= sure_score
        self.frames, self.boxes, self.video = table.frames, table.found.boxes[sure], video
        self._begins = np.append(0, np.cumsum(sure))[table.begins]
        self.first, self.last = int(self.frames[0]), int(self.frames[-1])
        self.step = int(np.median(np.diff(self.frames))) if len(self.frames) > 1 else 1
        self.width, self.height = video.frames[0].size
        self.count = None if video.length_s is None else round(video.length_s * video.fps)

    def boxes_near(self, number: float, tolerance: float = 0.0) -> NDArray[np.float32] | None:
        """Returns the boxes of the labelled frame nearest to a number; None if it is further away."""
        at = int(np.abs(self.frames - number).argmin())
        if abs(float(self.frames[at]) - number) > tolerance:
            return None
        return self.boxes[self._begins[at] : self._begins[at + 1]]

    def measure_agreement(self, way: _Reading) -> tuple[float, float]:
        """Returns the part of what moves that has a label, and the mean IoU; zeros where too little moves."""
        scale = np.array(way.scale * 2, np.float32)
        frames = [
            iou_matrix(one.moving, boxes * scale).max(axis=1, initial=0.0)
            for one in self.video.seen
            if len(one.moving)
            and (boxes := self.boxes_near(one.number * way.per_frame + way.origin, way.span / 2)) is not None
        ]
        if len(frames) < _FEWEST_FRAMES or sum(map(len, frames)) < _FEWEST_BOXES:
            return 0.0, 0.0
        overlaps = np.concatenate(frames)
        return float((overlaps >= _OVERLAP).mean()), float(overlaps.mean())


def _judge_boxes(labels: _Labels) -> Iterator[LabelProblem]:
    boxes, size = labels.boxes, f"{labels.width}x{labels.height}"
    limit = np.array([labels.width, labels.height] * 2, np.float32)
    outside = float(((boxes[:, :2] + boxes[:, 2:]) / 2 > limit[:2]).any(axis=1).mean())
    partly = float(((boxes > 1.05 * limit) | (boxes < -0.05 * limit)).any(axis=1).mean())
    if boxes.max() <= 1.5:
        yield LabelProblem(
            f"has boxes that reach to {boxes.max():.3g}, as parts of the picture, and pixels of {size} are "
            f"expected; multiply x by {labels.width} and y by {labels.height}"
        )
    elif partly > 0.02:
        x, y = boxes[:, 2:].max(axis=0)
        yield LabelProblem(
            f"has {partly:.0%} of its boxes outside: they reach to {x:.0f}, {y:.0f}, and the frames "
            f"of a run are {size}; write boxes in these pixels, or set the source's 'max_side' to the "
            "longer side of the picture that was labelled",
            outside > 0.1,
        )


def _judge_numbers(labels: _Labels) -> Iterator[LabelProblem]:
    """Judges frame numbers by range, and where that fits, both by the reading that is of most that moves."""
    count, last, readings = labels.count, labels.last, list(_readings(labels))
    if count is not None and (last > count * (1 + _HINT) + 1 or (last == count and labels.first >= 1)):
        fit = (
            one.words
            for one in readings
            if 0.5 < (last - one.origin) / one.per_frame / count <= 1 + 2 * _HINT
        )
        words = next(fit, "") if labels.step > 1 or last == count else ""
        said = f"has labels of frames {labels.first} to {last}, and its video {count} from 0"
        if words:
            yield LabelProblem(f"{said}: its {words}", last != count or labels.first == 1)
        else:
            times = last / count
            remedy = f"name the video that was labelled (labels reach {times:.3g} times as far)"
            yield LabelProblem(f"{said}; {remedy}", labels.first >= count or times > 2)
        return
    (own, _), (best, words) = (
        labels.measure_agreement(_Reading("")),
        max((labels.measure_agreement(one), one.words) for one in readings if one != readings[0]),
    )
    if best[0] >= _AGREES and own <= _RIVAL * best[0]:
        yield LabelProblem(
            f"has a box for {own:.0%} of what moves in the first pictures, and for {best[0]:.0%} if "
            f"its {words}"
        )


def _readings(labels: _Labels) -> Iterator[_Reading]:
    """Yields all ways but the right one, with the remedy in their words; the origin first."""
    number, width, height = "column 'frame' counts", labels.width, labels.height
    yield _Reading(f"{number} from 1; subtract 1, or give frame 0 an empty row if it does not", 1.0, 1)
    for unit, per_s in _UNITS.items():
        each = per_s / labels.video.fps
        yield _Reading(f"{number} {unit}; divide it by {each:.6g} and round it", each, span=each)
    for every in _EVERY:
        for origin, first in ((0, ""), (1, "subtract 1 from it and ")):
            what = f"{number} {every_nth(every)} from {origin}; {first}multiply it by {every}"
            yield _Reading(what, 1 / every, origin)
    spaces = [(f"pixels of a picture {one} wide", one, round(one * height / width)) for one in _WIDTHS]
    spaces += [("percent", 100, 100), ("thousandths", 1000, 1000), ("pixels of a square of 640", 640, 640)]
    for what, wide, high in spaces:
        x, y = width / wide, height / high
        yield _Reading(f"boxes are {what}; multiply x by {x:.4g} and y by {y:.4g}", scale=(x, y))


def _judge_shift(labels: _Labels, detect: Detect) -> Iterator[LabelProblem]:
    """Judges whether labels are a frame late: objects are detected where the next label is.

    The offsets of detected boxes from labels are compared with how far the labels go in a frame.
    """
    ways, offsets = [np.zeros(0, np.float32)], [np.zeros(0, np.float32)]
    for frame in (one.frame for one in labels.video.seen if one.frame is not None):
        now, before, after = (labels.boxes_near(frame.index + step * labels.step) for step in (0, -1, 1))
        if now is None or before is None or after is None:
            continue
        come, go = dict(_pairs(now, before)), dict(_pairs(now, after))
        detected = detect(frame.image)
        for row, label in _pairs(detected, now):
            if label in come and label in go:
                side = np.tile(now[label, 2:] - now[label, :2], 2)
                ways.append((after[go[label]] - before[come[label]]) / (2 * labels.step * side))
                offsets.append((detected[row] - now[label]) / side)
    way, offset = np.concatenate(ways), np.concatenate(offsets)
    moved = float((way * way).sum())
    if len(way) < _FEWEST_OFFSETS or not moved:
        return
    late = float((way * offset).sum()) / moved
    error = float(np.sqrt(((offset - late * way) ** 2).mean() / moved))
    if error <= 0.15 and 0.55 <= late <= 1.45:
        yield LabelProblem(
            f"has boxes {late:.1f} frames behind the objects that are detected, and begins with "
            f"frame {labels.first}: it seems to count from 1, and 0 is expected; subtract 1 from the column "
            "'frame'",
            labels.first >= 1,
        )


def _pairs(one: NDArray[np.float32], other: NDArray[np.float32]) -> list[tuple[int, int]]:
    """Returns the rows of boxes that are each other's nearest and overlap."""
    if not len(one) or not len(other):
        return []
    overlap = iou_matrix(one, other)
    to, back = overlap.argmax(axis=1), overlap.argmax(axis=0)
    return [(row, int(at)) for row, at in enumerate(to) if overlap[row, at] >= 0.3 and back[at] == row]

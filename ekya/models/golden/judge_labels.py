"""Judges labels of a stream against its video: do they count the same frames, in the same pixels?

Other tools count frames from 1, or only the labelled ones, or milliseconds; their boxes may be parts of the
picture, or pixels of a larger one. Ranges tell most of that. Where they fit, the labels are read in each such
way, and compared with what moves in the pictures, and with what a detector finds there. All of it is pure.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ekya.core.configs import every_nth
from ekya.core.objects import iou_matrix
from ekya.models.golden.label_file import StreamTable

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


@dataclass(frozen=True, slots=True, eq=False)
class SeenFrame:
    """Boxes in a frame that the labels do not know of.

    Attributes:
        index, t_us: as in ``Frame``.
        moving: (N, 4) float32 in pixels, regions that move, or the boxes of the source.
        detected: (M, 4) float32, objects that a detector finds; empty if it was not asked.
    """

    index: int
    t_us: int
    moving: NDArray[np.float32]
    detected: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 4), np.float32))


@dataclass(frozen=True, slots=True, eq=False)
class SeenVideo:
    """What is known of a video without its labels.

    Attributes:
        fps: frames a second.
        size: width and height of a frame, pixels.
        count: number of its frames by its header, a hint; None if it does not say.
        seen: some of its frames.
    """

    fps: float
    size: tuple[int, int]
    count: int | None
    seen: Sequence[SeenFrame] = ()


class LabelProblem(NamedTuple):
    """What is wrong with labels and what to do, without full stop; and whether nothing else fits."""

    sentence: str
    certain: bool = True


def judge_labels(
    table: StreamTable, counts: NDArray[np.bool_], sure_score: float, video: SeenVideo, own: bool
) -> LabelProblem | None:
    """Returns what is wrong, the certain first; None where all fits, or nothing can be decided.

    Args:
        table: labels of the stream.
        counts: (names,) which of the file's classes the fleet has.
        sure_score: confidence from which on a box is an object.
        video: what the stream shows.
        own: Ekya has labelled the stream to its end.
    """
    found, sure = table.found, _SureBoxes(table, sure_score)
    if not (counts[found.classes] & (found.scores >= sure_score)).any():
        most = f" (the highest is {found.scores.max():.2g})" if len(found.scores) else ""
        return LabelProblem(
            f"has no box of the fleet's classes with a confidence of {sure_score:g} or more{most}, so "
            "nothing is learnt; correct 'class', or 'confidence', which is 1 for what was labelled by hand",
            False,
        )
    judges = (_judge_boxes, _judge_range, _judge_readings, *(() if own else (_judge_cover, _judge_shift)))
    problems = [problem for judge in judges for problem in judge(sure, video)]
    return min(problems, key=lambda problem: not problem.certain, default=None)


class _SureBoxes:
    """The sure boxes of a stream, by frame."""

    def __init__(self, table: StreamTable, sure_score: float) -> None:
        sure = table.found.scores >= sure_score
        self.frames, self.boxes = table.frames, table.found.boxes[sure]
        self._begins = np.append(0, np.cumsum(sure))[table.begins]
        self.first, self.last = int(self.frames[0]), int(self.frames[-1])
        self.step = int(np.median(np.diff(self.frames))) if len(self.frames) > 1 else 1

    def near(self, number: float, tolerance: float = 0.0) -> NDArray[np.float32] | None:
        """Returns the boxes of the labelled frame nearest to a number; None if it is further away."""
        place = int(np.searchsorted(self.frames, number))
        places = [at for at in (place - 1, place) if 0 <= at < len(self.frames)]
        at = min(places, key=lambda one: abs(float(self.frames[one]) - number))
        if abs(float(self.frames[at]) - number) > tolerance:
            return None
        return self.boxes[self._begins[at] : self._begins[at + 1]]


def _judge_boxes(sure: _SureBoxes, video: SeenVideo) -> Iterator[LabelProblem]:
    width, height = video.size
    limit = np.array(video.size * 2, np.float32)
    middles = (sure.boxes[:, :2] + sure.boxes[:, 2:]) / 2
    outside = float((middles > limit[:2]).any(axis=1).mean())
    partly = float(((sure.boxes > 1.05 * limit) | (sure.boxes < -0.05 * limit)).any(axis=1).mean())
    reach = "they reach to {:.0f}, {:.0f}".format(*sure.boxes[:, 2:].max(axis=0))
    if sure.boxes.max() <= 1.5:
        yield LabelProblem(
            f"has boxes that reach to {sure.boxes.max():.3g}, as parts of the picture, and pixels of "
            f"{width}x{height} are expected; multiply x by {width} and y by {height}"
        )
    elif outside > 0.1:
        yield LabelProblem(
            f"has {outside:.0%} of its boxes outside: {reach}, and the frames of a run are {width}x{height}; "
            "write boxes in these pixels, or set the source's 'max_side' to the longer side of the picture "
            "that was labelled"
        )
    elif partly > 0.02:
        yield LabelProblem(
            f"has {partly:.0%} of its boxes partly outside: {reach}, and the frames of a run are "
            f"{width}x{height}; check that they are pixels of these",
            False,
        )


def _judge_range(sure: _SureBoxes, video: SeenVideo) -> Iterator[LabelProblem]:
    if video.count is None or sure.last < video.count:
        return
    times = sure.last / video.count
    units = (
        (unit, per_s / video.fps)
        for unit, per_s in _UNITS.items()
        if sure.step > 1 and 0.5 < times * video.fps / per_s <= 1 + 2 * _HINT
    )
    if sure.last == video.count and sure.first >= 1:
        yield LabelProblem(
            f"{_counted(sure, video)}: they seem to count from 1; subtract 1 from the column 'frame', or "
            "give frame 0 an empty row if they count from 0",
            sure.first == 1,
        )
    for unit, per_frame in units:
        yield LabelProblem(
            f"{_counted(sure, video)}: they seem to count {unit}; divide the column 'frame' by "
            f"{per_frame:.6g} and round it"
        )
    if times > 1 + _HINT and sure.last > video.count + 1:
        yield LabelProblem(
            f"{_counted(sure, video)}; name the video that was labelled, or count its frames at its own rate "
            f"(the labels reach {times:.3g} times as far)",
            sure.step > 1 or sure.first >= video.count,
        )


def _judge_readings(sure: _SureBoxes, video: SeenVideo) -> Iterator[LabelProblem]:
    """Yields the way to read labels in which far more of what moves has one."""
    own = (_agreement(sure, video) or (0.0,))[0]
    (best, _), words = max(
        ((agrees, words) for words, agrees in _readings(sure, video) if agrees is not None),
        default=((0.0, 0.0), ""),
    )
    if best >= _AGREES and own <= _RIVAL * best:
        yield LabelProblem(
            f"has a box for {own:.0%} of what moves in the first pictures, and for {best:.0%} if its {words}"
        )


def _readings(sure: _SureBoxes, video: SeenVideo) -> Iterator[tuple[str, tuple[float, float] | None]]:
    """Yields ways to read labels, with the remedy, and how far what moves agrees with each."""
    for every in _EVERY:
        for origin, remedy in ((0, ""), (1, "subtract 1 from it and ")):
            yield (
                f"column 'frame' counts {every_nth(every)} from {origin}; {remedy}multiply it by {every}",
                _agreement(sure, video, 1 / every, origin),
            )
    for unit, per_s in _UNITS.items():
        per_frame = per_s / video.fps
        agrees = _agreement(sure, video, per_frame, tolerance=per_frame / 2)
        yield f"column 'frame' counts {unit}; divide it by {per_frame:.6g} and round it", agrees
    width, height = video.size
    spaces = [("percent", 100, 100), ("thousandths", 1000, 1000), ("pixels of a square of 640", 640, 640)]
    spaces += [(f"pixels of a picture {one} wide", one, round(one * height / width)) for one in _WIDTHS]
    for what, wide, high in spaces:
        scale = np.array([width / wide, height / high] * 2, np.float32)
        remedy = f"multiply x by {scale[0]:.4g} and y by {scale[1]:.4g}"
        yield f"boxes are {what}; {remedy}", _agreement(sure, video, scale=scale)


def _agreement(
    sure: _SureBoxes,
    video: SeenVideo,
    per_frame: float = 1.0,
    origin: int = 0,
    scale: NDArray[np.float32] = _SAME,
    tolerance: float = 1e-6,
) -> tuple[float, float] | None:
    """Returns the part of what moves that has a label, and the mean IoU; None where too little moves."""
    frames = [
        iou_matrix(one.moving, labels * scale).max(axis=1, initial=0.0)
        for one in video.seen
        if len(one.moving) and (labels := sure.near(one.index * per_frame + origin, tolerance)) is not None
    ]
    if len(frames) < _FEWEST_FRAMES or sum(map(len, frames)) < _FEWEST_BOXES:
        return None
    overlaps = np.concatenate(frames)
    return float((overlaps >= _OVERLAP).mean()), float(overlaps.mean())


def _judge_cover(sure: _SureBoxes, video: SeenVideo) -> Iterator[LabelProblem]:
    """Warns of as many labels as every n-th frame has, unless they agree with what moves as they are."""
    if video.count is None or sure.step != 1 or (_agreement(sure, video) or (0.0,))[0] >= _AGREES:
        return
    count, labelled = video.count, sure.last + 1 - min(sure.first, 1)
    for every in (n for n in _EVERY if abs(labelled * n - count) <= max(n, _HINT * count)):
        yield LabelProblem(
            f"{_counted(sure, video)}: as many as {every_nth(every)} has; if it is so, multiply the column "
            f"'frame' by {every}",
            False,
        )


def _judge_shift(sure: _SureBoxes, video: SeenVideo) -> Iterator[LabelProblem]:
    """Judges whether labels are a frame late: objects are detected where the next label is.

    The offsets of detected boxes from labels are compared with how far the labels go in a frame.
    """
    ways, offsets = [np.zeros(0, np.float32)], [np.zeros(0, np.float32)]
    for frame in video.seen:
        now, before, after = (sure.near(frame.index + step * sure.step) for step in (0, -1, 1))
        if now is None or before is None or after is None:
            continue
        for row, label in _pairs(frame.detected, now):
            came, went = _pairs(now[label : label + 1], before), _pairs(now[label : label + 1], after)
            if came and went:
                side = np.tile(now[label, 2:] - now[label, :2], 2)
                ways.append((after[went[0][1]] - before[came[0][1]]) / (2 * sure.step * side))
                offsets.append((frame.detected[row] - now[label]) / side)
    way, offset = np.concatenate(ways), np.concatenate(offsets)
    moved = float((way * way).sum())
    if len(way) < _FEWEST_OFFSETS or not moved:
        return
    late = float((way * offset).sum()) / moved
    error = float(np.sqrt(((offset - late * way) ** 2).mean() / moved))
    if error <= 0.15 and 0.55 <= late <= 1.45:
        yield LabelProblem(
            f"has boxes {late:.1f} frames behind the objects that are detected, and begins with frame "
            f"{sure.first}: it seems to count from 1, and 0 is expected; subtract 1 from the column 'frame'",
            sure.first >= 1,
        )


def _pairs(one: NDArray[np.float32], other: NDArray[np.float32]) -> list[tuple[int, int]]:
    """Returns the rows of boxes that are each other's nearest and overlap."""
    if not len(one) or not len(other):
        return []
    overlap = iou_matrix(one, other)
    to, back = overlap.argmax(axis=1), overlap.argmax(axis=0)
    return [(row, int(at)) for row, at in enumerate(to) if overlap[row, at] >= 0.3 and back[at] == row]


def _counted(sure: _SureBoxes, video: SeenVideo) -> str:
    assert video.count is not None
    length = f"{video.count / video.fps:.1f} s at {video.fps:.4g} a second"
    return f"has labels of frames {sure.first} to {sure.last}, and its video {video.count} from 0 ({length})"

"""Stores all frames of a stream, so that many models can be scored on the same objects."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ekya.core.areas import WHOLE_PICTURE, Areas
from ekya.core.records import (
    NO_LABELS,
    FrameReference,
    LabelledBoxes,
    PredictionColumns,
    ReferenceColumns,
    offsets_of,
)
from ekya.models.proposer import Proposer
from ekya.pipeline.collector import WindowCollector, WindowMaterial
from ekya.pipeline.reference import Referee
from ekya.planning.profiling.inference_profile import ALL
from ekya.results.metrics.accuracy import ScoreSeries, StreamScore, WindowScore
from ekya.simulation.emulated.answers import Answers, FollowedGolden
from ekya.streams.ingest.frame import Frame, Truth

WHOLE = 0.9
"""A stream's last window counts as whole from this part on."""

NO_CLASS = -1
"""Class of a true object that does not count."""

_NO_IMAGE = np.zeros((0, 0, 3), np.uint8)


class Scoring(Protocol):
    """Scores predictions of a task, as ``score_stream`` and ``score_detections`` do."""

    def __call__(
        self,
        predictions: PredictionColumns,
        reference: ReferenceColumns,
        labelled: LabelledBoxes,
        *,
        decoded: int,
        class_count: int,
    ) -> StreamScore:
        """Scores one stream."""


@dataclass(frozen=True, slots=True, eq=False)
class InputImages:
    """Input of a model from one frame.

    Attributes:
        boxes: (N, 4) float32, in pixels: those of the objects to classify; for a detector one, the whole
            frame.
        images: (N, S, S, 3) uint8 RGB of these boxes, by their side S.
    """

    boxes: NDArray[np.float32]
    images: Mapping[int, NDArray[np.uint8]]


@dataclass(frozen=True, slots=True, eq=False)
class SeenFrames:
    """Frames in order with what models see of them, M images in total, and the reference labels.

    Attributes:
        window: in which they arrived.
        frame, t_us: (F,) int64.
        offsets: (F + 1,) int64, start of each frame's images.
        boxes: (M, 4) float32, as in ``InputImages``.
        images: (M, S, S, 3) uint8 RGB, by their side S.
        reference: of these frames.
        scoring: of answers to them.
        golden: the golden detector's answers where it analyses every k-th frame and its boxes are followed in
            between, by k.
        areas: where objects count.
    """

    window: int
    frame: NDArray[np.int64]
    t_us: NDArray[np.int64]
    offsets: NDArray[np.int64]
    boxes: NDArray[np.float32]
    images: Mapping[int, NDArray[np.uint8]]
    reference: ReferenceColumns
    scoring: Scoring
    golden: Mapping[int, Answers] = field(default_factory=dict)
    areas: Areas = WHOLE_PICTURE

    @property
    def mean_objects(self) -> float:
        """Mean number of boxes per frame; 0.0 without frames."""
        return len(self.boxes) / len(self.frame) if len(self.frame) else 0.0

    def rows_of_every(self, step: int) -> NDArray[np.int64]:
        """Returns the rows of the boxes of every ``step``-th frame."""
        return np.flatnonzero(np.repeat(self._every(step), np.diff(self.offsets)))

    def thinned(self, step: int) -> "SeenFrames":
        """Returns every ``step``-th frame only."""
        return self._only(self._every(step))

    def in_bursts(self, length: int, step: int) -> "SeenFrames":
        """Returns bursts of ``length`` frames, of which each begins ``step`` lengths after the one before.

        Indices of their first frames are multiples of ``length``, apart from one that begins with the window.
        """
        return self._only(self.frame // length % step == 0)

    def without(self, tracks: NDArray[np.int64]) -> "SeenFrames":
        """Returns the same frames, where the objects of these tracks do not count."""
        reference = self.reference
        classes = np.where(np.isin(reference.tracks, tracks), NO_CLASS, reference.classes)
        return replace(self, reference=replace(reference, classes=classes.astype(np.int16)))

    def without_frames(self, frames: NDArray[np.int64]) -> "SeenFrames":
        """Returns the same frames, where those with these indices do not count."""
        reference = self.reference
        return replace(self, reference=reference.select_frames(np.setdiff1d(reference.frame, frames)))

    def unanswered(self) -> Answers:
        """Returns answers without a box."""
        offsets = np.zeros(len(self.offsets), np.int64)
        return Answers(offsets, self.boxes[:0], np.zeros(0, np.int64), np.zeros(0, np.float32))

    def score(
        self,
        answers: Answers,
        class_count: int,
        every: int = 1,
        from_first_of: int = 1,
        held: int = ALL,
    ) -> tuple[WindowScore, ScoreSeries]:
        """Scores answers if every k-th frame is analysed.

        Args:
            answers: to these frames.
            class_count: number of classes of the fleet.
            every: k, for indices of frames in the stream.
            from_first_of: frames count from the first whose index both this and k divide: the answer to
                earlier ones lies in the previous window.
            held: number of frames after an analysed one to which its answer holds; those after them have
                answers of their own.
        """
        divides = self.frame % np.lcm(every, from_first_of) == 0
        first = int(np.argmax(divides)) if np.any(divides) else len(self.frame)
        scored = self.scoring(
            self._predictions(answers, every, first, held),
            self.reference.select_frames(self.frame[first:]),
            NO_LABELS,
            decoded=0,
            class_count=class_count,
        )
        nothing = WindowScore(self.window, (0,) * class_count, (0,) * class_count)
        return (scored.windows[0] if scored.windows else nothing), scored.series

    def _only(self, wanted: NDArray[np.bool_]) -> "SeenFrames":
        if wanted.all():
            return self
        counts = np.diff(self.offsets)
        rows = np.repeat(wanted, counts)
        return replace(
            self,
            frame=self.frame[wanted],
            t_us=self.t_us[wanted],
            offsets=offsets_of(counts[wanted]),
            boxes=self.boxes[rows],
            images={side: images[rows] for side, images in self.images.items()},
            reference=self.reference.select_frames(self.frame[wanted]),
            golden={every: answers.select_frames(wanted) for every, answers in self.golden.items()},
        )

    def _every(self, step: int) -> NDArray[np.bool_]:
        every: NDArray[np.bool_] = self.frame % step == 0
        return every

    def _predictions(self, answers: Answers, every: int, first: int, held: int) -> PredictionColumns:
        frame, each = self.frame[first:], np.diff(answers.offsets)
        analysed = (frame % every == 0) | (frame % every > held)
        counts = np.where(analysed, each[first:], 0)
        answered = np.repeat(np.concatenate([np.zeros(first, np.bool_), analysed]), each)
        same = partial(np.full, len(frame))
        return PredictionColumns(
            frame=frame,
            t_us=self.t_us[first:],
            window=same(self.window, np.int32),
            analysed=analysed,
            answered_by=np.maximum.accumulate(np.where(analysed, frame, -1)),
            model_version=same(0, np.int32),
            every=same(every, np.int16),
            resolution=same(max(self.images), np.int16),
            offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            boxes=answers.boxes[answered],
            classes=answers.classes[answered].astype(np.int16),
            confidence=answers.confidence[answered],
        )


class ModelInput(Protocol):
    """Interface of what models of a task see of frames, and of how their answers count."""

    @property
    def sides(self) -> tuple[int, ...]:
        """Sides of the images that are stored."""

    @property
    def scoring(self) -> Scoring:
        """Scores answers."""

    def images_of(self, image: NDArray[np.uint8], boxes: NDArray[np.float32]) -> InputImages:
        """Returns what a model sees of an (H, W, 3) uint8 BGR frame with these boxes of objects."""

    def answer_frames(self, frames: SeenFrames, answer: Any) -> Answers:
        """Returns the ``FleetAnswer`` to all images of frames, frame by frame."""

    def counting(self, windows: Sequence[SeenFrames], labelled: LabelledBoxes) -> list[SeenFrames]:
        """Returns the frames of all windows of a stream, where what was labelled does not count."""


@dataclass(frozen=True, slots=True, eq=False)
class SeenWindow:
    """One window of a stream: all its frames, and the material kept for the golden model.

    Attributes:
        part: part of the window before the stream ended, in (0, 1].
    """

    frames: SeenFrames
    material: WindowMaterial
    part: float = 1.0


def iterate_windows(
    frames: Iterator[tuple[Frame, Truth | None]],
    proposer: Proposer,
    collector: WindowCollector,
    referee: Referee | None,
    model_input: ModelInput,
    window_us: int,
    windows: int | None,
    golden_every: tuple[int, ...] = (),
) -> Iterator[SeenWindow]:
    """Yields a stream's windows; the last may be cut short by its end. A window without frames is empty.

    Args:
        frames: all frames of the camera.
        proposer: proposes objects.
        collector: keeps frames for the golden model, as in a run that analyses every frame.
        referee: makes reference labels if the source has no ground truth.
        model_input: what models see of a frame.
        window_us: length of a window.
        windows: number of windows; None continues until the stream ends.
        golden_every: k of the λ of the golden detector, which is the referee.
    """
    kept = _Kept(0, model_input, [FollowedGolden(every) for every in golden_every])
    for frame, truth in frames:
        window = frame.t_us // window_us
        while window > kept.window:
            yield SeenWindow(kept.frames(), collector.close(kept.window))
            kept = _Kept(kept.window + 1, model_input, [FollowedGolden(every) for every in golden_every])
            if windows is not None and kept.window >= windows:
                return
        proposals = proposer.propose_boxes(frame)
        collector.collect_frame(frame, proposals)
        kept.add(
            frame, model_input.images_of(frame.image, proposals.boxes), _reference_of(frame, truth, referee)
        )
    part = kept.part_of(window_us)
    if part > 0.0:
        yield SeenWindow(kept.frames(), collector.close(kept.window), 1.0 if part >= WHOLE else part)


@dataclass(slots=True, eq=False)
class _Kept:
    """Frames of the current window so far."""

    window: int
    model_input: ModelInput
    golden: Sequence[FollowedGolden]
    seen: list[tuple[Frame, InputImages]] = field(default_factory=list)
    truths: list[FrameReference] = field(default_factory=list)

    def add(self, frame: Frame, shown: InputImages, truth: FrameReference | None) -> None:
        """Adds the next frame without its image, which is no longer needed."""
        self.seen.append((replace(frame, image=_NO_IMAGE), shown))
        if truth is not None:
            self.truths.append(truth)
            for followed in self.golden:
                followed.add(frame, truth)

    def part_of(self, window_us: int) -> float:
        """Returns the part of the window that has passed at the last frame."""
        return (self.seen[-1][0].t_us % window_us) / window_us if self.seen else 0.0

    def frames(self) -> SeenFrames:
        """Returns all frames of the window."""
        counts = [len(shown.boxes) for _, shown in self.seen]
        return SeenFrames(
            window=self.window,
            frame=np.array([frame.index for frame, _ in self.seen], np.int64),
            t_us=np.array([frame.t_us for frame, _ in self.seen], np.int64),
            offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            boxes=np.concatenate([np.zeros((0, 4), np.float32), *(shown.boxes for _, shown in self.seen)]),
            images={
                side: np.concatenate(
                    [np.zeros((0, side, side, 3), np.uint8), *(shown.images[side] for _, shown in self.seen)]
                )
                for side in self.model_input.sides
            },
            reference=ReferenceColumns.from_rows(self.truths),
            scoring=self.model_input.scoring,
            golden={followed.every: followed.collect_answers() for followed in self.golden},
            areas=self.seen[0][0].areas if self.seen else WHOLE_PICTURE,
        )


def _reference_of(frame: Frame, truth: Truth | None, referee: Referee | None) -> FrameReference | None:
    if truth is not None:
        return truth.to_reference(frame.index, frame.t_us)
    return referee.label_frame(frame) if referee is not None else None

"""Stores all frames of a stream, so that many models can be scored on the same objects."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ekya.core.configs import InferenceConfig
from ekya.core.records import NO_LABELS, FrameReference, PredictionColumns, ReferenceColumns
from ekya.models.golden.detections import Proposals
from ekya.models.proposer import Proposer
from ekya.pipeline.collector import WindowCollector, WindowMaterial
from ekya.pipeline.reference import Referee
from ekya.results.metrics.accuracy import ScoreSeries, WindowScore, score_stream
from ekya.streams.ingest.crops import crop_objects
from ekya.streams.ingest.frame import Frame, Truth

WHOLE = 0.9
"""A stream's last window counts as whole from this part on."""

NO_CLASS = -1
"""Class of a true object that does not count."""

_NO_IMAGE = np.zeros((0, 0, 3), np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class SeenFrames:
    """Frames in order with the M proposed boxes of all of them, and the reference labels.

    Attributes:
        window: in which they arrived.
        frame, t_us: (F,) int64.
        offsets: (F + 1,) int64, start of each frame's boxes.
        boxes: (M, 4) float32.
        crops: (M, S, S, 3) uint8 RGB.
        reference: of these frames.
    """

    window: int
    frame: NDArray[np.int64]
    t_us: NDArray[np.int64]
    offsets: NDArray[np.int64]
    boxes: NDArray[np.float32]
    crops: NDArray[np.uint8]
    reference: ReferenceColumns

    @property
    def mean_objects(self) -> float:
        """Mean number of boxes per frame; 0.0 without frames."""
        return len(self.boxes) / len(self.frame) if len(self.frame) else 0.0

    def rows_of_every(self, step: int) -> NDArray[np.int64]:
        """Returns the rows of the boxes of every ``step``-th frame."""
        return np.flatnonzero(np.repeat(self._every(step), np.diff(self.offsets)))

    def thinned(self, step: int) -> "SeenFrames":
        """Returns every ``step``-th frame only."""
        wanted, rows = self._every(step), self.rows_of_every(step)
        return SeenFrames(
            window=self.window,
            frame=self.frame[wanted],
            t_us=self.t_us[wanted],
            offsets=np.concatenate([[0], np.cumsum(np.diff(self.offsets)[wanted])]),
            boxes=self.boxes[rows],
            crops=self.crops[rows],
            reference=self.reference.only(self.frame[wanted]),
        )

    def without(self, tracks: NDArray[np.int64]) -> "SeenFrames":
        """Returns the same frames, where the objects of these tracks do not count."""
        reference = self.reference
        classes = np.where(np.isin(reference.tracks, tracks), NO_CLASS, reference.classes)
        return replace(self, reference=replace(reference, classes=classes.astype(np.int16)))

    def score(
        self,
        answers: NDArray[np.int64],
        class_count: int,
        every: int = 1,
        from_first_of: int = 1,
    ) -> tuple[WindowScore, ScoreSeries]:
        """Scores answers if every k-th frame is analysed.

        Args:
            answers: (M,) class of every box, an index into the fleet's.
            class_count: number of classes of the fleet.
            every: k, for indices of frames in the stream.
            from_first_of: frames count from the first whose index both this and k divide: the answer to
                earlier ones lies in the previous window.
        """
        divides = self.frame % np.lcm(every, from_first_of) == 0
        first = int(np.argmax(divides)) if np.any(divides) else len(self.frame)
        predictions = self._predictions(answers, InferenceConfig(every, self.crops.shape[1]), first)
        scored = score_stream(
            predictions,
            self.reference.only(self.frame[first:]),
            NO_LABELS,
            decoded=0,
            class_count=class_count,
        )
        nothing = WindowScore(self.window, (0,) * class_count, (0,) * class_count)
        return (scored.windows[0] if scored.windows else nothing), scored.series

    def _every(self, step: int) -> NDArray[np.bool_]:
        every: NDArray[np.bool_] = self.frame % step == 0
        return every

    def _predictions(
        self, answers: NDArray[np.int64], config: InferenceConfig, first: int
    ) -> PredictionColumns:
        frame = self.frame[first:]
        analysed = frame % config.every == 0
        counts = np.where(analysed, np.diff(self.offsets)[first:], 0)
        answered = np.repeat(np.concatenate([np.zeros(first, np.bool_), analysed]), np.diff(self.offsets))
        same = partial(np.full, len(frame))
        return PredictionColumns(
            frame=frame,
            t_us=self.t_us[first:],
            window=same(self.window, np.int32),
            analysed=analysed,
            answered_by=np.maximum.accumulate(np.where(analysed, frame, -1)),
            model_version=same(0, np.int32),
            every=same(config.every, np.int16),
            resolution=same(config.resolution, np.int16),
            offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            boxes=self.boxes[answered],
            classes=answers[answered].astype(np.int16),
            confidence=np.ones(int(answered.sum()), np.float32),
        )


@dataclass(frozen=True, slots=True, eq=False)
class SeenWindow:
    """One window of a stream: all its frames, and the material kept for the golden model.

    Attributes:
        part: part of the window before the stream ended, in (0, 1].
    """

    frames: SeenFrames
    material: WindowMaterial
    part: float = 1.0


def watch(
    frames: Iterator[tuple[Frame, Truth | None]],
    proposer: Proposer,
    collector: WindowCollector,
    referee: Referee | None,
    side: int,
    window_us: int,
    windows: int | None,
) -> Iterator[SeenWindow]:
    """Yields a stream's windows; the last may be cut short by its end. A window without frames is empty.

    Args:
        frames: all frames of the camera.
        proposer: proposes objects.
        collector: keeps frames for the golden model, as in a run that analyses every frame.
        referee: makes reference labels if the source has no ground truth.
        side: of the crops in pixels.
        window_us: length of a window.
        windows: number of windows; None continues until the stream ends.
    """
    kept = _Kept(0, side)
    for frame, truth in frames:
        window = frame.t_us // window_us
        while window > kept.window:
            yield SeenWindow(kept.frames(), collector.close(kept.window))
            kept = _Kept(kept.window + 1, side)
            if windows is not None and kept.window >= windows:
                return
        proposals = proposer.propose(frame) if frame.boxes is None else Proposals(frame.boxes)
        collector.see(frame, proposals)
        crops = crop_objects(frame.image, proposals.boxes, side)
        kept.add(frame, proposals.boxes, crops, _reference_of(frame, truth, referee))
    part = kept.part_of(window_us)
    if part > 0.0:
        yield SeenWindow(kept.frames(), collector.close(kept.window), 1.0 if part >= WHOLE else part)


@dataclass(slots=True, eq=False)
class _Kept:
    """Frames of the current window so far."""

    window: int
    side: int
    seen: list[tuple[Frame, NDArray[np.float32], NDArray[np.uint8]]] = field(default_factory=list)
    truths: list[FrameReference] = field(default_factory=list)

    def add(
        self,
        frame: Frame,
        boxes: NDArray[np.float32],
        crops: NDArray[np.uint8],
        truth: FrameReference | None,
    ) -> None:
        """Adds the next frame without its image, which is no longer needed."""
        self.seen.append((replace(frame, image=_NO_IMAGE), boxes, crops))
        if truth is not None:
            self.truths.append(truth)

    def part_of(self, window_us: int) -> float:
        """Returns the part of the window that has passed at the last frame."""
        return (self.seen[-1][0].t_us % window_us) / window_us if self.seen else 0.0

    def frames(self) -> SeenFrames:
        """Returns all frames of the window."""
        return SeenFrames(
            window=self.window,
            frame=np.array([frame.index for frame, _, _ in self.seen], np.int64),
            t_us=np.array([frame.t_us for frame, _, _ in self.seen], np.int64),
            offsets=np.concatenate([[0], np.cumsum([len(boxes) for _, boxes, _ in self.seen])]).astype(
                np.int64
            ),
            boxes=np.concatenate([np.zeros((0, 4), np.float32), *(boxes for _, boxes, _ in self.seen)]),
            crops=np.concatenate(
                [np.zeros((0, self.side, self.side, 3), np.uint8), *(crops for _, _, crops in self.seen)]
            ),
            reference=ReferenceColumns.of(self.truths),
        )


def _reference_of(frame: Frame, truth: Truth | None, referee: Referee | None) -> FrameReference | None:
    if truth is not None:
        return truth.reference(frame.index, frame.t_us)
    return referee.judge(frame) if referee is not None else None

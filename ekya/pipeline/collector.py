"""Collector of the frames of a window that the golden model labels: a sample and one burst.

Frames that the golden detector has analysed for inference are kept with its answers: labels at no cost.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ekya.core.areas import WHOLE_PICTURE, Areas
from ekya.core.units import StreamId, us_to_seconds
from ekya.models.edge.architecture_table import Task
from ekya.models.golden.detections import Detections, FramePlace, GoldenObjects, Proposals, Question
from ekya.pipeline.settings import PreparationSettings
from ekya.streams.ingest.crops import crop_objects
from ekya.streams.ingest.frame import Frame
from ekya.streams.ingest.motion import IouTracker
from ekya.streams.ingest.pictures import shrink_by_area

ANSWERED_FRAMES = 16
"""Number of answered frames from which on no others are labelled; fewer validate badly."""

SAMPLED_FRAMES = 48
"""Frames kept of a window, one from each equal part of it."""

UNNAMED = StreamId("")
"""Stream of frames that need not be identified later."""

LONGEST_SIDE = 640
"""Longest side in pixels of a frame that is kept for a detector: what golden detectors work on at most."""

RECENT_EVERY_US = 100_000
"""Least time between two of the newest frames, which are kept for labels of a new scene: objects hardly move
in less."""

RECENT_FRAMES = SAMPLED_FRAMES
"""Newest frames kept for labels of a new scene: a sample of its first seconds, in the memory of another."""

BURST_FRAMES = 11
"""Consecutive frames kept of a window: one more than the coarsest λ skips."""


@dataclass(frozen=True, slots=True, eq=False)
class CollectedFrame:
    """A kept frame and the objects that were proposed in it.

    Attributes:
        frame: index in the stream.
        t_us: stream time.
        boxes: (N, 4) float32.
        tracks: (N,) int64, an object's number for as long as boxes could be linked.
        crops: (N, S, S, 3) uint8 RGB.
        image: (H, W, 3) uint8 BGR, a megabyte; None if the golden model's network has analysed it already.
        found: detections of that network, made when it proposed the objects.
        size: width and height of the frame in pixels; ``image`` may be smaller.
        stream: of the frame, to look up labels that were made before.
        areas: where its objects count.
        answer: of the golden detector, where it analysed the frame for inference.
    """

    frame: int
    t_us: int
    boxes: NDArray[np.float32]
    tracks: NDArray[np.int64]
    crops: NDArray[np.uint8]
    image: NDArray[np.uint8] | None
    found: Detections | None
    size: tuple[int, int] = (0, 0)
    stream: StreamId = UNNAMED
    areas: Areas = WHOLE_PICTURE
    answer: GoldenObjects | None = None

    def select_objects(self, rows: NDArray[np.int64]) -> "CollectedFrame":
        """Returns the frame with only these of its objects."""
        return replace(self, boxes=self.boxes[rows], tracks=self.tracks[rows], crops=self.crops[rows])

    @property
    def picture(self) -> NDArray[np.uint8]:
        """The image.

        Raises:
            ValueError: it was not kept.
        """
        return self.question.picture

    @property
    def question(self) -> Question:
        """Its objects as a question to a golden model."""
        return Question(self.boxes, self.image, self.found, FramePlace(self.stream, self.frame))


@dataclass(frozen=True, slots=True, eq=False)
class WindowMaterial:
    """Everything kept of one window, in the order of the frames.

    Attributes:
        window: of the frames.
        since_us: stream time from which on they were kept, where the window is still open.
    """

    window: int
    sample: tuple[CollectedFrame, ...]
    burst: tuple[CollectedFrame, ...]
    since_us: int | None = None

    @property
    def used_in(self) -> int:
        """The window in which labels of these frames are used: that after theirs, or the open one."""
        return self.window + (self.since_us is None)

    @property
    def mean_objects(self) -> float:
        """Mean objects per frame, at least 1 so that an empty street still has a cost."""
        counts = [len(frame.boxes) for frame in (*self.sample, *self.burst)]
        return max(float(np.mean(counts)), 1.0) if counts else 1.0


class WindowCollector:
    """Chooses frames by seed and window alone, so that the choice does not depend on λ or any plan.

    With ``only_analysed`` of its settings it does depend on λ, and so do the newest frames (``since``), and
    those that the golden detector answered.

    Args:
        settings: of the stream.
        window_us: length of a window.
        stream: its name.

    Attributes:
        side: of the crops, in pixels.
        window_us: length of a window.
    """

    def __init__(self, settings: PreparationSettings, window_us: int, stream: StreamId = UNNAMED) -> None:
        self.side, self.window_us = settings.side, window_us
        self._settings = settings
        self._stream = stream
        self._frames_per_window = max(int(settings.fps * us_to_seconds(window_us)), 1)
        self._period_us = 1_000_000 / settings.fps
        self._tracker = IouTracker()
        self._window_lock = threading.Lock()
        self._window = -1
        self._due: list[int] = []
        self._burst_from = 0
        self._sample: list[CollectedFrame] = []
        self._burst: list[CollectedFrame] = []
        self._recent: tuple[CollectedFrame, ...] = ()
        self._answered: tuple[CollectedFrame, ...] = ()
        self._answers, self._answered_every = 0, 1
        self._finished = WindowMaterial(-1, (), ())

    def wants(self, t_us: int) -> bool:
        """Returns True if the frame at this stream time is to be kept, and so needs boxes.

        False for a frame that arrives after its window.
        """
        return self._is_kept(t_us) and not self._settings.only_analysed

    def collect_frame(self, frame: Frame, proposals: Proposals) -> CollectedFrame | None:
        """Tracks the objects of a frame with boxes, and keeps the frame if it is wanted.

        Returns:
            The frame if it is now one of the window's sample.
        """
        is_kept, is_recent = self._is_kept(frame.t_us), self._is_recent(frame.t_us)
        # Also for frames that are not kept: tracks need every frame that has boxes.
        tracks = self._tracker.number_boxes(proposals.boxes)
        if not (is_kept or is_recent):
            return None
        kept = self._keep(frame, proposals, tracks)
        if is_recent:
            # A new tuple, since another thread may be reading the old one.
            self._recent = (*self._recent, kept)[-RECENT_FRAMES:]
        if not is_kept:
            return None
        with self._window_lock:
            # The window may have been closed while the frame was cropped.
            if frame.t_us // self.window_us != self._window:
                return None
            at = self._position(frame.t_us)
            if self._in_burst(at):
                self._burst.append(kept)
            # One frame stands for all positions that have passed since the last one that was kept.
            later = [due for due in self._due if due > at]
            if len(later) == len(self._due):
                return None
            self._due = later
            self._sample.append(kept)
        return kept

    def keep_answer(self, frame: Frame, answer: GoldenObjects) -> None:
        """Keeps a frame of the current window with the golden detector's answer to it.

        Of many they are thinned evenly, over all of the window.
        """
        with self._window_lock:
            if frame.t_us // self.window_us != self._window:
                return
            self._answers += 1
            if self._answers % self._answered_every:
                return
            nothing = np.zeros((0, 4), np.float32)
            kept = self._keep(frame, Proposals(nothing), np.zeros(0, np.int64))
            self._answered = (*self._answered, replace(kept, answer=answer))
            if len(self._answered) > SAMPLED_FRAMES:
                self._answered = self._answered[1::2]
                self._answered_every *= 2

    def close(self, window: int) -> WindowMaterial:
        """Returns what was kept of a past window; empty for any but the last."""
        if window == self._window:
            self._enter(window + 1)
        finished = self._finished
        return finished if finished.window == window else WindowMaterial(window, (), ())

    def recent_material(self, window: int, since_us: int) -> WindowMaterial:
        """Returns the frames from ``since_us`` on, those sampled of the current window and the newest ones.

        No burst is among them. May be called while another thread passes frames.
        """
        sample = (*self._sample, *self._recent, *self._answered) if self._window == window else self._recent
        shown = [kept for kept in sample if kept.t_us >= since_us]
        return WindowMaterial(window, self._chosen(shown), (), since_us)

    def material(self, window: int, since_us: int | None) -> WindowMaterial:
        """Returns the frames of which a window's labels are made: of the window before, or since a time."""
        return self.close(window - 1) if since_us is None else self.recent_material(window, since_us)

    def forget_material(self) -> None:
        """Drops what was kept of the last past window, a megabyte a frame."""
        self._finished = WindowMaterial(self._finished.window, (), ())

    def _enter(self, window: int) -> None:
        """Begins a window, if it is newer than the current one."""
        # The thread that reads frames and the one that asks for labels come here at a window's end: a second
        # entry into the same window would replace what was kept of the one before.
        with self._window_lock:
            if window <= self._window:
                return
            sample = self._chosen((*self._sample, *self._answered))
            self._finished = WindowMaterial(self._window, sample, tuple(self._burst))
            rng = np.random.default_rng((self._settings.seed, window))
            edges = np.linspace(0, self._frames_per_window, SAMPLED_FRAMES + 1)
            self._due = [int(rng.uniform(low, high)) for low, high in pairwise(edges)]
            self._burst_from = int(rng.integers(0, max(self._frames_per_window - BURST_FRAMES, 1)))
            self._sample, self._burst = [], []
            self._answered, self._answers, self._answered_every = (), 0, 1
            self._window = window

    def _keep(self, frame: Frame, proposals: Proposals, tracks: NDArray[np.int64]) -> CollectedFrame:
        boxes, found = proposals.boxes, proposals.found
        crops = crop_objects(frame.image, boxes, self.side)
        image = frame.image if found is None else None
        if image is not None and self._settings.task is Task.DETECT:
            image = shrink_by_area(image, LONGEST_SIDE)
        seen = frame.index, frame.t_us, boxes, tracks, crops, image, found
        return CollectedFrame(*seen, frame.size, self._stream, frame.areas)

    def _chosen(self, frames: Sequence[CollectedFrame]) -> tuple[CollectedFrame, ...]:
        """Returns the answered ones of the frames where they are enough, without more than are labelled.

        They go to another process, a megabyte each.
        """
        answered = tuple(kept for kept in frames if kept.answer is not None)
        wanted = self._settings.frames_per_window
        if len(answered) < min(wanted, ANSWERED_FRAMES):
            return _one_each(frames)
        return tuple(spread(answered, min(max(wanted, ANSWERED_FRAMES), len(answered))))

    def _is_kept(self, t_us: int) -> bool:
        window = t_us // self.window_us
        self._enter(window)
        at = self._position(t_us)
        return window == self._window and (self._in_burst(at) or bool(self._due and at >= self._due[0]))

    def _is_recent(self, t_us: int) -> bool:
        if not self._settings.keeps_newest:
            return False
        return not self._recent or t_us >= self._recent[-1].t_us + RECENT_EVERY_US

    def _position(self, t_us: int) -> int:
        return round(t_us % self.window_us / self._period_us)

    def _in_burst(self, at: int) -> bool:
        return self._burst_from <= at < self._burst_from + BURST_FRAMES


def spread(frames: Sequence[CollectedFrame], count: int) -> list[CollectedFrame]:
    """Returns this number of the frames, at equal distances, the last one included."""
    places = np.linspace(len(frames) - 1, 0, count).round().astype(int)[::-1]
    return [frames[at] for at in places.tolist()]


def _one_each(frames: Sequence[CollectedFrame]) -> tuple[CollectedFrame, ...]:
    """Returns the frames in order; of one that was kept more than once the last, which has an answer."""
    by_index = {kept.frame: kept for kept in frames}
    return tuple(by_index[index] for index in sorted(by_index))

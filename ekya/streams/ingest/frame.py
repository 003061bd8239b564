"""Frames, their ground truth, and the protocols of the sources that yield them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ekya.core.areas import WHOLE_PICTURE, Areas
from ekya.core.errors import UserError
from ekya.core.objects import BACKGROUND, DOUBTFUL
from ekya.core.records import FrameReference


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """One picture, as inference sees it.

    Attributes:
        index: position in the stream, from 0, without gaps over all frames that arrived.
        t_us: stream time since the first frame, microseconds.
        image: (H, W, 3) uint8, BGR.
        boxes: (N, 4) float32, x0 y0 x1 y1 in pixels, if the source itself proposes the objects;
            None if a proposer has to find them.
        areas: where its objects count. Those of ``boxes`` do; a proposer asks for others.
    """

    index: int
    t_us: int
    image: NDArray[np.uint8]
    boxes: NDArray[np.float32] | None
    areas: Areas = WHOLE_PICTURE

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        return self.image.shape[1], self.image.shape[0]

    def find_counting(self, boxes: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Returns (N,) bool, which of (N, 4) boxes in pixels count."""
        return self.areas.find_counting(boxes, self.size)


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """Ground truth of one frame. Scoring reads it afterwards; inference never does.

    Attributes:
        boxes: (N, 4) float32, x0 y0 x1 y1 in pixels. For a source that proposes boxes these are
            the same rows in the same order, and between them those that do not count.
        classes: (N,) int64, index into the fleet's classes; ``DOUBTFUL`` for what does not count.
        tracks: (N,) int64, the object's number, constant for its lifetime and never reused.
    """

    boxes: NDArray[np.float32]
    classes: NDArray[np.int64]
    tracks: NDArray[np.int64]

    def in_areas(self, areas: Areas, size: tuple[int, int]) -> "Truth":
        """Returns the truth of a picture of this width and height in which objects count there only."""
        if areas == WHOLE_PICTURE:
            return self
        counts = areas.find_counting(self.boxes, size)
        return Truth(self.boxes, np.where(counts, self.classes, DOUBTFUL), self.tracks)

    def to_reference(self, index: int, t_us: int) -> FrameReference:
        """Returns the record of this truth for its frame."""
        return FrameReference(index, t_us, self.boxes, self.classes.astype(np.int16), self.tracks)


class StreamSource(Protocol):
    """A finite, ordered stream of frames that can be read again from the start.

    ``frames()`` yields frames as fast as they can be made; the reader paces them. A frame that cannot be
    decoded is not yielded but counted in ``damaged``.
    """

    @property
    def fps(self) -> float:
        """Frames a second of stream time."""

    @property
    def damaged(self) -> int:
        """Number of frames of the current pass that could not be decoded."""

    def frames(self) -> Iterator[tuple[Frame, Truth | None]]:
        """Yields all frames from the first to the last, with ``Truth`` if the source has it."""


@runtime_checkable
class RecordedSource(StreamSource, Protocol):
    """A recording whose length is known before it is played."""

    @property
    def length_s(self) -> float | None:
        """Seconds of stream time from begin to end, a hint; None if they are not known, or it is endless."""


@dataclass(frozen=True, slots=True, eq=False)
class Sight:
    """A picture of a live camera.

    Attributes:
        arrived_ns: monotonic time at which the picture was decoded.
        image: (H, W, 3) uint8, BGR.
    """

    arrived_ns: int
    image: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Silence:
    """A live camera currently gives no frames; ``reason`` says why, in words without credentials."""

    reason: str


@dataclass(frozen=True, slots=True)
class CameraOutage:
    """No frame arrives in this interval of stream time; ``reason`` says why, in words."""

    from_us: int
    until_us: int
    reason: str


@runtime_checkable
class InterruptedSource(StreamSource, Protocol):
    """A recording with interruptions that are announced in advance."""

    def frames_and_outages(self) -> Iterator[tuple[Frame, Truth | None] | CameraOutage]:
        """Yields the frames of ``frames()``, and an ``Outage`` before each interruption."""


@runtime_checkable
class LiveSource(Protocol):
    """An endless stream that happens once: frames that are not taken when they arrive are lost."""

    @property
    def fps(self) -> float:
        """Frames a second, possibly an estimate."""

    def watch_pictures(self) -> Iterator[Sight | Silence]:
        """Yields pictures as they arrive; waits for them and reconnects a lost camera.

        A ``Silence`` is yielded when the camera is lost and after each failed attempt to reach it; the next
        ``Sight`` ends the loss.
        """


def number_known_classes(classes: tuple[str, ...], known: Sequence[str], whose: str) -> Mapping[str, int]:
    """Returns the number of each of the fleet's classes that objects of the data set can have.

    Args:
        classes: the fleet's classes.
        known: classes of the data set; the golden models' background class need not be among them.
        whose: beginning of the error message, such as ``Cityscapes has``.

    Raises:
        UserError: the data set does not have one of the classes.
    """
    wanted = {name: number for number, name in enumerate(classes) if name in known or name != BACKGROUND}
    for name in wanted:
        if name not in known:
            raise UserError(
                f"classes: {whose} no {name!r}; remove it, or choose from {', '.join(known) or 'nothing'}"
            )
    return wanted

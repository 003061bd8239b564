"""What a camera gives: frames, and (only where somebody drew them) the truth about them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ekya.core.records import FrameReference


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """One picture, as inference sees it.

    Attributes:
        index: position in the stream, from 0, without gaps over all frames that arrived.
        t_us: stream time since its first frame.
        image: (H, W, 3) uint8, BGR.
        boxes: (N, 4) float32, x0 y0 x1 y1 in pixels, where the source itself proposes the objects;
            None where a proposer has to find them.
    """

    index: int
    t_us: int
    image: NDArray[np.uint8]
    boxes: NDArray[np.float32] | None


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """What is really in one frame. Scoring reads it afterwards; inference never does.

    Attributes:
        boxes: (N, 4) float32, x0 y0 x1 y1 in pixels. For a source that proposes boxes these are
            the same rows in the same order.
        classes: (N,) int64, index into the fleet's classes.
        tracks: (N,) int64, one number an object for as long as it lives, never used again.
    """

    boxes: NDArray[np.float32]
    classes: NDArray[np.int64]
    tracks: NDArray[np.int64]

    def reference(self, frame: Frame) -> FrameReference:
        """What is to be written down of the frame that this is the truth of."""
        return FrameReference(frame.index, frame.t_us, self.boxes, self.classes.astype(np.int16), self.tracks)


class StreamSource(Protocol):
    """A finite, ordered stream of frames that can be read again from the start.

    ``frames()`` yields frames as fast as they can be made; pacing is somebody else's work. A frame
    that cannot be decoded is not yielded but counted in ``damaged``.
    """

    @property
    def fps(self) -> float:
        """Frames a second of stream time."""

    @property
    def damaged(self) -> int:
        """Frames of the current pass that could not be decoded."""

    def frames(self) -> Iterator[tuple[Frame, Truth | None]]:
        """All frames from the first to the last; ``Truth`` only where the source knows it."""


@dataclass(frozen=True, slots=True, eq=False)
class Sight:
    """What a live camera shows.

    Attributes:
        arrived_ns: monotonic time at which it was decoded.
        image: (H, W, 3) uint8, BGR.
    """

    arrived_ns: int
    image: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Silence:
    """A live camera gives nothing for now; ``reason`` says why, in words without credentials."""

    reason: str


@dataclass(frozen=True, slots=True)
class Outage:
    """Nothing arrives from one moment of stream time until another; ``reason`` says why, in words."""

    from_us: int
    until_us: int
    reason: str


@runtime_checkable
class InterruptedSource(StreamSource, Protocol):
    """A recording that gives nothing for a while, and says so before it does."""

    def shown(self) -> Iterator[tuple[Frame, Truth | None] | Outage]:
        """Its ``frames()``, and between them an ``Outage`` as soon as it is known."""


@runtime_checkable
class LiveSource(Protocol):
    """A stream that happens once and has no end. What is not taken when it comes is gone."""

    @property
    def fps(self) -> float:
        """Frames a second, as far as it is known."""

    def watch(self) -> Iterator[Sight | Silence]:
        """What the camera shows, as it comes; waits for it, and looks for the camera while it is away.

        A ``Silence`` comes when the camera is lost and after each vain try to reach it, a ``Sight`` ends it.
        """

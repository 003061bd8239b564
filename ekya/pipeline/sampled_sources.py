"""Reads the first frames of sources before a run: to time their work, and to look at them."""

import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ekya.core.units import StreamId
from ekya.streams.ingest.camera import ASSUMED_FPS
from ekya.streams.ingest.feed import LiveSample
from ekya.streams.ingest.frame import Frame
from ekya.streams.ingest.motion import MotionRegions
from ekya.streams.ingest.process import SourceDiedError, SourceProcess, SourceSpec

MOST_SOURCES = 4
"""Upper bound of sources whose work is timed, or whose labels are compared with pictures."""

_FRAMES, _FEWEST, _READ_S, _LIVE_S = 12, 3, 1.0, 5.0
_SEEN_FRAMES, _SEEN_S, _KEPT_EVERY = 300, 2.0, 12
_AT_ONCE = 8
_GREY = Frame(0, 0, np.full((480, 640, 3), 127, np.uint8), None)


class SeenFrame(NamedTuple):
    """What moves in a frame, or the source's boxes: (N, 4) in pixels; ``frame`` is kept of every 12th."""

    number: int
    moving: NDArray[np.float32]
    frame: Frame | None


@dataclass(frozen=True, slots=True)
class SampledSource:
    """First frames of a source and its rate.

    Attributes:
        fps: frames a second.
        frames: the first ones; empty if there were none.
        length_s: of a recording by its header, if it says it; seconds.
        seen: of the first seconds, if labels are to be compared with them.
        reading_s: processor time of its process for a frame, in seconds.
    """

    fps: float
    frames: tuple[Frame, ...]
    length_s: float | None = None
    seen: tuple[SeenFrame, ...] = ()
    reading_s: float = 0.0

    @property
    def pictures(self) -> tuple[Frame, ...]:
        """The first frames; grey ones if there are none, which the run reports later."""
        return self.frames or (_GREY,) * _FEWEST


def sample_sources(
    specs: Mapping[StreamId, SourceSpec],
    classes: tuple[str, ...],
    also: Collection[StreamId] = (),
    labelled: bool = False,
) -> dict[StreamId, SampledSource]:
    """Reads the first frames of up to ``MOST_SOURCES`` different sources, and of ``also``, concurrently.

    Args:
        specs: sources of streams.
        classes: the fleet's.
        also: streams that are read in any case.
        labelled: read more of the first ``MOST_SOURCES``, to compare them with labels.

    Returns:
        Samples of the streams that were opened, and of streams with the same source.

    Raises:
        UserError: a recording cannot be opened.
    """
    different = {_name(spec): spec for spec in specs.values()}
    opened = dict(islice(different.items(), MOST_SOURCES)) | {_name(specs[one]): specs[one] for one in also}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        read = {
            name: pool.submit(_read_source, spec, classes, labelled and at < MOST_SOURCES)
            for at, (name, spec) in enumerate(opened.items())
        }
        found = {name: one.result() for name, one in read.items()}
    return {stream: found[_name(spec)] for stream, spec in specs.items() if _name(spec) in found}


def _read_source(spec: SourceSpec, classes: tuple[str, ...], labelled: bool) -> SampledSource:
    with LiveSample(spec, _LIVE_S) if spec.live else SourceProcess(spec, classes) as source:
        try:
            fps = source.wait_open()
        except SourceDiedError:
            return SampledSource(ASSUMED_FPS, ())
        frames: list[Frame] = []
        seen: list[SeenFrame] = []
        read, before_s = 0, 0.0
        motion, ends_s = MotionRegions(), time.monotonic() + (_SEEN_S if labelled else _READ_S)
        for frame, _ in islice(source.frames(), _SEEN_FRAMES if labelled else _FRAMES):
            # From the first on: decoders take more to begin.
            before_s = before_s if read else source.cpu_s
            read += 1
            frames += [frame] if len(frames) < _FRAMES else []
            if labelled:
                boxes = motion.find_regions(frame.image) if frame.boxes is None else frame.boxes
                kept = None if frame.index % _KEPT_EVERY else frame
                seen.append(SeenFrame(frame.index, boxes, kept))
            if time.monotonic() > ends_s and len(frames) >= _FEWEST:
                break
        length_s = source.length_s if isinstance(source, SourceProcess) else None
        reading_s = max(source.cpu_s - before_s, 0.0) / (read - 1) if read > 1 else 0.0
        return SampledSource(fps, tuple(frames), length_s, tuple(seen), reading_s)


def _name(spec: SourceSpec) -> str:
    return f"{type(spec).__qualname__} {spec.model_dump_json()}"

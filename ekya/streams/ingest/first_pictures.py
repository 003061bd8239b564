"""Judges the first pictures of a stream: sentences on what is odd in them. Nothing is read here."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median

import numpy as np
from numpy.typing import NDArray

from ekya.core.units import US_PER_S
from ekya.streams.ingest.frame import Frame

_FEWEST = 5
"""Pictures from which on they are frozen if all are the same, and their rate is known."""

_DARK, _FLAT = 16.0, 3.0
"""Mean of 255 up to which a picture without contrast is black, and the deviation of one without contrast."""

_FROZEN_PART = 0.002
"""Part of the pixels that changes from one picture of a still to the next; in a quiet room 0.02 and more."""

_TORN_PART, _SAME_ROW = 0.15, 1
_OTHER_RATE = 1.6
_NOISE, _MOVED_PART = 25, 0.005
_BURST_US = 700_000
"""A camera's first pictures may come at once, from a buffer: its rate is known after this time."""


def describe_odd_pictures(frames: Sequence[Frame], fps: float | None, live: bool = False) -> Iterator[str]:
    """Yields what is odd and what to do, one sentence without full stop each; nothing where all is well.

    Args:
        frames: consecutive ones; skipped frames of a camera may be missing.
        fps: frames a second of stream time, as the source says; None is not compared.
        live: they come from a camera, at their time.
    """
    if not frames:
        yield "no picture of it could be read; check the file, or that the camera sends video"
        return
    first, last = frames[0], frames[-1]
    span_us = last.t_us - first.t_us
    mean, deviation = float(last.image.mean()), float(last.image.std(axis=(0, 1)).max())
    torn = [_torn_part(frame.image) for frame in frames]
    if deviation <= _FLAT:
        what = "is black" if mean <= _DARK else "has one colour only"
        yield (
            f"the picture {what} (mean brightness {mean:.0f} of 255); check lens cover and light, and that "
            "it is the right track, channel or path"
        )
    elif len(frames) >= _FEWEST and median(_changed_parts(frames)) <= _FROZEN_PART:
        yield (
            f"its first {len(frames)} pictures ({span_us / US_PER_S:.1f} s) are one and the same; check that "
            "the camera is not frozen and the file no still"
        )
    elif torn[-1] and sum(part > 0 for part in torn) * 2 > len(torn):
        yield (
            f"the lower {torn[-1]:.0%} of the picture are one repeated row, as where data are lost; take "
            "RTSP over TCP, a lower bit rate, or an undamaged file"
        )
    if fps is None or len(frames) < _FEWEST or span_us <= (_BURST_US if live else 0):
        return
    came = (last.index - first.index) * US_PER_S / span_us
    if max(came / fps, fps / came) >= _OTHER_RATE:
        yield (
            f"{came:.3g} frames a second come, and {fps:.3g} are expected; correct the camera's rate, or the "
            "key 'fps'"
        )


def _changed_parts(frames: Sequence[Frame]) -> Iterator[float]:
    """Yields the part of the pixels that changes between the later of some pictures.

    An encoder refines a still in the first ones, and begins anew now and then.
    """
    for before, after in pairwise(frames[len(frames) // 2 :]):
        alike = before.image.shape == after.image.shape
        yield float((before.image != after.image).any(axis=2).mean()) if alike else 1.0


def is_moving(frames: Sequence[Frame]) -> bool:
    """Returns whether the last of some frames differs from the first by more than noise."""
    if not frames or frames[0].image.shape != frames[-1].image.shape:
        return False
    differs = np.abs(frames[-1].image.astype(np.int16) - frames[0].image).max(axis=2) > _NOISE
    return float(differs.mean()) >= _MOVED_PART


def _torn_part(image: NDArray[np.uint8]) -> float:
    """Returns the part of a picture below its last row that differs from the next; 0.0 where it is usual."""
    rows = image.astype(np.int16)
    differs = np.abs(np.diff(rows, axis=0)).max(axis=(1, 2)) > _SAME_ROW
    height = len(rows) - (int(np.flatnonzero(differs)[-1]) + 1 if differs.any() else 0)
    # Black at the edge is a bar, and a picture of one colour is no torn one.
    is_bar = float(rows[-1].mean()) <= _DARK
    part = height / len(rows)
    return part if _TORN_PART <= part < 1 and not is_bar else 0.0

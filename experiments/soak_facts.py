"""Facts of a day in an hour (``soak.py``): when answers went on, where they lack, what grew."""

import itertools
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from chaos_service import Service
from mosquitto import Consumer, Received

from ekya.core.errors import UserError
from ekya.results.storage.hour_tables import newest_rows

BACK_S = 5.0

_GAP_S = 2.0
"""An answer that comes so long after the one before was late for a reason."""

Busy = tuple[str, float, float]
"""Camera ("" for all), begin and end of a fault or a pause, in which answers may be missing."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A camera's power cut.

    Attributes:
        camera: its name.
        at_s, up_s: wall-clock times of the cut, and of the camera's return.
    """

    camera: str
    at_s: float
    up_s: float


@dataclass(frozen=True, slots=True)
class Sample:
    """Memory of all processes, size of the folder and of Ray's logs, while all serve and nothing recovers."""

    at_s: float
    pss_mb: float
    processes: int
    disk_mb: float
    ray_mb: float


def backs(
    cuts: Sequence[Cut], busy: Sequence[Busy], received: Mapping[str, Received]
) -> list[dict[str, Any]]:
    """Returns for each cut how soon answers went on, counted from when they could.

    ``back_s`` is the time until the consumer had the answer to a frame from after the return: this one is
    judged. ``frame_s`` is the time until that camera's first such frame had arrived at the service. A
    camera that was back before a fault beside its cut was over says nothing of either: such a row has
    ``left_out``.
    """
    rows = []
    for cut in cuts:
        could_s = cut.up_s
        for camera, begin_s, end_s in busy:
            if camera in ("", cut.camera) and begin_s < could_s + BACK_S and end_s > could_s:
                could_s = end_s
        one = received.get(cut.camera, Received())
        later = [times for times in zip(one.received_s, one.unix_s, strict=True) if times[1] > cut.up_s]
        back_s = min((received_s for received_s, _ in later), default=None)
        frame_s = min((unix_s for _, unix_s in later), default=None)
        left_out = back_s is not None and back_s <= could_s
        tells = back_s is not None and frame_s is not None and not left_out
        rows.append(
            {
                "camera": cut.camera,
                "away_s": round(cut.up_s - cut.at_s, 1),
                "back_s": back_s - could_s if tells else None,
                "frame_s": max(0.0, frame_s - could_s) if tells else None,
                "left_out": left_out,
            }
        )
    return rows


def gaps(cuts: Sequence[Cut], busy: Sequence[Busy], received: Mapping[str, Received]) -> list[str]:
    """Returns times without answers that nothing explains, in words."""
    allowed = [*busy]
    allowed += [(cut.camera, cut.at_s - 1.0, cut.up_s + BACK_S) for cut in cuts]
    said = []
    for name, one in received.items():
        times_s = sorted(one.unix_s)
        for before_s, after_s in itertools.pairwise(times_s):
            explained = any(
                camera in ("", name) and begin_s - 1.0 < after_s and before_s < end_s + BACK_S
                for camera, begin_s, end_s in allowed
            )
            if after_s - before_s > _GAP_S and not explained:
                at = time.strftime("%X", time.gmtime(before_s))
                said.append(f"{name}: {after_s - before_s:.1f} s at {at}")
    return said


def missing_at_consumer(service: Service, consumer: Consumer) -> dict[str, tuple[int, int]]:
    """Returns by camera how many analysed frames are on disk, and how many of them the consumer lacks."""
    received, found = consumer.cameras(), {}
    for folder in sorted((service.runs.path / "predictions").iterdir()):
        analysed = [columns.frame[columns.analysed] for columns in newest_rows(folder)]
        frames = np.unique(np.concatenate(analysed)) if analysed else np.empty(0, np.int64)
        came = np.array(received.get(folder.name, Received()).frames, np.int64)
        found[folder.name] = (len(frames), int(np.isin(frames, came, invert=True).sum()))
    return found


def memory_mb(samples: Sequence[Sample], first_s: float) -> tuple[float, float]:
    """Returns the median memory of some samples from a time on, and of the last."""
    settled = [one.pss_mb for one in samples if one.at_s >= first_s]
    if not settled:
        raise UserError("the run was too short: there is no memory to compare")
    few = max(1, min(9, len(settled) // 2))
    return statistics.median(settled[:few]), statistics.median(settled[-few:])


def slowest(seconds: Sequence[float | None]) -> float:
    """Returns the longest time; infinity where something never came."""
    return max((float("inf") if one is None else one for one in seconds), default=0.0)


def median(seconds: Sequence[float | None]) -> float:
    """Returns the median time; something that never came is later than all."""
    return statistics.median([float("inf") if one is None else one for one in seconds] or [0.0])

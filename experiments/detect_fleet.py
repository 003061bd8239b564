"""Fleet of one camera with a detector, and runs of many cases, for the recipes about detectors."""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TypeVar

from city_windows import one_thread

from ekya.config.fleet_file import FleetConfig
from ekya.core.units import StreamId
from ekya.streams.ingest.video import VideoSpec

CLASSES = ("person", "bicycle", "car", "motorcycle", "bus", "truck")
CAMERA = StreamId("camera")

_CaseT = TypeVar("_CaseT")
_FoundT = TypeVar("_FoundT")


def fleet_of(
    files: Sequence[Path], student: Path, golden: Path, window_s: float, windows: int, speed: float = 1.0
) -> FleetConfig:
    """Returns a fleet of one camera that shows these files one after the other."""
    return FleetConfig.model_validate(
        {
            "name": files[0].stem.replace(".", "-"),
            "classes": list(CLASSES),
            "gpus": 1.0,
            "window_s": window_s,
            "windows": windows,
            "golden": {"model": "onnx", "weights": golden},
            "edge": {"task": "detect", "weights": student},
            "streams": [
                {
                    "id": CAMERA,
                    "source": {"kind": "video", "files": list(files)},
                    "play": {"speed": speed},
                }
            ],
        }
    )


def duration_s(video: Path) -> float:
    """Returns the stream time of the last frame: a container's own duration is a hint."""
    last_us = 0
    for frame, _ in VideoSpec(files=(video,)).open(()).frames():
        last_us = frame.t_us
    return max(last_us / 1e6, 1.0)


def each(work: Callable[[_CaseT], _FoundT], cases: Sequence[_CaseT], jobs: int) -> Iterator[_FoundT]:
    """Yields the results of all cases in their order; several at a time run in processes of one thread."""
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, fresh, initializer=_begin_worker) as pool:
        try:
            yield from pool.map(work, cases)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _begin_worker() -> None:
    one_thread()
    threading.Thread(target=end_with_parent, daemon=True).start()


def end_with_parent() -> None:
    """Ends this process when the one that made it is gone: workers of a killed recipe would wait for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)

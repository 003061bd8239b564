"""Student and golden detector of videos and cameras for which none is named: models of the catalogue."""

import logging
import time
from pathlib import Path
from statistics import median

import numpy as np
from pydantic import TypeAdapter

from ekya.config.fleet_sections import MAX_PREPARATION_FRACTION
from ekya.core.host import TYPICAL_FRAME
from ekya.core.units import FULL_GPU_MILLI
from ekya.models.catalogue import STUDENT, PublishedModel, fetch_model, golden_candidates
from ekya.models.golden.golden_model import open_detector
from ekya.models.golden.spec import ONNX, GoldenSpec
from ekya.models.onnx_wheels import onnxruntime_version
from ekya.pipeline.kept_measurements import MeasurementFile
from ekya.planning.sizing.choose_sizes import CORES_PART, PREPARATION_MILLI, PREPARATION_PART, WINDOW_S
from ekya.system.host import cpu_limit, instruction_set, processor_name

_LOG = logging.getLogger(__name__)

_REPEATS = 5
_LABELLED_IN_WINDOWS = 2
"""Number of windows in which all cameras must be labelled; a slower golden detector is not chosen."""

FRAME_COSTS = MeasurementFile("golden-frames", TypeAdapter(float))
"""Seconds of a core in which a golden detector of the catalogue analyses a typical frame, by machine."""


def fetch_student(*, offline: bool) -> Path:
    """Returns the default student's weights, fetched if they are not here.

    Raises:
        UserError: they cannot be fetched.
    """
    return _fetch_default(STUDENT, offline)


def choose_golden(cameras: int, *, offline: bool) -> Path:
    """Returns the weights of the golden detector for a number of cameras.

    Of those in the cache it is the most accurate that labels all cameras here in the time that two windows
    have for labels; where none does, the fastest, which sees fewer frames. If none is there, the usual one is
    fetched.

    Args:
        cameras: their number.
        offline: refuse instead of downloading.

    Raises:
        UserError: none is here, and none can be fetched; or one cannot be opened.
    """
    return _fetch_default(pick_golden(cameras, offline=offline), offline)


def pick_golden(cameras: int, *, offline: bool) -> PublishedModel:
    """Returns the model that ``choose_golden`` takes."""
    here = golden_candidates()
    return next((model for model in here if len(here) == 1 or _fits(model, cameras, offline)), here[-1])


def _fetch_default(model: PublishedModel, offline: bool) -> Path:
    path = fetch_model(model, offline=offline)
    _LOG.info(
        "%s: %s of the catalogue (%s); --%s names another", model.role, model.name, model.licence, model.role
    )
    return path


def _fits(model: PublishedModel, cameras: int, offline: bool) -> bool:
    capacity = CORES_PART * cpu_limit()
    share = min(PREPARATION_MILLI / FULL_GPU_MILLI, PREPARATION_PART * capacity)
    left_gpu_s = _LABELLED_IN_WINDOWS * WINDOW_S * MAX_PREPARATION_FRACTION * share
    frames = GoldenSpec().frames_per_window * cameras
    return frames * _frame_s(model, offline) <= left_gpu_s


def known_frame_ms(model: PublishedModel) -> float | None:
    """Returns the milliseconds of a core for a frame, if they were measured on this machine."""
    frame_s = FRAME_COSTS.load(_key(model))
    return None if frame_s is None else 1000 * frame_s


def _frame_s(model: PublishedModel, offline: bool) -> float:
    """Returns the seconds of a core for a frame, measured once on each machine."""
    known_s = FRAME_COSTS.load(_key(model))
    if known_s is not None:
        return known_s
    detector = open_detector(ONNX, fetch_model(model, offline=offline))
    frame, took_s = np.full(TYPICAL_FRAME, 127, np.uint8), []
    for _ in range(_REPEATS):
        began_s = time.thread_time()
        detector.detect_objects(frame)
        took_s.append(time.thread_time() - began_s)
    # The first is slow: memory is taken, and code is loaded.
    measured_s = median(took_s[1:])
    FRAME_COSTS.save(_key(model), measured_s)
    return measured_s


def _key(model: PublishedModel) -> dict[str, str]:
    return {
        "processor": processor_name(),
        "instruction_set": instruction_set(),
        "onnxruntime": onnxruntime_version(),
        "model": model.name,
    }

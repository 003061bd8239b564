"""Which speeds a run plans with: those that were measured on this device, or a straight line."""

import logging
from dataclasses import replace

from ekya.core.speed import LINEAR, ModelSpeeds, SpeedCurve
from ekya.gpu.nvml import list_gpus
from ekya.gpu.processor import processor_name
from ekya.gpu.registry import ChosenBackend
from ekya.profiling.speed import among_others
from ekya.workers.speed_file import SpeedKey, load_speeds, save_speeds, speeds_path

_LOG = logging.getLogger(__name__)


def key_of(chosen: ChosenBackend, model: str) -> SpeedKey:
    """What speeds of an edge model are kept under."""
    return SpeedKey(_device_name(chosen.capability.device), chosen.name, model)


def training_speed(speeds: ModelSpeeds | None) -> SpeedCurve:
    """The curve that a run plans retrainings with; half the share, half the speed where nobody measured."""
    if speeds is None:
        return LINEAR
    return speeds.refined or among_others(speeds.training)


def inference_speed(speeds: ModelSpeeds | None) -> SpeedCurve:
    """The curve by which the share of an inference is chosen; a straight line where nobody measured."""
    return LINEAR if speeds is None else among_others(speeds.inference)


def keep_refined(chosen: ChosenBackend, model: str, refined: SpeedCurve | None) -> None:
    """Lets the next run begin with what the retrainings of this one have made of the curve.

    Nothing is kept where `ekya speeds` has measured nothing, or they have said nothing (None).

    Raises:
        UserError: the file of speeds is damaged or cannot be written.
    """
    key = key_of(chosen, model)
    speeds = load_speeds(speeds_path(), key)
    if speeds is not None and refined is not None:
        save_speeds(speeds_path(), key, replace(speeds, refined=refined))


def kept_speeds(chosen: ChosenBackend, model: str) -> ModelSpeeds | None:
    """What `ekya speeds` measured here, and a word on it in the log.

    Raises:
        UserError: the file of speeds is damaged.
    """
    key = key_of(chosen, model)
    speeds = load_speeds(speeds_path(), key)
    if speeds is not None:
        _LOG.info("speed at a share: as measured for %s on %s", model, key.device)
    elif chosen.capability.enforcement != "cooperative":
        _LOG.warning(
            "speed at a share: taken for linear, which a GPU's is not; `ekya speeds --shares %s --model %s` "
            "measures it once",
            chosen.name,
            model,
        )
    return speeds


def _device_name(device: str) -> str:
    if device == "cuda":
        gpus = list_gpus().gpus
        return gpus[0].name if gpus else "a GPU"
    return processor_name()

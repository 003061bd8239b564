"""Speed curves of a run: measured on this device, or linear."""

import logging
from dataclasses import replace

from ekya.core.speed import LINEAR, ModelSpeeds, SpeedCurve
from ekya.gpu.backends.registry import ChosenBackend
from ekya.gpu.nvml import list_gpus
from ekya.pipeline.speed_file import SpeedKey, load_speeds, save_speeds, speeds_path
from ekya.planning.profiling.speed_curves import among_others
from ekya.system.host import processor_name

_LOG = logging.getLogger(__name__)


def key_of(chosen: ChosenBackend, model: str) -> SpeedKey:
    """Returns the key under which an edge model's speeds are stored."""
    return SpeedKey(_device_name(chosen.capability.device), chosen.name, model)


def training_speed(speeds: ModelSpeeds | None) -> SpeedCurve:
    """Returns the curve for planning retrainings; linear (half the share, half the speed) if not measured."""
    if speeds is None:
        return LINEAR
    return speeds.refined or among_others(speeds.training)


def inference_speed(speeds: ModelSpeeds | None) -> SpeedCurve:
    """Returns the curve for choosing an inference share; linear if not measured."""
    return LINEAR if speeds is None else among_others(speeds.inference)


def keep_refined(chosen: ChosenBackend, model: str, refined: SpeedCurve | None) -> None:
    """Stores the curve as refined by this run's retrainings, for the next run.

    Does nothing if `ekya speeds` has not measured the model here, or if ``refined`` is None.

    Raises:
        UserError: the file of speeds is damaged or cannot be written.
    """
    key = key_of(chosen, model)
    speeds = load_speeds(speeds_path(), key)
    if speeds is not None and refined is not None:
        save_speeds(speeds_path(), key, replace(speeds, refined=refined))


def kept_speeds(chosen: ChosenBackend, model: str) -> ModelSpeeds | None:
    """Returns the speeds that `ekya speeds` measured here, and logs whether there are any.

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

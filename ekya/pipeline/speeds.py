"""Speed curves of a run: measured on this device by ``ekya speeds``, or linear."""

import logging
from dataclasses import replace

from pydantic import TypeAdapter

from ekya.core.speed import LINEAR, ModelSpeeds, SpeedCurve
from ekya.gpu.backends.registry import ChosenBackend
from ekya.gpu.nvml import list_gpus
from ekya.pipeline.measurement_file import MeasurementFile
from ekya.planning.profiling.speed_curves import among_others
from ekya.system.host import processor_name

_LOG = logging.getLogger(__name__)

SPEEDS = MeasurementFile("speeds", TypeAdapter(ModelSpeeds), "ekya speeds")
"""Speeds by device, share backend and edge model."""


def speed_key(chosen: ChosenBackend, model: str) -> dict[str, str]:
    """Returns the conditions under which an edge model's speeds are valid."""
    device = processor_name()
    if chosen.capability.device == "cuda":
        gpus = list_gpus().gpus
        device = gpus[0].name if gpus else "a GPU"
    return {"device": device, "backend": chosen.name, "model": model}


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
    key = speed_key(chosen, model)
    speeds = SPEEDS.load(key)
    if speeds is not None and refined is not None:
        SPEEDS.save(key, replace(speeds, refined=refined))


def kept_speeds(chosen: ChosenBackend, model: str) -> ModelSpeeds | None:
    """Returns the speeds that `ekya speeds` measured here, and logs whether there are any.

    Raises:
        UserError: the file of speeds is damaged.
    """
    key = speed_key(chosen, model)
    speeds = SPEEDS.load(key)
    if speeds is not None:
        _LOG.info("speed at a share: as measured for %s on %s", model, key["device"])
    elif chosen.capability.enforcement != "cooperative":
        _LOG.warning(
            "speed at a share: taken for linear, which a GPU's is not; `ekya speeds --shares %s --model %s` "
            "measures it once",
            chosen.name,
            model,
        )
    return speeds

"""Measurements of this machine on disk, which later runs reuse: self-tests, and speeds at shares.

Importing them does not need torch.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from ekya.core.errors import UserError
from ekya.core.speed import LINEAR, ModelSpeeds, SpeedCurve
from ekya.gpu.backends.registry import ChosenBackend
from ekya.gpu.nvml import list_gpus
from ekya.models.edge.architecture_table import Task, task_of
from ekya.models.edge.forward import MOST_IMAGES, SelfTest
from ekya.models.onnx_wheels import onnxruntime_version
from ekya.planning.profiling.speed_curves import among_others
from ekya.system.files import cache_folder, user_errors, write_text_atomic
from ekya.system.host import instruction_set, processor_name

_LOG = logging.getLogger(__name__)

_Measured = TypeVar("_Measured")


@dataclass(frozen=True, slots=True)
class MeasurementFile(Generic[_Measured]):
    """File of measurements of one type: a JSON list of keys (conditions of the measurement) and values.

    Attributes:
        name: of the file, without extension, and of a measurement beside its key.
        values: type of the measurements.
        command: measures again; None if the next run does so, and the file may be lost.
    """

    name: str
    values: TypeAdapter[_Measured]
    command: str | None = None

    @property
    def path(self) -> Path:
        """The file in the user's cache."""
        return cache_folder() / f"{self.name}.json"

    def load(self, key: Mapping[str, str]) -> _Measured | None:
        """Returns the measurement under exactly these conditions; None if there is none.

        Raises:
            UserError: the file is damaged and may not be lost.
        """
        for entry in self._entries():
            if self._key(entry) == key:
                try:
                    return self.values.validate_python(entry[self.name])
                except (ValidationError, KeyError) as error:
                    self._damaged("an entry does not fit", error)
        return None

    def save(self, key: Mapping[str, str], measured: _Measured) -> None:
        """Stores a measurement in place of an earlier one under the same conditions.

        Raises:
            UserError: the file cannot be written, or is damaged, and may not be lost.
        """
        kept = [entry for entry in self._entries() if self._key(entry) != key]
        kept.append({**key, self.name: self.values.dump_python(measured, mode="json")})
        try:
            with user_errors(self.path):
                self.path.parent.mkdir(parents=True, exist_ok=True)
            write_text_atomic(self.path, json.dumps(kept, indent=1) + "\n")
        except UserError as error:
            if self.command is not None:
                raise
            _LOG.info("the measurement is not kept: %s", error)

    def _entries(self) -> list[dict[str, Any]]:
        try:
            entries = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            return self._damaged(error, error)
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            return self._damaged("it holds no list")
        return entries

    def _damaged(self, why: object, error: Exception | None = None) -> list[dict[str, Any]]:
        """Returns no entries if the file may be lost."""
        if self.command is None:
            return []
        raise UserError(
            f"{self.path}: holds no measured {self.name} ({why}); remove it and run `{self.command}` again."
        ) from error

    def _key(self, entry: Mapping[str, Any]) -> dict[str, str]:
        return {name: value for name, value in entry.items() if name != self.name}


SELF_TESTS = MeasurementFile("forward-passes", TypeAdapter(SelfTest))
"""Self-tests by machine, version of torch, edge model and resolutions."""


def self_test_key(device: str, architecture: str, sides: Sequence[int]) -> dict[str, str]:
    """Returns the conditions under which a self-test made here is valid; sides are those of Λ in pixels."""
    gpus = list_gpus().gpus if device.startswith("cuda") else ()
    return {
        "processor": processor_name(),
        "instruction_set": instruction_set(),
        "gpu": gpus[0].name if gpus else "",
        "torch": version("torch"),
        **(_of_detector() if task_of(architecture) is Task.DETECT else {}),
        "architecture": architecture,
        "sides": " ".join(str(side) for side in sorted(sides)),
    }


def _of_detector() -> dict[str, str]:
    return {"onnxruntime": onnxruntime_version(), "images": str(MOST_IMAGES)}


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
    elif chosen.on_gpus:
        _LOG.warning(
            "speed at a share: not measured here; `ekya speeds --shares %s --model %s` measures it once",
            chosen.name,
            model,
        )
    return speeds

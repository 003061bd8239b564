"""Schema of the edge models in a fleet file."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from ekya.models.edge.architecture_table import (
    CLASSIFIERS,
    DEFAULT_ARCHITECTURE,
    DETECTORS,
    FASTESTDET,
    NAMES,
    Task,
    block_names,
    task_of,
)

FRAME_SIDES: Mapping[str, int] = MappingProxyType({FASTESTDET: 352})
"""Side in pixels of each detector's input unless the fleet file sets another: that of published weights."""

SIDE_STEP = 32
"""Every side of a detector's input is a multiple of it: the network halves its input five times."""

LEAST_FRAME_SIDE = 96

_OF_TASK = {Task.CLASSIFY: CLASSIFIERS, Task.DETECT: tuple(DETECTORS)}
_CALLED = {Task.CLASSIFY: "classifier", Task.DETECT: "detector"}


class EdgeSpec(BaseModel):
    """The compressed model that every stream starts with.

    Attributes:
        task: what the model does. With ``detect`` it is a detector, whose defaults are in brackets.
        model: architecture (``fastestdet``); ``docs/edge.md`` lists the blocks of each.
        weights: of the common base model. For a classifier Ekya's or torchvision's ImageNet weights; None
            starts with fresh ones. For a detector the published weights, its ONNX file or a model of Ekya's.
        resolution: side in pixels of the square that objects, or whole frames, are resized to for training.
            That of a detector is a multiple of 32 from 96 on (that of the published weights: 352 for
            ``fastestdet``).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: Task = Task.CLASSIFY
    model: str = DEFAULT_ARCHITECTURE
    weights: Path | None = None
    resolution: int = Field(default=32, ge=16, le=640)

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_a_detector(cls, raw: object) -> object:
        if isinstance(raw, Mapping) and raw.get("task") == Task.DETECT:
            detector = {"model": FASTESTDET, **raw}
            side = FRAME_SIDES.get(str(detector["model"]), FRAME_SIDES[FASTESTDET])
            return {"resolution": side, **detector}
        return raw

    @field_validator("model")
    @classmethod
    def _does_the_task(cls, model: str, info: ValidationInfo) -> str:
        if model not in NAMES:
            raise ValueError(f"there is no edge model {model!r}; use one of {', '.join(NAMES)}")
        # A task that is not valid is missing here, and has an error of its own.
        does, task = task_of(model), info.data.get("task", task_of(model))
        if does is not task:
            raise ValueError(
                f"{model} is a {_CALLED[does]}, and edge.task is {task}; write edge.task: {does}, or use one "
                f"of {', '.join(_OF_TASK[task])}"
            )
        return model

    @field_validator("resolution")
    @classmethod
    def _is_a_side(cls, side: int, info: ValidationInfo) -> int:
        detects = info.data.get("task") is Task.DETECT
        if detects and (side % SIDE_STEP or side < LEAST_FRAME_SIDE):
            raise ValueError(
                f"{side} is no side of a detector's input; use a multiple of {SIDE_STEP} from "
                f"{LEAST_FRAME_SIDE} on"
            )
        return side

    def too_many(self, trainable_blocks: int) -> str | None:
        """Returns an error message with the remedy if the model has fewer blocks than this, else None."""
        names = block_names(self.model)
        if trainable_blocks <= len(names):
            return None
        return (
            f"{trainable_blocks} is more than a {self.model} has; its blocks, from the last, are "
            f"{', '.join(reversed(names))}; use at most {len(names)}"
        )

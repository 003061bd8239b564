"""Bodies of requests, and of answers beyond the facts of ``ekya.service.status``."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ekya.config.fleet_sections import Polygons
from ekya.planning.schedulers.registry import DEFAULT_SCHEDULER
from ekya.results.storage.run_state import ModelRow
from ekya.service.status import Series


class Body(BaseModel):
    """Body of a request: an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class _Change(Body):
    """Keys to change; at least one."""

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if not self.model_fields_set:
            raise ValueError(f"nothing is to change; name one of {', '.join(type(self).model_fields)}")
        return self


class CameraTerms(_Change):
    """Terms of a camera that can be changed while it runs; those that are left out stay.

    Attributes:
        weight: of its accuracy in the objective.
        max_age_s: maximum age of the latest result in seconds; null for no limit.
        mask: polygons of points [x, y], parts of the picture's width and height: what stands there does not
            count, as in the fleet file. All of them; an empty list for none.
        zone: polygons likewise: if there are any, only what stands there counts.
    """

    weight: float = Field(default=1.0, gt=0)
    max_age_s: float | None = Field(default=None, gt=0)
    mask: Polygons = ()
    zone: Polygons = ()


class FleetTerms(_Change):
    """Terms of the fleet that can be changed while it runs; those that are left out stay.

    Attributes:
        min_accuracy: the lowest accuracy that inference of a camera may have.
        scheduler: that plans from now on: its name with its options, as in uniform:inference=300.
        gpus: number of GPUs that the fleet may use, or a part of one; without a GPU, of cores.
        labels_per_window: number of objects that are labelled per camera and window, where edge models
            classify; from the next preparation on.
        frames_per_window: number of frames, where they detect.
        gpu_s_per_window: GPU-seconds that labelling a camera's window may take; null for no limit.
    """

    min_accuracy: float = Field(default=0.4, ge=0, lt=1)
    scheduler: str = DEFAULT_SCHEDULER
    gpus: float = Field(default=1.0, gt=0)
    labels_per_window: int = Field(default=96, ge=1)
    frames_per_window: int = Field(default=24, ge=4, le=48)
    gpu_s_per_window: float | None = Field(default=None, gt=0)


class EarlierModel(Body):
    """Model that serves a camera again.

    Attributes:
        version: of a kept model; null for the one before the one that serves now.
    """

    version: int | None = Field(default=None, ge=0)


class NewClass(Body):
    """A class that is added to the fleet.

    Attributes:
        name: one that the golden model knows, or its map of classes.
    """

    name: str = Field(min_length=1)


class SeriesQuery(Body):
    """Part of a series that is asked for.

    Attributes:
        hours: only the last hours; all without it.
    """

    hours: float | None = Field(default=None, gt=0)


class ValidationQuery(Body):
    """Retraining that is asked about.

    Attributes:
        job: its number.
    """

    job: int = Field(ge=0)


class MistakeQuery(ValidationQuery):
    """Mistake that is asked for.

    Attributes:
        job: number of the retraining.
        place: of the mistake in its validation, from 0.
    """

    place: int = Field(default=0, ge=0)


@dataclass(frozen=True, slots=True)
class Model:
    """A model that served a camera.

    Attributes:
        version: counted per camera; 0 is the base model.
        window: window in which it was trained.
        config: γ for display; null for the base model.
        validation_accuracy: in [0, 1]; null if it was not measured.
        serving: it serves now.
    """

    version: int
    window: int
    config: str | None
    validation_accuracy: float | None
    serving: bool


@dataclass(frozen=True, slots=True)
class Note:
    """What follows from a change.

    Attributes:
        note: one sentence.
        done: the change is carried out; if not, it is kept, and the sentence says what it waits for.
    """

    note: str
    done: bool = True


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a request was refused.

    Attributes:
        error: one sentence.
    """

    error: str


def models_of(rows: Sequence[ModelRow], serving: int) -> tuple[Model, ...]:
    """Returns a camera's models for an answer, by version.

    Args:
        rows: as recorded.
        serving: version that serves.
    """
    return tuple(
        Model(
            int(row.version),
            row.window,
            None if row.gamma is None else row.gamma.name,
            row.validation_accuracy,
            row.version == serving,
        )
        for row in rows
    )


def last_hours(series: Series, hours: float | None, now_unix_s: float) -> Series:
    """Returns the points of the last hours; all for None."""
    since_s = 0.0 if hours is None else now_unix_s - hours * 3600.0
    first = next((at for at, unix_s in enumerate(series.unix_s) if unix_s >= since_s), len(series.unix_s))
    return Series(
        series.unix_s[first:],
        series.accuracy[first:],
        series.inference_milli[first:],
        series.retraining_milli[first:],
    )

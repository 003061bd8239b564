"""Scenes of a street and the script by which they change (paper §2.3, Figure 2)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator

Kind = Literal["person", "car", "truck", "bus", "bicycle", "motorcycle"]
View = Literal["side", "front", "high"]
Lighting = Literal["day", "dusk", "rain", "night"]
Livery = Literal["north", "south", "harbour", "plain"]
Clothing = Literal["summer", "winter", "rainwear", "workwear"]
Fleet = Literal["city", "utility", "mixed"]

KINDS: tuple[Kind, ...] = ("person", "car", "truck", "bus", "bicycle", "motorcycle")
"""All kinds of objects, in the order of class indices."""


class Scene(BaseModel):
    """One condition of a street, which lasts until the next scene of the script begins.

    Attributes:
        at_s: stream time in seconds at which it begins.
        ramp_s: duration of the change from the scene before, seconds. 0 is a cut: the camera is turned or
            drives on, and other objects are in view immediately. Otherwise light changes gradually and new
            arrivals belong increasingly to this scene.
        mix: relative frequency of each kind; kinds that are not named do not occur.
        view: from the side, along the street (fronts and rears), or from high above.
        lighting: day, dusk (low sun, glare), rain (streaks, haze) or night (lamps, noise).
        livery: set of colours of each kind of vehicle.
        clothing: clothes of people.
        fleet: types of vehicles: ``city`` (sedans, box trucks, city buses, scooters), ``utility``
            (vans, flatbeds and tankers, double-deckers and coaches, heavy motorcycles) or ``mixed``.
        scale: size of all objects, relative to the normal 1.0.
        density: average number of objects in view.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    at_s: Annotated[float, Field(ge=0)] = 0.0
    ramp_s: Annotated[float, Field(ge=0)] = 0.0
    mix: dict[Kind, Annotated[float, Field(ge=0)]] = Field(default_factory=lambda: dict.fromkeys(KINDS, 1.0))
    view: View = "side"
    lighting: Lighting = "day"
    livery: Livery = "north"
    clothing: Clothing = "summer"
    fleet: Fleet = "mixed"
    scale: Annotated[float, Field(ge=0.7, le=1.3)] = 1.0
    density: Annotated[float, Field(ge=1, le=12)] = 6.0

    @field_validator("mix")
    @classmethod
    def _has_a_weight(cls, mix: Mapping[Kind, float]) -> Mapping[Kind, float]:
        if sum(mix.values()) <= 0:
            raise ValueError("at least one kind needs a weight above 0")
        return mix

    def draw_kind(self, rng: np.random.Generator) -> Kind:
        """Samples a kind with the frequencies of ``mix``."""
        weights = np.array([self.mix.get(kind, 0.0) for kind in KINDS])
        return KINDS[int(rng.choice(len(KINDS), p=weights / weights.sum()))]


@dataclass(frozen=True, slots=True)
class Moment:
    """State of a script: the previous scene, the current one, and the progress of the change.

    Attributes:
        before, after: the two scenes; the same one when nothing changes.
        part: progress of the change, in [0, 1].
        index: number of the scene ``after`` in the script.
    """

    before: Scene
    after: Scene
    part: float
    index: int

    @property
    def main(self) -> Scene:
        """Scene with the larger part, which decides what cannot be blended (the view)."""
        return self.after if self.part >= 0.5 else self.before

    @property
    def density(self) -> float:
        """Number of objects in view, interpolated."""
        return (1.0 - self.part) * self.before.density + self.part * self.after.density

    def draw_scene(self, rng: np.random.Generator) -> Scene:
        """Samples the scene that a new arrival belongs to, in the current view."""
        drawn = self.after if rng.random() < self.part else self.before
        if drawn.view == self.main.view:
            return drawn
        return drawn.model_copy(update={"view": self.main.view})


def moment_at(scenes: tuple[Scene, ...], t_s: float) -> Moment:
    """Returns the state of a script (scenes with rising ``at_s``, the first at 0) at stream time ``t_s``."""
    index = max(number for number, scene in enumerate(scenes) if scene.at_s <= t_s)
    after = scenes[index]
    if index == 0 or after.ramp_s == 0.0:
        return Moment(after, after, 1.0, index)
    return Moment(scenes[index - 1], after, min(1.0, (t_s - after.at_s) / after.ramp_s), index)

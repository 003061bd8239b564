"""Synthetic city as a camera: rendered frames with exact ground truth."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Annotated, ClassVar, Literal

import cv2
import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, field_validator

from ekya.core.errors import UserError
from ekya.core.units import US_PER_S
from ekya.streams.ingest.frame import Frame, StreamSource, Truth, number_known_classes
from ekya.streams.synthetic.bodies import Lamp
from ekya.streams.synthetic.light import LightBox, levels_between
from ekya.streams.synthetic.scene import KINDS, Kind, StreetMoment, StreetScene, View, moment_at
from ekya.streams.synthetic.street import BASE_HEIGHT, BASE_WIDTH, paint_street
from ekya.streams.synthetic.traffic import Actor, StreetTraffic

_VISIBLE = 0.5
_VIEW_SEEDS: dict[View, int] = {"side": 0, "front": 1, "high": 2}


class CitySpec(BaseModel):
    """A synthetic camera in a fleet file.

    Attributes:
        seed: seed of all random choices; the same seed gives the same pixels.
        fps: frames a second of stream time.
        scenes: the script, with rising ``at_s``, the first at 0.
        width, height: of the frames, in pixels.
        duration_s: stream seconds until it ends; None is an endless stream.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    gives_truth: ClassVar[bool] = True
    live: ClassVar[bool] = False

    kind: Literal["synthetic_city"] = "synthetic_city"
    seed: Annotated[int, Field(ge=0)]
    fps: Annotated[float, Field(gt=0, le=60)] = 10.0
    scenes: Annotated[tuple[StreetScene, ...], Field(min_length=1)] = (StreetScene(),)
    width: Annotated[int, Field(ge=64)] = BASE_WIDTH
    height: Annotated[int, Field(ge=48)] = BASE_HEIGHT
    duration_s: Annotated[float, Field(gt=0)] | None = None

    @field_validator("scenes")
    @classmethod
    def _in_order(cls, scenes: tuple[StreetScene, ...]) -> tuple[StreetScene, ...]:
        starts = [scene.at_s for scene in scenes]
        if starts[0] != 0.0 or any(b <= a for a, b in pairwise(starts)):
            raise ValueError("at_s must rise from scene to scene, and be 0 in the first")
        return scenes

    def open(self, classes: tuple[str, ...]) -> StreamSource:
        """Opens the camera for a fleet with these classes.

        Raises:
            UserError: the city does not have one of the classes, or shows a kind that is not among them.
        """
        class_of = number_known_classes(classes, KINDS, "the synthetic city has")
        for number, scene in enumerate(self.scenes):
            for kind, weight in scene.mix.items():
                if weight > 0 and kind not in class_of:
                    raise UserError(
                        f"source.scenes[{number}].mix: {kind!r} is not among the fleet's classes; "
                        "add it to classes or set its weight to 0"
                    )
        return _City(self, self.fps, {kind: class_of[kind] for kind in KINDS if kind in class_of})


@dataclass(frozen=True, slots=True)
class _City:
    """A ``StreamSource`` that renders its script from the start at every pass."""

    spec: CitySpec
    fps: float
    class_of: Mapping[Kind, int]
    damaged: int = 0

    def frames(self) -> Iterator[tuple[Frame, Truth | None]]:
        """Yields all frames with their truth."""
        spec = self.spec
        traffic = StreetTraffic(np.random.default_rng([spec.seed, 1]))
        lights = LightBox(np.random.default_rng([spec.seed, 2]))
        streets: dict[View, NDArray[np.uint8]] = {}
        shown: StreetMoment | None = None
        across, down = spec.width / BASE_WIDTH, spec.height / BASE_HEIGHT
        for index in count():
            if spec.duration_s is not None and index >= round(spec.duration_s * spec.fps):
                return
            moment = moment_at(spec.scenes, index / spec.fps)
            if shown is None or _is_cut(shown, moment):
                traffic.replace_actors(moment)
            else:
                traffic.move_actors(moment, 1.0 / spec.fps)
            shown = moment
            view = moment.main.view
            if view not in streets:
                streets[view] = paint_street(view, np.random.default_rng([spec.seed, 3, _VIEW_SEEDS[view]]))
            picture = streets[view].copy()
            actors = list(traffic)
            lamps = [lamp for actor in actors for lamp in _paint(picture, actor)]
            levels = levels_between(moment.before.lighting, moment.after.lighting, moment.part)
            lights.light_picture(picture, levels, lamps, np.random.default_rng([spec.seed, 4, index]))
            if (across, down) != (1.0, 1.0):
                resized = np.empty((spec.height, spec.width, 3), np.uint8)
                cv2.resize(picture, (spec.width, spec.height), resized, 0, 0, cv2.INTER_LINEAR)
                picture = resized
            seen = list(_visible(actors))
            boxes = np.array([box for _, box in seen], np.float32).reshape(-1, 4)
            boxes *= np.array([across, down, across, down], np.float32)
            truth = Truth(
                boxes,
                np.array([self.class_of[actor.kind] for actor, _ in seen], np.int64),
                np.array([actor.track for actor, _ in seen], np.int64),
            )
            yield Frame(index, round(index * US_PER_S / spec.fps), picture, boxes.copy()), truth


def _paint(picture: NDArray[np.uint8], actor: Actor) -> list[Lamp]:
    """Draws an actor and its shadow; returns its lamps."""
    box = x0, _, x1, y1 = actor.box
    shadow = (round((x0 + x1) / 2), round(y1) - 1)
    reach = (max(2, round((x1 - x0) * 0.5)), 2)
    cv2.ellipse(picture, shadow, reach, 0, 0, 360, (66, 64, 62), -1, cv2.LINE_AA)
    return actor.body.draw_body(picture, box, actor.lane.mirrored, actor.colours, actor.step)


_Box = tuple[float, float, float, float]


def _visible(actors: list[Actor]) -> Iterator[tuple[Actor, _Box]]:
    """Yields the actors that are at least half visible, with their boxes; later ones hide earlier ones."""
    found = []
    # Front actor at each pixel.
    owner = np.full((BASE_HEIGHT, BASE_WIDTH), -1, np.int16)
    for number, actor in enumerate(actors):
        box = _inside(actor.box)
        x0, y0, x1, y1 = map(round, box)
        place = slice(y0, y1), slice(x0, x1)
        owner[place] = number
        found.append((actor, box, place))
    for number, (actor, box, place) in enumerate(found):
        mine = np.count_nonzero(owner[place] == number)
        large = min(box[2] - box[0], box[3] - box[1]) >= 2.0
        if large and mine >= _VISIBLE * actor.size[0] * actor.size[1]:
            yield actor, box


def _is_cut(before: StreetMoment, now: StreetMoment) -> bool:
    """Returns whether the picture is cut: a scene without a ramp began, or the view changed."""
    begins = now.index != before.index and now.before is now.after
    return begins or now.main.view != before.main.view


def _inside(box: _Box) -> _Box:
    x0, y0, x1, y1 = box
    return max(0.0, x0), max(0.0, y0), min(float(BASE_WIDTH), x1), min(float(BASE_HEIGHT), y1)

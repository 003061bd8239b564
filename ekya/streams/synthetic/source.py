"""Synthetic city as a camera: rendered frames with exact ground truth."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

import cv2
import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, field_validator

from ekya.core.errors import UserError
from ekya.core.units import US_PER_S
from ekya.streams.ingest.frame import Frame, StreamSource, Truth, classes_known
from ekya.streams.synthetic.actors import Traffic
from ekya.streams.synthetic.bodies import Lamp
from ekya.streams.synthetic.light import LightBox, levels_between
from ekya.streams.synthetic.scene import KINDS, Kind, Moment, Scene, View, moment_at
from ekya.streams.synthetic.street import BASE_HEIGHT, BASE_WIDTH, paint_street

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
    scenes: Annotated[tuple[Scene, ...], Field(min_length=1)] = (Scene(),)
    width: Annotated[int, Field(ge=64)] = BASE_WIDTH
    height: Annotated[int, Field(ge=48)] = BASE_HEIGHT
    duration_s: Annotated[float, Field(gt=0)] | None = None

    @field_validator("scenes")
    @classmethod
    def _in_order(cls, scenes: tuple[Scene, ...]) -> tuple[Scene, ...]:
        starts = [scene.at_s for scene in scenes]
        if starts[0] != 0.0 or any(b <= a for a, b in pairwise(starts)):
            raise ValueError("at_s must rise from scene to scene, and be 0 in the first")
        return scenes

    def open(self, classes: tuple[str, ...]) -> StreamSource:
        """Opens the camera for a fleet with these classes.

        Raises:
            UserError: the city does not have one of the classes, or shows a kind that is not among them.
        """
        class_of = classes_known(classes, KINDS, "the synthetic city has")
        for number, scene in enumerate(self.scenes):
            for kind, weight in scene.mix.items():
                if weight > 0 and kind not in class_of:
                    raise UserError(
                        f"source.scenes[{number}].mix: {kind!r} is not among the fleet's classes; "
                        "add it to classes or set its weight to 0"
                    )
        return _City(self, {kind: class_of[kind] for kind in KINDS if kind in class_of})


class _City:
    """A ``StreamSource`` that renders its script from the start at every pass."""

    def __init__(self, spec: CitySpec, class_of: dict[Kind, int]) -> None:
        self._spec = spec
        self._class_of = class_of

    @property
    def fps(self) -> float:
        return self._spec.fps

    @property
    def damaged(self) -> int:
        return 0

    def frames(self) -> Iterator[tuple[Frame, Truth | None]]:
        spec = self._spec
        traffic = Traffic(np.random.default_rng([spec.seed, 1]))
        lights = LightBox(np.random.default_rng([spec.seed, 2]))
        streets: dict[View, NDArray[np.uint8]] = {}
        shown: Moment | None = None
        index = 0
        while spec.duration_s is None or index < round(spec.duration_s * spec.fps):
            t_s = index / spec.fps
            moment = moment_at(spec.scenes, t_s)
            if shown is None or _is_cut(shown, moment):
                traffic.cut(moment)
            else:
                traffic.move(moment, 1.0 / spec.fps)
            shown = moment
            view = moment.main.view
            if view not in streets:
                streets[view] = paint_street(view, np.random.default_rng([spec.seed, 3, _VIEW_SEEDS[view]]))
            picture = streets[view].copy()
            lamps, boxes, classes, tracks = self._paint(picture, traffic)
            levels = levels_between(moment.before.lighting, moment.after.lighting, moment.part)
            lights.light(picture, levels, lamps, np.random.default_rng([spec.seed, 4, index]))
            picture, boxes = self._resize(picture, boxes)
            yield (
                Frame(index, round(index * US_PER_S / spec.fps), picture, boxes.copy()),
                Truth(boxes, classes, tracks),
            )
            index += 1

    def _paint(
        self, picture: NDArray[np.uint8], traffic: Traffic
    ) -> tuple[list[Lamp], NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
        """Draws all actors; returns lamps, and boxes, classes and tracks of actors at least half visible."""
        actors = list(traffic)
        # Front actor at each pixel, to find actors that are mostly hidden.
        owner = np.full(picture.shape[:2], -1, np.int16)
        lamps: list[Lamp] = []
        for number, actor in enumerate(actors):
            box = actor.box
            shadow = (round((box[0] + box[2]) / 2), round(box[3]) - 1)
            reach = (max(2, round((box[2] - box[0]) * 0.5)), 2)
            cv2.ellipse(picture, shadow, reach, 0, 0, 360, (66, 64, 62), -1, cv2.LINE_AA)
            lamps += actor.body.draw(picture, box, actor.lane.mirrored, actor.colours, actor.step)
            x0, y0, x1, y1 = _inside(box)
            owner[round(y0) : round(y1), round(x0) : round(x1)] = number
        boxes, classes, tracks = [], [], []
        for number, actor in enumerate(actors):
            x0, y0, x1, y1 = _inside(actor.box)
            if x1 - x0 < 2.0 or y1 - y0 < 2.0:
                continue
            mine = np.count_nonzero(owner[round(y0) : round(y1), round(x0) : round(x1)] == number)
            width, height = actor.size
            if mine >= _VISIBLE * width * height:
                boxes.append((x0, y0, x1, y1))
                classes.append(self._class_of[actor.kind])
                tracks.append(actor.track)
        return (
            lamps,
            np.array(boxes, np.float32).reshape(-1, 4),
            np.array(classes, np.int64),
            np.array(tracks, np.int64),
        )

    def _resize(
        self, picture: NDArray[np.uint8], boxes: NDArray[np.float32]
    ) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
        spec = self._spec
        if (spec.width, spec.height) == (BASE_WIDTH, BASE_HEIGHT):
            return picture, boxes
        resized = np.empty((spec.height, spec.width, 3), np.uint8)
        cv2.resize(picture, (spec.width, spec.height), dst=resized, interpolation=cv2.INTER_LINEAR)
        across, down = spec.width / BASE_WIDTH, spec.height / BASE_HEIGHT
        return resized, boxes * np.array([across, down, across, down], np.float32)


def _is_cut(before: Moment, now: Moment) -> bool:
    """Returns whether the picture is cut: a scene without a ramp began, or the view changed."""
    begins = now.index != before.index and now.before is now.after
    return begins or now.main.view != before.main.view


def _inside(box: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
    x0, y0, x1, y1 = box
    return max(0.0, x0), max(0.0, y0), min(float(BASE_WIDTH), x1), min(float(BASE_HEIGHT), y1)

"""Traffic of a street: people and vehicles that arrive, move and leave."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ekya.streams.synthetic.bodies import Body, draw_model, find_body
from ekya.streams.synthetic.scene import Colours, Kind, StreetMoment, StreetScene, draw_colours
from ekya.streams.synthetic.street import LANES, Lane

_SMALLEST, _LARGEST = 18.0, 62.0
_GAP = 3.0
_TRIES = 6


@dataclass(slots=True)
class Actor:
    """A person or vehicle, from arrival to departure.

    Attributes:
        track: number of the object, never reused.
        kind: kind of object.
        body, colours: appearance.
        lane: lane on which it moves.
        along: distance covered on the lane, pixels.
        scale: size relative to the lane's scale.
        pace: speed in lengths of the object a second.
        offset: distance from the lane's middle, pixels.
        step: phase of the stride, radians.
    """

    track: int
    kind: Kind
    body: Body
    colours: Colours
    lane: Lane
    along: float
    scale: float
    pace: float
    offset: float
    step: float

    @property
    def size(self) -> tuple[float, float]:
        """Width and height at the current position, pixels."""
        part = min(1.0, max(0.0, self.along / self.lane.length))
        scale = self.scale * (self.lane.scale0 + part * (self.lane.scale1 - self.lane.scale0))
        longest = max(self.body.width, self.body.height)
        scale = min(max(scale, _SMALLEST / longest), _LARGEST / longest)
        return self.body.width * scale, self.body.height * scale

    @property
    def extent(self) -> float:
        """Length in the direction of movement, pixels."""
        width, height = self.size
        return width if self.lane.across else height

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Box x0 y0 x1 y1 in pixels; may reach beyond the picture."""
        width, height = self.size
        lane, part = self.lane, self.along / self.lane.length
        x = lane.x0 + part * (lane.x1 - lane.x0)
        y = lane.y0 + part * (lane.y1 - lane.y0)
        if lane.across:
            y += self.offset
        else:
            x += self.offset
        return x - width / 2, y - height, x + width / 2, y

    @property
    def entry(self) -> float:
        """Starting position on the lane: outside the picture, or at the far end of the street."""
        if self.lane.across:
            return -0.5 * self.extent
        return 0.0 if self.lane.approaching else -self.extent

    @property
    def gone(self) -> bool:
        """True if the object has left."""
        behind = 0.5 if self.lane.across else float(self.lane.approaching)
        return self.along > self.lane.length + behind * self.extent


class StreetTraffic:
    """All actors of one street; ``rng`` determines their behaviour completely."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._actors: list[Actor] = []
        self._next_track = 0

    def __iter__(self) -> Iterator[Actor]:
        """Iterates over the actors in painting order: the farthest first."""
        return iter(sorted(self._actors, key=lambda actor: (actor.box[3], actor.track)))

    def replace_actors(self, moment: StreetMoment) -> None:
        """Replaces all actors by new ones that are already in view, as at another place."""
        self._actors.clear()
        for _ in range(round(moment.density) * _TRIES):
            if len(self._actors) >= moment.density:
                break
            self._arrive(moment.draw_scene(self._rng), somewhere=True)

    def move_actors(self, moment: StreetMoment, dt_s: float) -> None:
        """Moves the actors by ``dt_s`` seconds; some leave, others arrive."""
        # The foremost first: those behind keep their distance from where it has moved to.
        by_lead = sorted(self._actors, key=lambda actor: (-actor.along, actor.track))
        for number, actor in enumerate(by_lead):
            actor.step += 1.9 * actor.pace * dt_s * 5.0
            wanted = actor.along + actor.pace * actor.extent * dt_s
            ahead = [other for other in by_lead[:number] if other.lane == actor.lane]
            if ahead and not actor.lane.pavement:
                wanted = max(actor.along, min(wanted, ahead[-1].along - _distance(actor, ahead[-1]) - _GAP))
            actor.along = wanted
        self._actors = [actor for actor in self._actors if not actor.gone]
        missing = round(moment.density) - len(self._actors)
        for _ in range(max(0, missing)):
            if self._rng.random() < 0.6:
                self._arrive(moment.draw_scene(self._rng), somewhere=False)

    def _arrive(self, scene: StreetScene, somewhere: bool) -> None:
        rng = self._rng
        kind = scene.draw_kind(rng)
        walks = kind == "person"
        lanes = [lane for lane in LANES[scene.view] if lane.pavement == walks]
        lane = lanes[int(rng.integers(len(lanes)))]
        model = draw_model(rng, kind, scene.fleet, scene.clothing == "rainwear")
        slower = 0.75 if scene.view == "front" else 1.0
        actor = Actor(
            track=self._next_track,
            kind=kind,
            body=find_body(model, scene.view, lane.approaching),
            colours=draw_colours(rng, kind, scene.livery, scene.clothing),
            lane=lane,
            along=0.0,
            scale=scene.scale * float(rng.uniform(0.88, 1.08)),
            pace=slower * float(rng.uniform(1.3, 2.6)),
            offset=float(rng.uniform(-4.0, 4.0)) if walks else float(rng.uniform(-2.0, 2.0)),
            step=float(rng.uniform(0.0, 6.28)),
        )
        actor.along = actor.entry
        if somewhere:
            actor.along = float(rng.uniform(0.05, 0.9)) * lane.length
        near = (other for other in self._actors if other.lane == lane)
        if not walks and any(abs(actor.along - one.along) < _distance(actor, one) + _GAP for one in near):
            return
        self._actors.append(actor)
        self._next_track += 1


def _distance(actor: Actor, other: Actor) -> float:
    """Returns the distance of two actors' middles on one lane when they touch."""
    return 0.5 * (actor.extent + other.extent)

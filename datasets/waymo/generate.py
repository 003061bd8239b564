"""Generates folders in the layout of the Waymo Open Dataset from rendered streets, in either version."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import cv2
import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1] / "cityscapes"))  # whose rendered streets these are

import difficulty
from city_pictures import Shown, Studio
from city_scenes import Thing as StreetThing
from city_scenes import draw_section, draw_things
from generating import OneSentence, at_least, claim_root, end_with, show_progress
from waymo_sample import (
    CYCLIST,
    FRAME_US,
    PEDESTRIAN,
    SIGN,
    VEHICLE,
    DrawnSegment,
    Thing,
    sample_segments,
    segment_files,
    write_v1,
    write_v2,
)

from ekya.core.units import US_PER_S
from ekya.streams.datasets.waymo.shots import WaymoCamera

LOCATIONS = ("location_sf", "location_phx", "location_other")
CONDITIONS = (("Day", "sunny"), ("Day", "rain"), ("Dawn/Dusk", "sunny"), ("Night", "sunny"))
"""Time of day and weather, of which the first is as frequent as all others."""

_LIGHTING = {"Dawn/Dusk": "dusk", "Night": "night"}
_TYPES = {
    "car": VEHICLE, "truck": VEHICLE, "bus": VEHICLE, "motorcycle": VEHICLE, "person": PEDESTRIAN,
    "bicycle": CYCLIST, "traffic sign": SIGN,
}  # fmt: skip
_FIRST_US, _HOUR_US = 1_520_000_000 * US_PER_S, 3600 * US_PER_S
_SIGNS = 0.12
_SMALLEST_BOX = 4.0

_EXAMPLES = """
Each segment is at one of three locations, at one time of day and in one weather. A run that was ended
continues with the segment where it was. Cameras are FRONT, FRONT_LEFT, FRONT_RIGHT, SIDE_LEFT, SIDE_RIGHT.

  python datasets/waymo/generate.py --out /data/waymo
  python datasets/waymo/generate.py --out /data/one --version 1 --segments 6 --cameras 5
  python datasets/waymo/generate.py --out /tmp/v1 --version 1 --plain --segments 2 --frames 3 --width 96
  ekya prepare waymo --root /data/waymo

The third draws the sample in datasets/waymo/sample/v1 again.
"""


@dataclass(slots=True)
class RenderedSegment:
    """A segment that is rendered; each picture once. Fields as in ``waymo_sample.Segment``.

    Attributes:
        number: of the segment in the data set, which decides what it shows.
    """

    name: str
    location: str
    time_of_day: str
    weather: str
    first_us: int
    frames: int
    cameras: tuple[WaymoCamera, ...]
    size: tuple[int, int]
    seed: int
    number: int
    _streets: dict[WaymoCamera, tuple[Studio, list[StreetThing]]] = field(default_factory=dict)
    _drawn: dict[tuple[WaymoCamera, int], tuple[bytes, tuple[Thing, ...]]] = field(default_factory=dict)

    def time(self, frame: int) -> int:
        """Returns the time of a frame, in microseconds since 1970."""
        return self.first_us + frame * FRAME_US

    def things(self, camera: WaymoCamera, frame: int) -> tuple[Thing, ...]:
        """Returns the objects of a picture."""
        return self._draw(camera, frame)[1]

    def jpeg(self, camera: WaymoCamera, frame: int) -> bytes:
        """Returns the encoded picture."""
        return self._draw(camera, frame)[0]

    def _draw(self, camera: WaymoCamera, frame: int) -> tuple[bytes, tuple[Thing, ...]]:
        if (camera, frame) not in self._drawn:
            studio, things = self._street(camera)
            t_s = frame * FRAME_US / US_PER_S
            rng = np.random.default_rng((*studio.section.seed, camera.number, frame))
            now = [thing.at(t_s) for thing in things]
            picture, shown = studio.paint(now, rng, self.number, 0.1 + 0.8 * frame / self.frames)
            jpeg = bytes(cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, 85])[1])
            self._drawn[camera, frame] = jpeg, self._boxed(camera, things, shown)
        return self._drawn[camera, frame]

    def _street(self, camera: WaymoCamera) -> tuple[Studio, list[StreetThing]]:
        if camera not in self._streets:
            lighting = "rain" if self.weather == "rain" else _LIGHTING.get(self.time_of_day, "day")
            view = "side" if camera in {WaymoCamera.SIDE_LEFT, WaymoCamera.SIDE_RIGHT} else "front"
            wanted = {"lighting": lighting, "view": view}
            section = draw_section(self.seed, self.location, self.number, wanted)
            rng = np.random.default_rng((*section.seed, camera.number))
            things = draw_things(rng, section, self.frames * FRAME_US / US_PER_S, _SIGNS)
            self._streets[camera] = Studio.open(section, self.size), things
        return self._streets[camera]

    def _boxed(
        self, camera: WaymoCamera, things: Sequence[StreetThing], shown: Sequence[Shown]
    ) -> tuple[Thing, ...]:
        """Returns what the data set labels; a cyclist's box holds the rider, and bicycles alone have none."""
        parts: dict[int, list[Shown]] = {}
        for part in shown:
            parts.setdefault(part.thing, []).append(part)
        boxed = []
        for number, of_thing in sorted(parts.items()):
            thing = things[number]
            kind = _TYPES.get(thing.label)
            alone = thing.kind == "bicycle" and not thing.ridden
            if kind is None or alone or max(part.visible for part in of_thing) < difficulty.MIN_VISIBLE:
                continue
            edges = np.array([part.box for part in of_thing]) * np.tile(self.size, 2)
            (x0, y0), (x1, y1) = edges[:, :2].min(axis=0).tolist(), edges[:, 2:].max(axis=0).tolist()
            if min(x1 - x0, y1 - y0) >= _SMALLEST_BOX:
                boxed.append(Thing(f"{self.name[:4]}-{camera}-{number}", kind, (x0, y0, x1, y1)))
        return tuple(boxed)


def rendered_segment(number: int, asked: argparse.Namespace) -> RenderedSegment:
    """Returns a segment of the data set that was asked for; names are in no order of time."""
    rng = np.random.default_rng((asked.seed, 1, number))
    start = int(rng.integers(0, 9000))
    time_of_day, weather = CONDITIONS[int(rng.choice(len(CONDITIONS), p=(0.5, 0.17, 0.17, 0.16)))]
    return RenderedSegment(
        name=f"{rng.integers(10**17, 9 * 10**18)}_{start}_000_{start + 20}_000",
        location=LOCATIONS[number % len(LOCATIONS)],
        time_of_day=time_of_day,
        weather=weather,
        first_us=_FIRST_US + number * _HOUR_US,
        frames=asked.frames,
        cameras=tuple(WaymoCamera)[: asked.cameras],
        size=(asked.width, asked.width * 2 // 3),
        seed=asked.seed,
        number=number,
    )


def generate(asked: argparse.Namespace) -> str:
    """Draws the segments that are missing, and returns the last line for the user."""
    claim_root(asked.out, {name: value for name, value in vars(asked).items() if name != "out"})
    plain = sample_segments(asked.segments, asked.frames, (asked.width, asked.width * 2 // 3))
    write = {1: write_v1, 2: write_v2}[asked.version]
    with show_progress("Drawing segments", asked.segments) as advance:
        for number in range(asked.segments):
            # Here, so that what was drawn of a segment is given up with it.
            segment: DrawnSegment = plain[number] if asked.plain else rendered_segment(number, asked)
            if not all(file.exists() for file in segment_files(asked.out, segment.name, asked.version)):
                write(asked.out, segment)
            advance()
    return (
        f"{asked.out}: {asked.segments} segments of {asked.frames} frames, version {asked.version}; "
        f"next: ekya prepare waymo --root {asked.out}"
    )


def main() -> None:
    """Reads the options and generates."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = OneSentence(description=__doc__, epilog=_EXAMPLES, formatter_class=raw)
    parser.add_argument("--out", type=Path, required=True, help="folder to fill or to continue")
    parser.add_argument("--segments", type=at_least(1), default=24, help="number of them (%(default)s)")
    parser.add_argument("--frames", type=at_least(1), default=100, help="of each segment (%(default)s)")
    parser.add_argument("--cameras", type=at_least(1, 5), default=3, help="the first of five (%(default)s)")
    parser.add_argument("--seed", type=at_least(0), default=0, help="of everything that is drawn")
    parser.add_argument("--version", type=int, choices=(1, 2), default=2, help="1: TFRecord, 2: Parquet")
    parser.add_argument("--width", type=at_least(96, 1920), default=480, help="of the pictures (%(default)s)")
    parser.add_argument("--plain", action="store_true", help="flat shapes, as in datasets/waymo/sample")
    end_with(partial(generate, parser.parse_args()))


if __name__ == "__main__":
    main()

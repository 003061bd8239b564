"""Generates folders in the layout of Cityscapes: pictures of rendered cities, outlines, instance maps."""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import cv2
import difficulty
import numpy as np
from city_pictures import Shown, Studio
from city_scenes import CLUTTER, Section, Thing, draw_section, draw_things, section_ends
from generating import OneSentence, at_least, claim_root, end_with, show_progress
from numpy.typing import NDArray

from ekya.core.errors import UserError
from ekya.streams.datasets.cityscapes import PER_INSTANCE, CityscapesPair
from ekya.system.files import link_or_copy, user_errors, write_bytes_atomic

TRAIN = (
    "aachen", "bochum", "bremen", "cologne", "darmstadt", "dusseldorf", "erfurt", "hamburg", "hanover",
    "jena", "krefeld", "monchengladbach", "strasbourg", "stuttgart", "tubingen", "ulm", "weimar", "zurich",
)  # fmt: skip
VAL = ("frankfurt", "lindau", "munster")

LABELLED_SIZE = 2048, 1024
"""Pixels of Cityscapes' pictures, in which outlines and instance maps are, whatever the pictures' size."""

LABEL_IDS = {
    "out of roi": 3, "static": 4, "dynamic": 5, "road": 7, "sidewalk": 8, "building": 11, "pole": 17,
    "traffic sign": 20, "vegetation": 21, "sky": 23, "person": 24, "rider": 25, "car": 26, "truck": 27,
    "bus": 28, "motorcycle": 32, "bicycle": 33,
}  # fmt: skip
_FIRST_WITH_INSTANCES = 24

SNIPPET, LABELLED, FPS = 30, 19, 17
"""Pictures of a snippet, the one that is labelled, and pictures a second."""

_EXAMPLES = """
A city is a camera: sections of some dozens of pictures, each with its own light, weather, paint, clothing,
view and mix of classes. A run that was ended continues where it was.

  python datasets/cityscapes/generate.py --out /data/cityscapes
  python datasets/cityscapes/generate.py --out /data/small --cities 3 --pictures 90 --seed 7
  python datasets/cityscapes/generate.py --out /data/snippets --pictures 500 --sequences 5
  ekya prepare cityscapes --root /data/cityscapes
"""

Outlined = dict[str, object]


@dataclass(frozen=True, slots=True)
class City:
    """A city to draw: its name, the split that it is in, and its number of pictures."""

    name: str
    split: str
    pictures: int

    def pair(self, number: int) -> CityscapesPair:
        """Returns the files of one picture."""
        return CityscapesPair(
            number, LABELLED, self.split, f"{self.name}_{number:06d}_{LABELLED:06d}", self.name
        )


def list_cities(count: int, pictures: int, seed: int) -> list[City]:
    """Returns cities of unequal size, a quarter of them for validation, but at most three.

    Raises:
        UserError: there are fewer pictures than cities.
    """
    if pictures < count:
        raise UserError(f"--pictures {pictures}: each of {count} cities needs one; ask for more of them")
    held_out = min(len(VAL), count // 4)
    names = [(name, "train") for name in TRAIN[: count - held_out]] + [
        (name, "val") for name in VAL[:held_out]
    ]
    weights = np.random.default_rng((seed, 4)).uniform(0.6, 1.5, count)
    ends = np.rint((pictures - count) * np.cumsum(weights) / weights.sum()).astype(int).tolist()
    sizes = [after - before + 1 for before, after in pairwise([0, *ends])]
    return [City(name, split, size) for (name, split), size in zip(names, sizes, strict=True)]


def draw_city(root: Path, city: City, seed: int, size: tuple[int, int], snippets: int) -> Iterator[None]:
    """Draws the files of a city that are missing, and yields after each picture."""
    for folder in (city.pair(0).picture, city.pair(0).labels_path(""), _snippet_path(city, 0, 0)):
        if snippets or "sequence" not in folder:
            with user_errors(root / folder):
                (root / folder).parent.mkdir(parents=True, exist_ok=True)
    in_snippets = set(np.linspace(0, city.pictures - 1, min(snippets, city.pictures)).astype(int).tolist())
    first = 0
    for at, end in enumerate(section_ends(seed, city.name, city.pictures)):
        section = draw_section(seed, city.name, at)
        studio: Studio | None = None
        for number in range(first, min(end, city.pictures)):
            missing = [
                path for path in _paths(city, number, number in in_snippets) if not (root / path).exists()
            ]
            if missing:
                studio = studio or Studio.open(section, size)
                _draw_picture(root, city, number, studio, missing)
            yield
        first = end


def _paths(city: City, number: int, with_snippet: bool) -> list[str]:
    pair = city.pair(number)
    labels = [pair.labels_path(ending) for ending in ("polygons.json", "instanceIds.png")]
    frames = range(SNIPPET) if with_snippet else ()
    return [pair.picture, *labels, *(_snippet_path(city, number, frame) for frame in frames)]


def _snippet_path(city: City, number: int, frame: int) -> str:
    folder = f"leftImg8bit_sequence/{city.split}/{city.name}"
    return f"{folder}/{city.name}_{number:06d}_{frame:06d}_leftImg8bit.png"


def _draw_picture(root: Path, city: City, number: int, studio: Studio, missing: Sequence[str]) -> None:
    pair, key = city.pair(number), (*studio.section.seed, 1, number)
    rng = np.random.default_rng(key)
    things = draw_things(rng, studio.section)
    street, slide = int(rng.integers(1 << 16)), float(rng.uniform(0.1, 0.9))
    picture, shown = studio.paint(things, np.random.default_rng((*key, LABELLED)), street, slide)
    objects = outline_objects(rng, studio.section, shown)
    for path in missing:
        if path == pair.picture:
            content = _png(picture)
        elif path.endswith(".json"):
            content = _outlines_file(objects)
        elif path.endswith("instanceIds.png"):
            content = _png(instance_map(objects))
        elif path == _snippet_path(city, number, LABELLED):
            link_or_copy(root / path, root / pair.picture)
            continue
        else:
            content = _png(_moved(studio, things, key, int(path.split("_")[-2]), street, slide))
        write_bytes_atomic(root / path, content)


def _moved(
    studio: Studio, things: Sequence[Thing], key: tuple[int, ...], frame: int, street: int, slide: float
) -> NDArray[np.uint8]:
    """Returns a picture of the snippet around a labelled picture."""
    t_s = (frame - LABELLED) / FPS
    moved = [thing.at(t_s) for thing in things]
    return studio.paint(moved, np.random.default_rng((*key, frame)), street, slide + 0.03 * t_s)[0]


def outline_objects(rng: np.random.Generator, section: Section, shown: Sequence[Shown]) -> list[Outlined]:
    """Returns all objects of a file of outlines, the farthest first, with what else such files hold.

    Args:
        rng: of objects that were deleted, or have labels without an id.
        section: whose street is behind them.
        shown: what is seen, the farthest first.
    """
    sky, road = section.horizon * 0.6, section.horizon + 0.08
    stuff = [("sky", 0.0, sky), ("building", sky, road), ("road", road, 1.0)]
    objects = [_outlined(label, np.array([[0, y0], [1, y0], [1, y1], [0, y1]])) for label, y0, y1 in stuff]
    for part in shown:
        x0, y0, x1, y1 = part.box
        few = part.visible < difficulty.MIN_VISIBLE and part.kind not in CLUTTER
        if few and part.visible < difficulty.LEAST_VISIBLE:
            continue
        objects.append(_outlined(f"{part.name}group" if few else part.name, part.outline))
        if part.kind == "car" and rng.random() < 0.2:
            x, y, wide = (x0 + x1) / 2, y0 + 0.75 * (y1 - y0), 0.1 * (x1 - x0)
            plate = np.array([[x - wide, y], [x + wide, y], [x + wide, y + wide], [x - wide, y + wide]])
            objects.append(_outlined("license plate", plate))
    if rng.random() < 0.08:
        left, top = rng.uniform(0, 0.7, 2)
        corners = np.array([[left, top], [left + 0.2, top], [left + 0.25, top + 0.2], [left, top + 0.25]])
        objects.append(_outlined("car", corners) | {"deleted": 1})
    return objects


def _outlined(label: str, outline: NDArray[np.float64]) -> Outlined:
    return {"label": label, "polygon": np.rint(outline * LABELLED_SIZE).astype(int).tolist()}


def _outlines_file(objects: Sequence[Outlined]) -> bytes:
    width, height = LABELLED_SIZE
    return json.dumps({"imgHeight": height, "imgWidth": width, "objects": list(objects)}).encode()


def instance_map(objects: Sequence[Outlined]) -> NDArray[np.uint16]:
    """Returns the map that Cityscapes' own tools make of outlines, (1024, 2048) uint16."""
    values = np.zeros(LABELLED_SIZE[::-1], np.uint16)
    counts: dict[int, int] = {}
    for one in objects:
        label = str(one["label"])
        value = LABEL_IDS.get(label.removesuffix("group"))
        if value is None or one.get("deleted"):
            continue
        if value >= _FIRST_WITH_INSTANCES and not label.endswith("group"):
            counts[value] = counts.get(value, -1) + 1
            value = value * PER_INSTANCE + counts[value]
        cv2.fillPoly(values, [np.array(one["polygon"], np.int32)], value)
    return values


def _png(image: NDArray[np.uint8] | NDArray[np.uint16]) -> bytes:
    return bytes(cv2.imencode(".png", image, [cv2.IMWRITE_PNG_COMPRESSION, 1])[1])


def generate(asked: argparse.Namespace) -> str:
    """Draws what is missing, and returns the last line for the user."""
    cities = list_cities(asked.cities, asked.pictures, asked.seed)
    options = {name: value for name, value in vars(asked).items() if name != "out"}
    claim_root(asked.out, options)
    size = asked.width, asked.width // 2
    with show_progress("Drawing pictures", asked.pictures) as advance:
        for city in cities:
            for _ in draw_city(asked.out, city, asked.seed, size, asked.sequences):
                advance()
    return (
        f"{asked.out}: {asked.pictures} pictures of {len(cities)} cities; "
        f"next: ekya prepare cityscapes --root {asked.out}"
    )


def main() -> None:
    """Reads the options and generates."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = OneSentence(description=__doc__, epilog=_EXAMPLES, formatter_class=raw)
    parser.add_argument("--out", type=Path, required=True, help="folder to fill or to continue")
    parser.add_argument("--cities", type=at_least(1, len(TRAIN)), default=12, help="how many (%(default)s)")
    parser.add_argument("--pictures", type=at_least(1), default=2000, help="in all cities (%(default)s)")
    parser.add_argument("--seed", type=at_least(0), default=0, help="of everything that is drawn")
    parser.add_argument("--width", type=at_least(128, 2048), default=512, help="in pixels (%(default)s)")
    snippets = "also draw the 30 pictures around this many labelled ones of each city (without a number: 2)"
    parser.add_argument("--sequences", type=at_least(0), nargs="?", const=2, default=0, help=snippets)
    end_with(partial(generate, parser.parse_args()))


if __name__ == "__main__":
    main()

"""Cityscapes: pictures from a car, with the outlines of everything in them (paper §6.1).

A city is a stream. Its labelled pictures are far apart in time, so objects are not tracked from picture to
picture: each object of each picture has a separate track. Where the snippet around a labelled picture is
there, its objects are followed through it.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, BeforeValidator, Field, FiniteFloat, ValidationError

from ekya.core.errors import UserError
from ekya.core.unique_tuple import UniqueTuple
from ekya.streams.datasets.dataset import Dataset, Survey
from ekya.streams.datasets.labelled import (
    Frames,
    LabelledFrame,
    LabelledObject,
    LabelledSource,
    show_files,
)
from ekya.streams.datasets.labelled_index import LabelledSpec, examine_labelled
from ekya.streams.datasets.snippets import LABELLED, SNIPPET, follow_snippets
from ekya.streams.ingest.pictures import UnreadableError, read_bytes, read_values
from ekya.system.files import FolderPath, user_errors

PAPER_CLASSES = ("person", "car", "truck", "bus", "bicycle", "motorcycle")
"""The paper's six classes, in the order of its public implementation."""

_INSTANCES: Mapping[int, str] = {
    24: "person",
    25: "rider",
    26: "car",
    27: "truck",
    28: "bus",
    29: "caravan",
    30: "trailer",
    31: "train",
    32: "motorcycle",
    33: "bicycle",
}
"""Labels of single objects, by label id. Groups such as ``cargroup``, of several objects, are left out."""

KNOWN = tuple(_INSTANCES.values())

PRETRAINING = frozenset({"bochum", "cologne", "darmstadt", "erfurt", "jena", "krefeld", "monchengladbach"})
"""A third of the 21 cities with public labels, with a fifth of their pictures: base and golden models learn
from these, and streams are the others. None is in ``val``."""

SECONDS_PER_FRAME = 1.8
"""A labelled picture stands for its whole snippet: 30 pictures, taken at 17 a second."""

MIN_SIDE = 50.0
"""As in the paper's public implementation: smaller objects are no useful examples. Pixels."""

PICTURES, LABELS, SEQUENCES = "leftImg8bit", "gtFine", "leftImg8bit_sequence"
_PICTURE = re.compile(rf"(.+)_(\d+)_(\d+)_{PICTURES}\.png")
_OUTLINES = re.compile(rf"(.+)_(\d+)_(\d+)_{LABELS}_polygons\.json")
_ENDINGS = ("polygons.json", "instanceIds.png")
PER_INSTANCE = 1000
"""Values of an instance map: the label id times this, and the number of the instance."""

Split = Literal["train", "val", "test"]


class CityscapesSpec(LabelledSpec):
    """A city of Cityscapes as a camera in a fleet file.

    Attributes:
        root: folder with ``leftImg8bit`` and ``gtFine``.
        city: name of the city's folder.
        splits: splits to search for the city; the labels of ``test`` are not public.
        seconds_per_frame: stream time from one labelled picture to the next.
        frames_per_picture: mean number of frames for each labelled picture. If it is above 1, the snippets of
            ``leftImg8bit_sequence`` are read where they are there, with 30 frames each.
        min_side: objects with a shorter side, in pixels of the full picture, are left out.
    """

    dataset: ClassVar[str] = "cityscapes"

    kind: Literal["cityscapes"] = "cityscapes"
    root: FolderPath
    city: str = Field(pattern=r"^[A-Za-z0-9_.-]+$")
    splits: UniqueTuple[Split] = ("train", "val")
    seconds_per_frame: float = Field(default=SECONDS_PER_FRAME, gt=0)
    frames_per_picture: float = Field(default=1.0, ge=1, le=SNIPPET)
    min_side: float = Field(default=MIN_SIDE, ge=1)

    def in_words(self) -> str:
        return "Cityscapes"

    def list_frames(self) -> tuple[tuple[str, ...], Frames]:
        """Returns Cityscapes' classes, and the city's pictures with labels that are read on demand."""
        pairs = city_pairs(self.root, self.city, self.splits)
        if not pairs:
            raise UserError(
                f"{self.root / PICTURES}: no city {self.city!r} in {', '.join(self.splits)}, named by "
                "the key 'city'; correct the name, or the key 'splits'."
            )
        snippets = find_snippets(self.root, pairs) if self.frames_per_picture > 1 else ()
        return KNOWN, partial(describe_pairs, self.root, pairs, snippets)

    def make_source(self, frames: Frames, class_of: Mapping[str, int]) -> LabelledSource:
        """Returns the source of the city's frames; an index has the objects that were followed."""
        shown = partial(show_files, self.root, 1.0 / self.seconds_per_frame, frames)
        if self.frames_per_picture > 1 and self.index is None:
            shown = partial(follow_snippets, shown, self.max_side)
        fps = self.frames_per_picture / self.seconds_per_frame
        return LabelledSource(shown, fps, class_of, self.max_side, self.min_side)


@dataclass(frozen=True, slots=True, order=True)
class CityscapesPair:
    """A picture and its labels, either of which may be missing.

    Attributes:
        sequence, frame: numbers in the file name; they give the order in time.
        split: folder that both files are in.
        stem: common beginning of both file names.
        city: name of the city's folder.
    """

    sequence: int
    frame: int
    split: str
    stem: str
    city: str

    @property
    def picture(self) -> str:
        """Path of the picture, relative to the root."""
        return f"{PICTURES}/{self.split}/{self.city}/{self.stem}_{PICTURES}.png"

    def labels_path(self, ending: str) -> str:
        """Returns the path of the labels in one of their forms, relative to the root."""
        return f"{LABELS}/{self.split}/{self.city}/{self.stem}_{LABELS}_{ending}"

    @property
    def snippet_paths(self) -> list[str]:
        """Paths of the pictures of its snippet in order, relative to the root."""
        start, width = self.stem.rpartition("_")[0], len(self.stem.rpartition("_")[2])
        folder, first = f"{SEQUENCES}/{self.split}/{self.city}", self.frame - LABELLED
        frames = range(first, first + SNIPPET)
        return [f"{folder}/{start}_{frame:0{width}d}_{PICTURES}.png" for frame in frames]


def city_pairs(root: Path, city: str, splits: tuple[str, ...]) -> tuple[CityscapesPair, ...]:
    """Returns all pictures and outlines of a city, in chronological order.

    Raises:
        UserError: a folder cannot be read.
    """
    found: set[CityscapesPair] = set()
    for split in splits:
        for top, pattern in ((PICTURES, _PICTURE), (LABELS, _OUTLINES)):
            folder = root / top / split / city
            if not folder.is_dir():
                continue
            with user_errors(folder):
                names = [entry.name for entry in folder.iterdir()]
            for name in names:
                if match := pattern.fullmatch(name):
                    sequence, frame = int(match[2]), int(match[3])
                    found.add(
                        CityscapesPair(sequence, frame, split, f"{match[1]}_{match[2]}_{match[3]}", city)
                    )
    return tuple(sorted(found))


def _is_complete(root: Path, pair: CityscapesPair) -> bool:
    """Returns whether a picture and its labels are there; neither is read."""
    labels = (pair.labels_path(ending) for ending in _ENDINGS)
    return (root / pair.picture).exists() and any((root / path).exists() for path in labels)


def find_snippets(root: Path, pairs: tuple[CityscapesPair, ...]) -> frozenset[CityscapesPair]:
    """Returns the labelled pictures of whose snippet another picture is there.

    Raises:
        UserError: a folder cannot be read.
    """
    there: set[str] = set()
    for folder in {f"{SEQUENCES}/{pair.split}/{pair.city}" for pair in pairs}:
        if (root / folder).is_dir():
            with user_errors(root / folder):
                there |= {f"{folder}/{entry.name}" for entry in (root / folder).iterdir()}
    return frozenset(
        pair for pair in pairs if there and there & set(pair.snippet_paths) - {pair.snippet_paths[LABELLED]}
    )


def describe_pairs(
    root: Path, pairs: tuple[CityscapesPair, ...], snippets: Collection[CityscapesPair] = ()
) -> Iterator[LabelledFrame]:
    """Yields the labels of each picture, read on demand; of those in ``snippets`` amid their snippet."""
    for pair in pairs:
        try:
            labelled = _labelled(root, pair)
        except UnreadableError as error:
            yield LabelledFrame(pair.picture, problem=str(error))
            continue
        if pair not in snippets:
            yield labelled
            continue
        for number, place in enumerate(pair.snippet_paths):
            frame = labelled if number == LABELLED else LabelledFrame(place)
            yield replace(frame, lasts=1 / SNIPPET)


def _labelled(root: Path, pair: CityscapesPair) -> LabelledFrame:
    """Returns a picture's labels, from the outlines or, if those are missing, from the instance map.

    Raises:
        UnreadableError: both are missing, or the file cannot be read; the message names the file.
    """
    outlines, instances = (root / pair.labels_path(ending) for ending in _ENDINGS)
    if outlines.exists():
        read, file = _from_outlines, outlines
    elif instances.exists():
        read, file = _from_instances, instances
    else:
        raise UnreadableError(f"{outlines}: is missing, and so is {instances.name} beside it")
    try:
        objects, size = read(file)
    except UnreadableError as error:
        raise UnreadableError(f"{file}: {error}") from error
    return LabelledFrame(pair.picture, objects, size)


class _Outline(BaseModel):
    label: str
    polygon: list[tuple[FiniteFloat, FiniteFloat]] = Field(min_length=3)


def _of_known_classes(objects: Any) -> Any:
    """Leaves out objects of other classes, and deleted ones; what is no object is left to be refused."""
    if not isinstance(objects, list):
        return objects
    return [
        one
        for one in objects
        if not isinstance(one, dict) or (one.get("label") in KNOWN and not one.get("deleted"))
    ]


class _Outlines(BaseModel):
    """Content of a ``polygons.json``."""

    width: int = Field(alias="imgWidth", gt=0, lt=1 << 16)
    height: int = Field(alias="imgHeight", gt=0, lt=1 << 16)
    objects: Annotated[list[_Outline], BeforeValidator(_of_known_classes)]


def _from_outlines(file: Path) -> tuple[tuple[LabelledObject, ...], tuple[int, int]]:
    """Reads objects and picture size from a ``polygons.json``, whose outlines include occluded parts."""
    try:
        found = _Outlines.model_validate_json(read_bytes(file))
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"])) or "the beginning"
        raise UnreadableError(f"is no file of outlines as Cityscapes has them; see {place}") from error
    objects = []
    for one in found.objects:
        across, down = zip(*one.polygon, strict=True)
        objects.append(LabelledObject(one.label, min(across), min(down), max(across), max(down)))
    return tuple(objects), (found.width, found.height)


def _from_instances(file: Path) -> tuple[tuple[LabelledObject, ...], tuple[int, int]]:
    """Reads objects and picture size from an ``instanceIds.png``, which marks only the visible parts."""
    values = read_values(file)
    down, across = np.nonzero(values >= min(_INSTANCES) * PER_INSTANCE)
    numbers, which = np.unique(values[down, across], return_inverse=True)
    objects = []
    for place, number in enumerate(numbers.tolist()):
        name = _INSTANCES.get(number // PER_INSTANCE)
        if name is None:
            continue
        mine_x, mine_y = across[which == place], down[which == place]
        box = (mine_x.min(), mine_y.min(), mine_x.max() + 1, mine_y.max() + 1)
        objects.append(LabelledObject(name, *(float(value) for value in box)))
    return tuple(objects), (values.shape[1], values.shape[0])


_SPLITS = ("train", "val")


def _survey(root: Path) -> Survey:
    """Lists the cities of both splits, and counts their pictures that have labels."""
    missing: list[str] = []
    cities: set[str] = set()
    for top, what in ((PICTURES, "pictures"), (LABELS, "labels")):
        if not (root / top).is_dir():
            missing.append(f"{root / top}: there are no {what} of the data set")
            continue
        for split in _SPLITS:
            folder = root / top / split
            if not folder.is_dir():
                missing.append(f"{folder}: there are no {what} of this split")
                continue
            with user_errors(folder):
                cities |= {entry.name for entry in folder.iterdir() if entry.is_dir()}
    frames: dict[str, int] = {}
    for city in sorted(cities):
        pairs, complete = _complete_pairs(root, city)
        if complete:
            frames[city] = len(complete) + (SNIPPET - 1) * len(find_snippets(root, complete))
        elif pairs:
            missing.append(f"{root}: of {city} there are only pictures, or only labels")
    return Survey(frames, tuple(missing))


def _complete_pairs(root: Path, city: str) -> tuple[tuple[CityscapesPair, ...], tuple[CityscapesPair, ...]]:
    """Returns all pictures and outlines of a city, and those of both."""
    pairs = city_pairs(root, city, _SPLITS)
    return pairs, tuple(pair for pair in pairs if _is_complete(root, pair))


def _spec(root: Path, stream: str) -> CityscapesSpec:
    _, pairs = _complete_pairs(root, stream)
    keys = {}
    if snippets := len(find_snippets(root, pairs)):
        keys["frames_per_picture"] = round(1 + (SNIPPET - 1) * snippets / len(pairs), 2)
    return CityscapesSpec(root=root, city=stream, seconds_per_frame=SECONDS_PER_FRAME, **keys)


CITYSCAPES = Dataset(
    name=CityscapesSpec.dataset,
    title="Cityscapes, fine annotations",
    licence=(
        "the Cityscapes licence: free for research, teaching and other non-commercial use by everyone who "
        "registers; pictures may not be passed on"
    ),
    had_from=(
        "the Cityscapes site, cityscapes-dataset.com, after registering: "
        "leftImg8bit_trainvaltest.zip (11 GB) and gtFine_trainvaltest.zip (241 MB), both unpacked "
        "into one folder"
    ),
    layout=(
        f"{PICTURES}/{{train,val}}/CITY/*_{PICTURES}.png and "
        f"{LABELS}/{{train,val}}/CITY/*_{LABELS}_polygons.json"
    ),
    classes_in=lambda root: PAPER_CLASSES,
    survey=_survey,
    examine=partial(examine_labelled, _spec, lambda root: KNOWN),
    spec=_spec,
    pretraining=PRETRAINING,
)
"""The finely labelled cities, except those of ``test``, whose labels are not public."""

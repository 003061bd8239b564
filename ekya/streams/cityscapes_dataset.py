"""Cityscapes as a data set of ``ekya prepare``."""

from collections.abc import Callable
from pathlib import Path

from ekya.files import user_errors
from ekya.streams.cityscapes import (
    DATASET,
    KNOWN,
    LABELS,
    MIN_SIDE,
    PAPER_CLASSES,
    PICTURES,
    SECONDS_PER_FRAME,
    CityscapesSpec,
    city_pairs,
    described,
)
from ekya.streams.dataset import StreamFindings, Survey
from ekya.streams.labelled import LabelledObject, PictureFiles
from ekya.streams.labelled_index import IndexHead, examine_frames

_SPLITS = ("train", "val")


class CityscapesDataset:
    """``Dataset`` of the finely labelled cities, except those of ``test``, whose labels are not public."""

    name = DATASET
    title = "Cityscapes, fine annotations"
    licence = (
        "the Cityscapes licence: free for research, teaching and other non-commercial use by everyone who "
        "registers; pictures may not be passed on"
    )
    had_from = (
        "the Cityscapes site, cityscapes-dataset.com, after registering: "
        "leftImg8bit_trainvaltest.zip (11 GB) and gtFine_trainvaltest.zip (241 MB), both unpacked "
        "into one folder"
    )
    layout = (
        f"{PICTURES}/{{train,val}}/CITY/*_{PICTURES}.png and "
        f"{LABELS}/{{train,val}}/CITY/*_{LABELS}_polygons.json"
    )
    classes: tuple[str, ...] = PAPER_CLASSES
    index_suffix = ".jsonl"

    def classes_in(self, root: Path) -> tuple[str, ...]:
        """Returns the paper's six classes."""
        return self.classes

    def survey(self, root: Path) -> Survey:
        """Lists the cities of both splits."""
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
        pairs = {city: len(city_pairs(root, city, _SPLITS)) for city in sorted(cities)}
        return Survey({city: count for city, count in pairs.items() if count}, tuple(missing))

    def examine(
        self, root: Path, stream: str, classes: tuple[str, ...], index: Path, looked_at: Callable[[], None]
    ) -> StreamFindings:
        """Decodes every picture of a city and reads all its labels."""

        def counted(one: LabelledObject) -> bool:
            return one.name in classes and min(one.x1 - one.x0, one.y1 - one.y0) >= MIN_SIDE

        frames = described(root, city_pairs(root, stream, _SPLITS))
        pictures = PictureFiles(root, 1.0 / SECONDS_PER_FRAME)
        return examine_frames(IndexHead(DATASET, stream, KNOWN), frames, pictures, counted, index, looked_at)

    def source(self, root: Path, stream: str, index: Path) -> CityscapesSpec:
        """Returns the specification of a city with its index."""
        return CityscapesSpec(root=root, city=stream, index=index, seconds_per_frame=SECONDS_PER_FRAME)

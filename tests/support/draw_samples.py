"""Draws the small samples in ``datasets/*/sample``: the synthetic city in the layout of each data set.

All pictures are synthetic, and the same call gives the same files. Tests draw longer samples with the same
functions::

    python tests/support/draw_samples.py --out datasets
"""

import csv
import json
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated

import cv2
import numpy as np
import typer
from numpy.typing import NDArray

from ekya.config.shipped import shipped_path
from ekya.streams.datasets.labelled import LabelledObject
from ekya.streams.synthetic import CitySpec, StreetScene
from ekya.streams.synthetic.scene import KINDS

Picture = tuple[NDArray[np.uint8], tuple[LabelledObject, ...]]

CITYSCAPES_SIZE = 2048, 1024
"""Size of Cityscapes' pictures; outlines use its pixels at any size of the sample's pictures."""

_IDS = {"person": 24, "car": 26, "truck": 27, "bus": 28, "motorcycle": 32, "bicycle": 33}
_SMALL = 128, 64


def pictures(
    seed: int, size: tuple[int, int], fps: float = 1.0, cut_s: float | None = None
) -> Iterator[Picture]:
    """Yields pictures of one street without end.

    Args:
        seed: seed of all random draws.
        size: width and height in pixels.
        fps: pictures a second.
        cut_s: time of the scene change, in seconds; None for no change.
    """
    scenes = [StreetScene(lighting="day", livery="north", density=5)]
    if cut_s is not None:
        scenes.append(StreetScene(at_s=cut_s, lighting="dusk", livery="south", clothing="winter", density=5))
    spec = CitySpec(seed=seed, fps=fps, width=size[0], height=size[1], scenes=tuple(scenes))
    for frame, truth in spec.open(KINDS).frames():
        if truth is None:
            raise AssertionError("the synthetic city knows what it shows")
        rows = zip(truth.classes.tolist(), truth.boxes.tolist(), strict=True)
        yield frame.image, tuple(LabelledObject(KINDS[number], *box) for number, box in rows)


def draw_cityscapes(
    root: Path,
    cities: dict[str, int],
    size: tuple[int, int] = _SMALL,
    split: str = "train",
    instances: bool = False,
    cut_s: float | None = None,
) -> None:
    """Draws cities in the layout of Cityscapes.

    Args:
        root: folder to create.
        cities: number of pictures of each city, by name.
        size: of the pictures; outlines are in pixels of 2048x1024.
        split: split of all cities, a folder name.
        instances: write ``instanceIds.png`` in place of outlines.
        cut_s: as in ``pictures``, at one picture a second.
    """
    for seed, (city, count) in enumerate(cities.items()):
        left, fine = (root / top / split / city for top in ("leftImg8bit", "gtFine"))
        for folder in (left, fine):
            folder.mkdir(parents=True)
        for number, (image, objects) in enumerate(islice(pictures(seed, size, cut_s=cut_s), count)):
            stem = f"{city}_{number:06d}_000019"
            # Fewer colours make smaller files.
            _save(left / f"{stem}_leftImg8bit.png", image // 32 * 32 + 16)
            if instances:
                _save(fine / f"{stem}_gtFine_instanceIds.png", _instances(_full(objects, size)))
            else:
                (fine / f"{stem}_gtFine_polygons.json").write_text(
                    json.dumps(_outlines(_full(objects, size))) + "\n"
                )


def draw_sample_list(
    root: Path, name: str, count: int, size: tuple[int, int] = _SMALL, video: bool = False
) -> None:
    """Draws a sample list beside pictures, or beside a video of as many frames at 10 a second."""
    root.mkdir(parents=True, exist_ok=True)
    rows = []
    if not video:
        (root / name).mkdir()
    else:
        writer = cv2.VideoWriter(str(root / f"{name}.mp4"), cv2.VideoWriter.fourcc(*"mp4v"), 10.0, size)
    for number, (image, objects) in enumerate(islice(pictures(7, size, 10.0 if video else 1.0), count)):
        if video:
            writer.write(image)
        else:
            _save(root / name / f"{number:06d}.jpg", image)
        rows += [(number, KINDS.index(one.name), *(round(value, 1) for value in one[1:])) for one in objects]
    if video:
        writer.release()
    with (root / f"{name}.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([("idx", "class", "x0", "y0", "x1", "y1"), *rows])


def draw_video(path: Path, count: int, fps: float = 10.0, size: tuple[int, int] = (64, 48)) -> Path:
    """Writes plain pictures to a video, each brighter by 8 than the one before; returns its path."""
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), fps, size)
    if not writer.isOpened():
        raise OSError(f"{path}: cannot be written")
    for number in range(count):
        writer.write(np.full((*size[::-1], 3), number * 8 % 256, np.uint8))
    writer.release()
    return path


def draw_image_folder(root: Path, each: int, size: tuple[int, int] = (320, 240)) -> None:
    """Draws ``each`` crops into a folder for each class, with file names in order of time."""
    left = dict.fromkeys(KINDS, each)
    for name in KINDS:
        (root / name).mkdir(parents=True)
    for number, (image, objects) in enumerate(pictures(9, size)):
        for place, one in enumerate(objects):
            if left[one.name] == 0:
                continue
            left[one.name] -= 1
            x0, y0, x1, y1 = (round(value) for value in one[1:])
            _save(root / one.name / f"{number:05d}{place}.jpg", image[y0:y1, x0:x1])
        if not any(left.values()):
            return


def _full(objects: tuple[LabelledObject, ...], size: tuple[int, int]) -> list[tuple[str, int, int, int, int]]:
    """Returns names and boxes in pixels of a picture of Cityscapes' size."""
    across, down = (full / drawn for full, drawn in zip(CITYSCAPES_SIZE, size, strict=True))
    return [
        (one.name, round(one.x0 * across), round(one.y0 * down), round(one.x1 * across), round(one.y1 * down))
        for one in objects
    ]


def _outlines(boxes: list[tuple[str, int, int, int, int]]) -> dict[str, object]:
    width, height = CITYSCAPES_SIZE
    road = {"label": "road", "polygon": [[0, 512], [2048, 512], [2048, 1024], [0, 1024]]}
    crowd = {"label": "cargroup", "polygon": [[0, 400], [200, 400], [200, 500], [0, 500]]}
    outlined = [
        {"label": name, "polygon": [[x0, y0], [x1, y0], [x1, y1], [x0, y1]]} for name, x0, y0, x1, y1 in boxes
    ]
    return {"imgHeight": height, "imgWidth": width, "objects": [road, crowd, *outlined]}


def _instances(boxes: list[tuple[str, int, int, int, int]]) -> NDArray[np.uint16]:
    values = np.full(CITYSCAPES_SIZE[::-1], 7, np.uint16)
    for number, (name, x0, y0, x1, y1) in enumerate(boxes):
        values[y0:y1, x0:x1] = _IDS[name] * 1000 + number
    return values


def _save(path: Path, image: NDArray[np.generic]) -> None:
    how = [cv2.IMWRITE_PNG_COMPRESSION, 9] if path.suffix == ".png" else [cv2.IMWRITE_JPEG_QUALITY, 85]
    if not cv2.imwrite(str(path), image, how):
        raise OSError(f"{path}: cannot be written")


def main(
    out: Annotated[
        Path | None, typer.Option(help="Folder of the data sets; the project's if left out.")
    ] = None,
) -> None:
    """Draw all samples anew."""
    root = out or shipped_path("datasets")
    for name in ("cityscapes", "sample_list", "image_folder"):
        shutil.rmtree(root / name / "sample", ignore_errors=True)
    draw_cityscapes(root / "cityscapes" / "sample", {"aachen": 3})
    draw_cityscapes(root / "cityscapes" / "sample", {"lindau": 2}, split="val", instances=True)
    draw_sample_list(root / "sample_list" / "sample", "crossing", 3)
    draw_sample_list(root / "sample_list" / "sample", "bridge", 8, (96, 48), video=True)
    draw_image_folder(root / "image_folder" / "sample", 2)


if __name__ == "__main__":
    typer.run(main)

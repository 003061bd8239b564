"""Folders of pictures, one folder for each class and one object in each picture, as a camera."""

import heapq
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from ekya.core.errors import UserError
from ekya.streams.datasets.dataset import Dataset, Survey
from ekya.streams.datasets.labelled import (
    WHOLE,
    Frames,
    LabelledFrame,
    LabelledObject,
    LabelledSource,
    show_files,
)
from ekya.streams.datasets.labelled_index import LabelledSpec, examine_labelled
from ekya.system.files import FolderPath, require_utf8, user_errors

ENDINGS = (".jpg", ".jpeg", ".png")

FPS = 10.0
"""Default rate, pictures a second."""


class ImageFolderSpec(LabelledSpec):
    """Folders of pictures as a camera in a fleet file.

    Attributes:
        root: folder with a subfolder for each class, named as the class, of ``.jpg``, ``.jpeg`` or ``.png``.
        fps: pictures a second of stream time; each picture is one object, which fills it.
    """

    dataset: ClassVar[str] = "image-folder"

    kind: Literal["image_folder"] = "image_folder"
    root: FolderPath
    fps: float = Field(default=FPS, gt=0, le=480)

    def in_words(self) -> str:
        return str(self.root)

    def list_frames(self) -> tuple[tuple[str, ...], Frames]:
        """Returns the names of the folders, and their pictures."""
        known = class_folders(self.root)
        names = picture_names(self.root, known)
        if not names:
            raise UserError(f"{self.root}: no {', '.join(ENDINGS)} in its folders; correct the key 'root'.")
        return known, partial(describe_pictures, names)

    def make_source(self, frames: Frames, class_of: Mapping[str, int]) -> LabelledSource:
        """Returns the source of the pictures."""
        shown = partial(show_files, self.root, self.fps, frames)
        return LabelledSource(shown, self.fps, class_of, self.max_side)


def class_folders(root: Path) -> tuple[str, ...]:
    """Returns the sorted names of the subfolders, without hidden ones (names that begin with a dot).

    Raises:
        UserError: the folder cannot be read.
    """
    with user_errors(root):
        folders = (entry.name for entry in root.iterdir() if entry.is_dir())
        return tuple(sorted(name for name in folders if not name.startswith(".")))


def picture_names(root: Path, classes: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Returns file name and class of every picture, sorted by file name, 2 before 10, then by class.

    Raises:
        UserError: a folder cannot be read.
    """
    lists: list[list[tuple[str, str]]] = []
    for name in classes:
        folder = root / name
        with user_errors(folder):
            if folder.is_dir():
                files = (one.name for one in folder.iterdir() if one.suffix.lower() in ENDINGS)
                lists.append(sorted(((file, name) for file in files), key=_in_natural_order))
    return tuple(heapq.merge(*lists, key=_in_natural_order))


def _in_natural_order(picture: tuple[str, str]) -> tuple[list[str | int], tuple[str, str]]:
    """Returns a key by which the numbers in file names are compared as numbers; refuses names of no text."""
    file, folder = picture
    require_utf8(f"{folder}/{file}")
    parts = re.split(r"([0-9]+)", file)
    return [int(part) if place % 2 else part for place, part in enumerate(parts)], picture


def describe_pictures(names: tuple[tuple[str, str], ...]) -> Iterator[LabelledFrame]:
    """Yields each picture as a frame with one object."""
    for file, name in names:
        yield LabelledFrame(f"{name}/{file}", (LabelledObject(name, *WHOLE),))


def _classes_in(root: Path) -> tuple[str, ...]:
    """Returns the sorted classes of all cameras."""
    return tuple(sorted({name for folder in _cameras(root).values() for name in class_folders(folder)}))


def _survey(root: Path) -> Survey:
    """Lists the cameras, and the classes without a picture."""
    frames: dict[str, int] = {}
    missing: list[str] = []
    for camera, folder in _cameras(root).items():
        names = picture_names(folder, class_folders(folder))
        if names:
            frames[camera] = len(names)
        empty = sorted(set(class_folders(folder)) - {name for _, name in names})
        missing += [f"{folder / name}: there is no picture in it" for name in empty]
    return Survey(frames, tuple(missing))


def _spec(root: Path, stream: str) -> ImageFolderSpec:
    folder = _cameras(root).get(stream)
    if folder is None:
        endings = ", ".join(ENDINGS)
        raise UserError(f"{root}: has no camera {stream!r} with folders of {endings}; correct the name")
    return ImageFolderSpec(root=folder, fps=FPS)


def _cameras(root: Path) -> dict[str, Path]:
    """Returns the cameras' folders, which hold a folder for each class, by stream name."""
    folders = class_folders(root)
    if picture_names(root, folders):
        return {"camera": root}
    return {name: root / name for name in folders}


IMAGE_FOLDER = Dataset(
    name=ImageFolderSpec.dataset,
    title="Pictures in a folder for each class",
    licence="that of your pictures",
    had_from="any folder; crops of objects, named so that their names sort in the order of time",
    layout="CLASS/*.jpg, or CAMERA/CLASS/*.jpg where there are several cameras (also .jpeg and .png)",
    classes_in=_classes_in,
    survey=_survey,
    examine=partial(examine_labelled, _spec, _classes_in),
    spec=_spec,
)
"""A root that is one camera with a folder for each class, or has a folder for each camera."""

"""Folders of pictures, one folder for each class and one object in each picture, as a camera."""

import heapq
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from ekya.errors import UserError
from ekya.files import FolderPath, user_errors
from ekya.streams.classes import classes_known
from ekya.streams.frame import StreamSource
from ekya.streams.labelled import (
    WHOLE,
    LabelledFrame,
    LabelledObject,
    LabelledSource,
    PictureFiles,
)
from ekya.streams.labelled_index import read_frames, read_head

DATASET = "image-folder"

ENDINGS = (".jpg", ".jpeg", ".png")

FPS = 10.0
"""Default rate, pictures a second."""


class ImageFolderSpec(BaseModel):
    """Folders of pictures as a camera in a fleet file.

    Attributes:
        root: folder with a subfolder for each class, named as the class, of ``.jpg``, ``.jpeg`` or ``.png``.
        index: index file that ``ekya prepare`` wrote; without it the folders are listed at opening.
        fps: pictures a second of stream time; each picture is one object, which fills it.
        max_side: larger pictures are scaled down, in proportion, until no side is longer; pixels.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    gives_truth: ClassVar[bool] = True
    live: ClassVar[bool] = False

    kind: Literal["image_folder"] = "image_folder"
    root: FolderPath
    index: Path | None = None
    fps: float = Field(default=FPS, gt=0, le=480)
    max_side: int = Field(default=640, ge=32)

    def open(self, classes: tuple[str, ...]) -> StreamSource:
        """Opens the pictures of all folders, sorted by file name across folders.

        Raises:
            UserError: there are no pictures, or one of the classes has no folder.
        """
        index = self.index
        known = class_folders(self.root) if index is None else read_head(index, DATASET).known
        class_of = classes_known(classes, known, f"{self.root} has")
        names = picture_names(self.root, known) if index is None else ()
        if index is None and not names:
            raise UserError(f"{self.root}: no {', '.join(ENDINGS)} in its folders; correct the key 'root'.")
        return LabelledSource(
            (lambda: described(names)) if index is None else (lambda: read_frames(index)),
            PictureFiles(self.root, self.fps),
            class_of,
            self.max_side,
        )


def class_folders(root: Path) -> tuple[str, ...]:
    """Returns the sorted names of the subfolders, without hidden ones (names that begin with a dot).

    Raises:
        UserError: the folder cannot be read.
    """
    with user_errors(root):
        folders = (entry.name for entry in root.iterdir() if entry.is_dir())
        return tuple(sorted(name for name in folders if not name.startswith(".")))


def picture_names(root: Path, classes: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Returns file name and class of every picture, sorted by file name, then by class.

    Raises:
        UserError: a folder cannot be read.
    """
    lists: list[list[tuple[str, str]]] = []
    for name in classes:
        folder = root / name
        with user_errors(folder):
            if folder.is_dir():
                files = (one.name for one in folder.iterdir() if one.suffix.lower() in ENDINGS)
                lists.append(sorted((file, name) for file in files))
    return tuple(heapq.merge(*lists))


def described(names: tuple[tuple[str, str], ...]) -> Iterator[LabelledFrame]:
    """Yields each picture as a frame with one object."""
    for file, name in names:
        yield LabelledFrame(f"{name}/{file}", (LabelledObject(name, *WHOLE),))

"""Folders of pictures, one folder for each class and one object in each picture, as a camera."""

import heapq
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from ekya.core.errors import UserError
from ekya.streams.datasets.dataset import StreamFindings, Survey
from ekya.streams.datasets.labelled import WHOLE, LabelledFrame, LabelledObject, LabelledSource, PictureFiles
from ekya.streams.datasets.labelled_index import IndexHead, examine_frames, read_frames, read_head
from ekya.streams.ingest.frame import StreamSource, classes_known
from ekya.system.files import FolderPath, user_errors

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


class ImageFolderDataset:
    """``Dataset`` whose root is one camera with a folder for each class, or has a folder for each camera."""

    name = DATASET
    title = "Pictures in a folder for each class"
    licence = "that of your pictures"
    had_from = "any folder; crops of objects, named so that their names sort in the order of time"
    layout = "CLASS/*.jpg, or CAMERA/CLASS/*.jpg where there are several cameras (also .jpeg and .png)"
    classes: tuple[str, ...] = ()
    index_suffix = ".jsonl"

    def classes_in(self, root: Path) -> tuple[str, ...]:
        """Returns the sorted classes of all cameras."""
        names = {name for folder in _cameras(root).values() for name in class_folders(folder)}
        return tuple(sorted(names))

    def survey(self, root: Path) -> Survey:
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

    def examine(
        self, root: Path, stream: str, classes: tuple[str, ...], index: Path, looked_at: Callable[[], None]
    ) -> StreamFindings:
        """Decodes every picture of a camera."""
        folder = _folder(root, stream)
        names = picture_names(folder, class_folders(folder))
        return examine_frames(
            IndexHead(DATASET, stream, self.classes_in(root), FPS),
            described(names),
            PictureFiles(folder, FPS),
            lambda one: one.name in classes,
            index,
            looked_at,
        )

    def source(self, root: Path, stream: str, index: Path) -> ImageFolderSpec:
        """Returns the specification of a camera with its index."""
        return ImageFolderSpec(root=_folder(root, stream), index=index, fps=FPS)


def _cameras(root: Path) -> dict[str, Path]:
    """Returns the cameras' folders, which hold a folder for each class, by stream name."""
    folders = class_folders(root)
    if picture_names(root, folders):
        return {"camera": root}
    return {name: root / name for name in folders}


def _folder(root: Path, stream: str) -> Path:
    folder = _cameras(root).get(stream)
    if folder is None:
        endings = ", ".join(ENDINGS)
        raise UserError(f"{root}: has no camera {stream!r} with folders of {endings}; correct the name")
    return folder

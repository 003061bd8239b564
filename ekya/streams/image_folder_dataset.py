"""Image folders as a data set of ``ekya prepare``."""

from collections.abc import Callable
from pathlib import Path

from ekya.errors import UserError
from ekya.streams.dataset import StreamFindings, Survey
from ekya.streams.image_folder import (
    DATASET,
    ENDINGS,
    FPS,
    ImageFolderSpec,
    class_folders,
    described,
    picture_names,
)
from ekya.streams.labelled import PictureFiles
from ekya.streams.labelled_index import IndexHead, examine_frames


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

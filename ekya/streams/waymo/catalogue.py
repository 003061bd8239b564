"""Catalogue of the segments of either version in a folder, with their facts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ekya.errors import UserError
from ekya.files import user_errors
from ekya.streams.waymo.shots import Camera, Lost, SegmentFacts, SegmentFiles, Shot

_BEFORE_NAME, _AFTER_NAME = "segment-", "_with_camera_labels"


@dataclass(frozen=True, slots=True)
class Version:
    """Functions that read segments of one version.

    Attributes:
        describe: returns the facts of a segment.
        cameras: returns the cameras that it has pictures of.
        check: raises a ``UserError`` if it lacks pictures or labels of a camera.
        shots: yields the pictures of a camera in chronological order.
    """

    describe: Callable[[SegmentFiles], SegmentFacts]
    cameras: Callable[[SegmentFiles], tuple[Camera, ...]]
    check: Callable[[SegmentFiles, Camera], None]
    shots: Callable[[SegmentFiles, Camera], Iterator[Shot | Lost]]


def version_of(files: SegmentFiles) -> Version:
    """Returns the functions that read a segment.

    The version's module is imported only here, as it needs more than everything else that reads a fleet file.
    """
    if files.version == 1:
        from ekya.streams.waymo import records

        return Version(records.describe, records.cameras, records.check, records.shots)
    from ekya.streams.waymo import parquet

    return Version(parquet.describe, parquet.cameras, parquet.check, parquet.shots)


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment whose facts have been read."""

    files: SegmentFiles
    facts: SegmentFacts

    @property
    def order(self) -> tuple[int, str]:
        """Sort key: segments play in chronological order; ties are broken by name."""
        return self.facts.first_us, self.files.name


def find_segments(root: Path) -> Mapping[str, SegmentFiles]:
    """Finds the segments of a folder, by name, from file names alone.

    The components of version 2 and the ``.tfrecord`` files of version 1 lie in the root, or in its subfolders
    (``training``, ``validation``). A segment that exists in both versions is read in version 2; of two
    files of version 1, the one whose name says that it has labels is read.

    Raises:
        UserError: the folder cannot be read.
    """
    found: dict[str, SegmentFiles] = {}
    with user_errors(root):
        folders = [root, *sorted(one for one in root.iterdir() if one.is_dir())]
        for folder in folders:
            for file in sorted(folder.glob("*.tfrecord"), key=_labelled_first):
                found.setdefault(name := _name_of(file), SegmentFiles(name, 1, file))
        for folder in folders:
            for file in sorted((folder / "camera_image").glob("*.parquet")):
                boxes, stats = folder / "camera_box" / file.name, folder / "stats" / file.name
                found[file.stem] = SegmentFiles(
                    file.stem,
                    2,
                    file,
                    boxes if boxes.is_file() else None,
                    stats if stats.is_file() else None,
                )
    return found


def look_into(segments: Sequence[SegmentFiles]) -> tuple[Segment, ...]:
    """Reads the facts of segments; returns the segments in chronological order.

    Raises:
        UserError: a segment cannot be read.
    """
    looked = (Segment(files, version_of(files).describe(files)) for files in segments)
    return tuple(sorted(looked, key=lambda one: one.order))


def look_into_all(root: Path) -> tuple[tuple[Segment, ...], tuple[str, ...]]:
    """Returns a folder's readable segments in chronological order, and a sentence for each of the others."""
    segments: list[Segment] = []
    problems: list[str] = []
    for files in find_segments(root).values():
        try:
            segments.extend(look_into([files]))
        except UserError as error:
            problems.append(str(error))
    return tuple(sorted(segments, key=lambda one: one.order)), tuple(problems)


def usable_segments(
    segments: Sequence[Segment], camera: Camera
) -> tuple[tuple[Segment, ...], tuple[str, ...]]:
    """Returns the segments with pictures and labels of the camera, and a sentence for each of the others."""
    usable: list[Segment] = []
    problems: list[str] = []
    for segment in segments:
        try:
            version_of(segment.files).check(segment.files, camera)
        except UserError as error:
            problems.append(str(error))
        else:
            usable.append(segment)
    return tuple(usable), tuple(problems)


def _labelled_first(file: Path) -> tuple[bool, Path]:
    """Returns the sort key of files: those with camera labels first."""
    return not file.stem.endswith(_AFTER_NAME), file


def _name_of(file: Path) -> str:
    """Returns a segment's name from its file's: ``segment-NAME_with_camera_labels.tfrecord``."""
    _, _, behind = file.stem.rpartition(_BEFORE_NAME)
    return behind.removesuffix(_AFTER_NAME)

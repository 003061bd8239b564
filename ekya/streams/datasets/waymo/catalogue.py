"""Catalogue of the segments of either version in a folder, and the index of a stream's segments.

A source with an index need not read location and time from the segments again, and a survey not those of
files that are as they were: what was read of a folder's segments is kept in the user's cache.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from pydantic import TypeAdapter, ValidationError

from ekya.core.errors import UserError
from ekya.streams.datasets.waymo.shots import LostShot, SegmentFacts, SegmentFiles, Shot, WaymoCamera
from ekya.system.files import cache_folder, user_errors, write_bytes_atomic, write_text_atomic

_LOG = logging.getLogger(__name__)

_BEFORE_NAME, _AFTER_NAME = "segment-", "_with_camera_labels"


class SegmentReader(Protocol):
    """Reads one segment of either version."""

    def read_facts(self) -> SegmentFacts:
        """Returns the facts of the segment; raises a ``UserError`` if it cannot be read."""

    def read_cameras(self) -> tuple[WaymoCamera, ...]:
        """Returns the cameras that it has pictures of; raises a ``UserError`` if it cannot be read."""

    def require_camera(self, camera: WaymoCamera) -> None:
        """Raises a ``UserError`` if it lacks pictures or labels of a camera."""

    def read_shots(self, camera: WaymoCamera) -> Iterator[Shot | LostShot]:
        """Yields the pictures of a camera in chronological order."""


def segment_reader(files: SegmentFiles) -> SegmentReader:
    """Returns what reads a segment.

    It is imported only here, as it needs more than everything else that reads a fleet file.
    """
    if files.version == 1:
        from ekya.streams.datasets.waymo.records import RecordsReader

        return RecordsReader(files)
    from ekya.streams.datasets.waymo.parquet import ParquetReader

    return ParquetReader(files)


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment whose facts have been read."""

    files: SegmentFiles
    facts: SegmentFacts

    @property
    def order(self) -> tuple[int, str]:
        """Sort key: segments play in chronological order; ties are broken by name."""
        return self.facts.first_us, self.files.name


class Drift(StrEnum):
    """Order of a stream's segments by what the data say of them, so that its scene drifts."""

    DAY_NIGHT = "day-night"
    """By day, then at dawn and dusk, then at night."""

    NIGHT_DAY = "night-day"
    """The other way around."""

    SUN_RAIN = "sun-rain"
    """Without rain, then in it."""

    def condition_of(self, facts: SegmentFacts) -> str:
        """Returns what the data say of a segment's light or weather; empty if they say nothing."""
        return (facts.weather if self is Drift.SUN_RAIN else facts.time_of_day).lower()

    def order_segments(self, segments: Sequence[Segment]) -> tuple[Segment, ...]:
        """Returns the segments in this order, alike ones in that of time, those without metadata last."""
        known = _CONDITIONS[self]

        def place(segment: Segment) -> tuple[int, tuple[int, str]]:
            condition = self.condition_of(segment.facts)
            return known.index(condition) if condition in known else len(known), segment.order

        return tuple(sorted(segments, key=place))


_BY_DAY = ("day", "dawn/dusk", "night")
_CONDITIONS: Mapping[Drift, tuple[str, ...]] = {
    Drift.DAY_NIGHT: _BY_DAY,
    Drift.NIGHT_DAY: _BY_DAY[::-1],
    Drift.SUN_RAIN: ("sunny", "rain"),
}


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


def describe_segments(segments: Sequence[SegmentFiles]) -> tuple[Segment, ...]:
    """Reads the facts of segments; returns the segments in chronological order.

    Raises:
        UserError: a segment cannot be read.
    """
    described = (Segment(files, segment_reader(files).read_facts()) for files in segments)
    return tuple(sorted(described, key=lambda one: one.order))


def describe_all(root: Path) -> tuple[tuple[Segment, ...], tuple[str, ...]]:
    """Returns a folder's readable segments in chronological order, and a sentence for each of the others.

    Only segments that are new or changed since the last call are read.
    """
    file = cache_folder() / "waymo-segments.json"
    kept, read_now = _read_kept(file), dict[str, _KeptFacts]()
    segments: list[Segment] = []
    problems: list[str] = []
    for files in find_segments(root).values():
        read = files.stats or files.images
        path = str(read.resolve())
        try:
            with user_errors(read):
                state = read.stat()
            size, changed_ns, facts = kept.get(path, (0, 0, None))
            if facts is None or (size, changed_ns) != (state.st_size, state.st_mtime_ns):
                facts = segment_reader(files).read_facts()
                read_now[path] = state.st_size, state.st_mtime_ns, facts
        except UserError as error:
            problems.append(str(error))
        else:
            segments.append(Segment(files, facts))
    if read_now:
        _keep(file, {path: facts for path, facts in (kept | read_now).items() if Path(path).exists()})
    return tuple(sorted(segments, key=lambda one: one.order)), tuple(problems)


_KeptFacts = tuple[int, int, SegmentFacts]
"""Size and time of change of the file that was read, and what was read."""

_KEPT = TypeAdapter(dict[str, _KeptFacts])


def _read_kept(file: Path) -> dict[str, _KeptFacts]:
    """Returns what is kept, by path; nothing if there is no such file, or it is damaged."""
    try:
        return _KEPT.validate_json(file.read_bytes())
    except (OSError, ValidationError):
        return {}


def _keep(file: Path, known: dict[str, _KeptFacts]) -> None:
    try:
        with user_errors(file):
            file.parent.mkdir(parents=True, exist_ok=True)
        write_bytes_atomic(file, _KEPT.dump_json(known))
    except UserError as error:
        _LOG.info("what was read of the segments is not kept: %s", error)


def usable_segments(
    segments: Sequence[Segment], camera: WaymoCamera
) -> tuple[tuple[Segment, ...], tuple[str, ...]]:
    """Returns the segments with pictures and labels of the camera, and a sentence for each of the others."""
    usable: list[Segment] = []
    problems: list[str] = []
    for segment in segments:
        try:
            segment_reader(segment.files).require_camera(camera)
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


_HEAD = {"index": 1, "dataset": "waymo"}
_SEGMENT = TypeAdapter(Segment)
_REMEDY = "make it again with ekya prepare waymo"


def write_index(index: Path, root: Path, segments: Sequence[Segment]) -> None:
    """Writes an index with paths relative to the root.

    Raises:
        UserError: the index cannot be written.
    """
    lines = [json.dumps(_HEAD)]
    for segment in segments:
        moved = replace(segment, files=_with_paths(segment.files, lambda path: path.relative_to(root)))
        lines.append(_SEGMENT.dump_json(moved).decode())
    write_text_atomic(index, "".join(f"{line}\n" for line in lines))


def read_index(index: Path, root: Path) -> tuple[Segment, ...]:
    """Reads the segments of an index.

    Raises:
        UserError: the file is no index, a line is damaged, or a file that it names no longer exists.
    """
    with user_errors(index):
        head, *lines = index.read_text(encoding="utf-8", errors="replace").splitlines() or [""]
    if head != json.dumps(_HEAD):
        raise UserError(f"{index}: this is no index of waymo, as this version writes it; {_REMEDY}.")
    found = []
    for number, line in enumerate(lines, start=2):
        try:
            segment = _SEGMENT.validate_json(line)
        except ValidationError as error:
            raise UserError(f"{index}:{number}: this line is damaged; {_REMEDY}.") from error
        found.append(replace(segment, files=_with_paths(segment.files, root.joinpath)))
    for segment in found:
        for path in (segment.files.images, segment.files.boxes):
            if path is not None and not path.is_file():
                raise UserError(f"{path}: is not there any more, and {index} names it; {_REMEDY}.")
    return tuple(sorted(found, key=lambda one: one.order))


def _with_paths(files: SegmentFiles, moved: Callable[[Path], Path]) -> SegmentFiles:
    return replace(
        files,
        images=moved(files.images),
        boxes=moved(files.boxes) if files.boxes else None,
        stats=moved(files.stats) if files.stats else None,
    )

"""Index that ``ekya prepare waymo`` writes: the segments of a stream, one line of JSON each.

A source with an index need not read location and time from the segments again.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from ekya.errors import UserError
from ekya.files import user_errors, write_text_atomic
from ekya.streams.waymo.catalogue import Segment
from ekya.streams.waymo.shots import SegmentFiles

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

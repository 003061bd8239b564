"""Waymo Open Dataset as a data set of ``ekya prepare``: a stream is a camera at a location."""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from ekya.core.errors import UserError
from ekya.core.units import us_to_seconds
from ekya.streams.datasets.dataset import StreamFindings, Survey
from ekya.streams.datasets.waymo.catalogue import (
    Segment,
    find_segments,
    look_into_all,
    usable_segments,
    version_of,
    write_index,
)
from ekya.streams.datasets.waymo.scan import scan, shots_of
from ekya.streams.datasets.waymo.shots import CLASSES, Camera, Lost, class_of_type
from ekya.streams.datasets.waymo.source import WaymoSpec

_USUAL_FRAMES = 198
"""Estimate for a segment of version 1, whose number of frames is available only after reading it whole."""

_LONGEST_SIDE = 640


@dataclass(frozen=True, slots=True)
class _Stream:
    """A camera at a location, and the segments driven there."""

    location: str
    camera: Camera
    segments: tuple[Segment, ...]


class WaymoDataset:
    """``Dataset`` of both versions of the perception data."""

    name = "waymo"
    title = "Waymo Open Dataset, perception (version 2, or version 1 with camera labels)"
    licence = (
        "the Waymo Dataset License Agreement for Non-Commercial Use, which also binds models trained on the "
        "data; pictures may not be passed on"
    )
    had_from = (
        "the Waymo Open Dataset site, waymo.com/open, after accepting the licence: of version 2.0.1 the "
        "folders camera_image, camera_box and stats of training and validation (387 GB), or any part of "
        "their segments"
    )
    layout = (
        "{training,validation}/{camera_image,camera_box,stats}/SEGMENT.parquet (version 2), or "
        "{training,validation}/segment-SEGMENT_with_camera_labels.tfrecord (version 1)"
    )
    classes: tuple[str, ...] = CLASSES
    index_suffix = ".jsonl"

    def classes_in(self, root: Path) -> tuple[str, ...]:
        """Returns the labelled classes."""
        return self.classes

    def survey(self, root: Path) -> Survey:
        """Lists every camera at every location; reads location and time of each segment."""
        streams, missing = _streams(root)
        frames = {
            name: sum(segment.facts.frames or _USUAL_FRAMES for segment in stream.segments)
            for name, stream in streams.items()
        }
        return Survey(frames, missing)

    def examine(
        self, root: Path, stream: str, classes: tuple[str, ...], index: Path, looked_at: Callable[[], None]
    ) -> StreamFindings:
        """Decodes every picture of a camera at a location and reads all labels.

        Raises:
            UserError: no segment can be used, or ``index`` cannot be written.
        """
        known = class_of_type(classes)
        found = _streams(root)[0].get(stream)
        if found is None:
            raise UserError(f"{root}: has no stream '{stream}' any more; survey it again.")
        usable, unusable = usable_segments(found.segments, found.camera)
        if not usable:
            raise UserError(f"{root}: no segment of {stream} can be used; the first: {unusable[0]}")
        objects: Counter[str] = Counter()
        problems = list(unusable)
        frames = duration_us = 0
        with closing(shots_of(usable, found.camera)) as everything:
            for segment, shots in groupby(everything, key=itemgetter(0)):
                for one in scan((shot for _, shot in shots), _LONGEST_SIDE):
                    if isinstance(one, Lost):
                        problems.append(f"{segment.files.images}: {one.why}")
                    else:
                        frames += 1
                        duration_us += one.step_us
                        kinds = one.labels.types[one.boxes(known)[1]]
                        objects.update(classes[known[kind]] for kind in kinds.tolist())
                    looked_at()
        write_index(index, root, usable)
        return StreamFindings(
            frames, us_to_seconds(duration_us), dict(sorted(objects.items())), tuple(problems)
        )

    def source(self, root: Path, stream: str, index: Path) -> WaymoSpec:
        """Returns the specification of a camera at a location with its index."""
        found = _streams(root)[0][stream]
        return WaymoSpec(root=root, location=found.location, camera=found.camera, index=index)


def _streams(root: Path) -> tuple[Mapping[str, _Stream], tuple[str, ...]]:
    """Returns a folder's streams by name, and a sentence for each missing segment or part of one."""
    if not find_segments(root):
        return {}, (
            f"{root}: has neither camera_image/*.parquet nor *.tfrecord, itself or in a folder in it",
        )
    everything, problems = look_into_all(root)
    missing = [*problems]
    for segment in everything:
        missing.extend(_parts_missing(segment))
    of_place: dict[str, list[Segment]] = {}
    for segment in everything:
        if segment.facts.location:
            of_place.setdefault(segment.facts.location, []).append(segment)
    streams: dict[str, _Stream] = {}
    for location in sorted(of_place):
        segments = tuple(of_place[location])
        for camera in _cameras(segments):
            name = re.sub(r"[^A-Za-z0-9_.-]+", "_", f"{location}-{camera.lower()}")
            streams[name] = _Stream(location, camera, segments)
    return streams, tuple(missing)


def _cameras(segments: tuple[Segment, ...]) -> tuple[Camera, ...]:
    """Returns the cameras with pictures in any segment; unreadable segments are reported by ``examine``."""
    there: set[Camera] = set()
    for segment in segments:
        if len(there) == len(Camera):
            break
        with suppress(UserError):
            there |= set(version_of(segment.files).cameras(segment.files))
    return tuple(camera for camera in Camera if camera in there)


def _parts_missing(segment: Segment) -> list[str]:
    files = segment.files
    if files.version == 1:
        return [] if segment.facts.location else [f"{files.images}: does not say where it was driven"]
    parts = (
        ("camera_box", files.boxes, "what its pictures show"),
        ("stats", files.stats, "where it was driven"),
    )
    folder = files.images.parent.parent
    return [
        f"{folder / component / files.images.name}: is not there, and says {what}"
        for component, path, what in parts
        if path is None
    ]

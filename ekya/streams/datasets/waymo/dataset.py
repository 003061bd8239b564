"""Waymo Open Dataset as a data set of ``ekya prepare``: a stream is a camera at a location."""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ekya.core.errors import UserError
from ekya.streams.datasets.dataset import Dataset, StreamFindings, Survey
from ekya.streams.datasets.labelled import LabelledSource, examine_source
from ekya.streams.datasets.waymo.catalogue import (
    Segment,
    describe_all,
    find_segments,
    segment_reader,
    usable_segments,
    write_index,
)
from ekya.streams.datasets.waymo.scan import FPS, show_segments
from ekya.streams.datasets.waymo.shots import CLASSES, Camera, number_classes
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


def _survey(root: Path) -> Survey:
    """Lists every camera at every location; reads location and time of each segment."""
    streams, missing = _streams(root)
    frames = {
        name: sum(segment.facts.frames or _USUAL_FRAMES for segment in stream.segments)
        for name, stream in streams.items()
    }
    return Survey(frames, missing)


def _examine(
    root: Path, stream: str, classes: tuple[str, ...], index: Path, on_frame: Callable[[], None]
) -> StreamFindings:
    found = _stream(root, stream)
    usable, unusable = usable_segments(found.segments, found.camera)
    if not usable:
        raise UserError(f"{root}: no segment of {stream} can be used; the first: {unusable[0]}")
    shown = partial(show_segments, usable, found.camera, _LONGEST_SIDE)
    source = LabelledSource(shown, FPS, number_classes(classes), _LONGEST_SIDE)
    findings = examine_source(source, classes, on_frame)
    write_index(index, root, usable)
    return replace(findings, problems=(*unusable, *findings.problems))


def _spec(root: Path, stream: str) -> WaymoSpec:
    found = _stream(root, stream)
    return WaymoSpec(root=root, location=found.location, camera=found.camera)


def _stream(root: Path, name: str) -> _Stream:
    found = _streams(root)[0].get(name)
    if found is None:
        raise UserError(f"{root}: has no stream '{name}' any more; survey it again.")
    return found


def _streams(root: Path) -> tuple[Mapping[str, _Stream], tuple[str, ...]]:
    """Returns a folder's streams by name, and a sentence for each missing segment or part of one."""
    if not find_segments(root):
        return {}, (
            f"{root}: has neither camera_image/*.parquet nor *.tfrecord, itself or in a folder in it",
        )
    everything, problems = describe_all(root)
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
            there |= set(segment_reader(segment.files).read_cameras())
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


WAYMO = Dataset(
    name="waymo",
    title="Waymo Open Dataset, perception (version 2, or version 1 with camera labels)",
    licence=(
        "the Waymo Dataset License Agreement for Non-Commercial Use, which also binds models trained on the "
        "data; pictures may not be passed on"
    ),
    had_from=(
        "the Waymo Open Dataset site, waymo.com/open, after accepting the licence: of version 2.0.1 the "
        "folders camera_image, camera_box and stats of training and validation (387 GB), or any part of "
        "their segments"
    ),
    layout=(
        "{training,validation}/{camera_image,camera_box,stats}/SEGMENT.parquet (version 2), or "
        "{training,validation}/segment-SEGMENT_with_camera_labels.tfrecord (version 1)"
    ),
    classes_in=lambda root: CLASSES,
    survey=_survey,
    examine=_examine,
    spec=_spec,
)
"""Both versions of the perception data."""

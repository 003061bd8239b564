"""Reads version 1 of the data set: a ``.tfrecord`` file a segment, with a record for each frame."""

from collections.abc import Iterator

from ekya.errors import UserError
from ekya.files import user_errors
from ekya.streams.waymo.messages import FrameV1, parse_frame
from ekya.streams.waymo.shots import Camera, Lost, SegmentFacts, SegmentFiles, Shot
from ekya.streams.waymo.tfrecord import read_records


def describe(files: SegmentFiles) -> SegmentFacts:
    """Reads the facts of a segment from its first readable record.

    Raises:
        UserError: no record can be read, or it belongs to another segment.
    """
    first = _first(files)
    return SegmentFacts(first.location, first.time_of_day, first.timestamp_us)


def cameras(files: SegmentFiles) -> tuple[Camera, ...]:
    """Returns the cameras with a picture in the first readable record.

    Raises:
        UserError: as ``describe``.
    """
    first = _first(files)
    return tuple(camera for camera in Camera if first.image(camera))


def check(files: SegmentFiles, camera: Camera) -> None:
    """Checks that the first readable record has a picture and labels of the camera.

    Raises:
        UserError: one of them is missing, or no record can be read.
    """
    first = _first(files)
    if not first.image(camera):
        raise UserError(f"{files.images}: has no images of camera {camera}; choose another or leave it out.")
    if first.labels(camera) is None:
        raise UserError(
            f"{files.images}: has no labels of camera {camera}; fetch the segment's file whose name ends "
            "in _with_camera_labels, or leave the segment out."
        )


def shots(files: SegmentFiles, camera: Camera) -> Iterator[Shot | Lost]:
    """Yields the camera's pictures in file order, which is chronological.

    Raises:
        OSError: the file cannot be read.
    """
    for number, frame in _frames(files):
        if isinstance(frame, Lost):
            yield frame
            continue
        jpeg, labels = frame.image(camera), frame.labels(camera)
        if frame.segment != files.name:
            yield Lost(f"record {number}: is of segment '{frame.segment}'")
        elif not jpeg:
            yield Lost(f"record {number}: has no image of camera {camera}")
        elif labels is None:
            yield Lost(f"record {number}: has no labels of camera {camera}")
        else:
            yield Shot(frame.timestamp_us, jpeg, labels)


def _first(files: SegmentFiles) -> FrameV1:
    why = "it is empty"
    with user_errors(files.images):
        for _, frame in _frames(files):
            if isinstance(frame, Lost):
                why = frame.why
            elif frame.segment != files.name:
                raise UserError(
                    f"{files.images}: holds segment '{frame.segment}' and not the one of its name; rename it."
                )
            else:
                return frame
    raise UserError(f"{files.images}: no frame can be read ({why}); fetch the file again or leave it out.")


def _frames(files: SegmentFiles) -> Iterator[tuple[int, FrameV1 | Lost]]:
    with files.images.open("rb") as file:
        for number, record in enumerate(read_records(file)):
            if isinstance(record, Lost):
                yield number, record
            else:
                yield number, parse_frame(record) or Lost(f"record {number}: is no Frame message")

"""Shows the frames of segments for one camera, read ahead, each decoded or with the reason why it is lost."""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import groupby
from operator import itemgetter
from typing import TypeVar

from ekya.core.errors import UserError
from ekya.core.units import US_PER_S
from ekya.streams.datasets.labelled import LabelledFrame, LabelledObject, ShownFrame
from ekya.streams.datasets.waymo.catalogue import Segment, segment_reader
from ekya.streams.datasets.waymo.shots import TYPES, LostShot, Shot, ShotLabels, WaymoCamera
from ekya.streams.ingest.pictures import DecodedPicture, decode_jpeg

_Item = TypeVar("_Item")


class _End:
    """Sentinel behind the last item."""


_END = _End()


def read_ahead(items: Generator[_Item, None, None], count: int) -> Generator[_Item, None, None]:
    """Yields the same items in the same order, up to ``count`` of them made in advance.

    An exception of the generator is raised where its item would have come. Closing this iterator also closes
    the generator, once the item in progress is made.
    """
    with ThreadPoolExecutor(1, "read-ahead") as pool:
        coming: deque[Future[_Item | _End]] = deque(pool.submit(next, items, _END) for _ in range(count))
        try:
            while not isinstance(item := coming.popleft().result(), _End):
                coming.append(pool.submit(next, items, _END))
                yield item
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            items.close()


FPS = 10.0
"""Frames a second of the data set's cameras."""

FRAME_US = round(US_PER_S / FPS)

# A segment is 20 seconds long; a step of over a minute is a damaged time, and would stop a paced stream.
_LONGEST_STEP_US = 60 * US_PER_S
# Two seconds of pictures, 7 MB: covers the time that unpacking the next row group of version 2 takes.
_READ_AHEAD = 20


def show_segments(segments: Sequence[Segment], camera: WaymoCamera, max_side: int) -> Iterator[ShownFrame]:
    """Yields all frames of a camera, segment by segment; a thread reads ahead.

    Within a segment, stream time follows the frames' time stamps; the next segment begins a tenth of a second
    after the last frame, regardless of the real gap (paper §6.1).
    """
    t_us = -FRAME_US
    with closing(read_ahead(_shots_of(segments, camera), _READ_AHEAD)) as everything:
        for segment, shots in groupby(everything, key=itemgetter(0)):
            last_us: int | None = None
            for _, shot in shots:
                found = _decoded(shot, last_us, max_side)
                if isinstance(found, LostShot):
                    problem = f"{segment.files.images}: {found.why}"
                    yield ShownFrame(
                        LabelledFrame(segment.files.name, problem=problem), t_us, None, found.frames
                    )
                    continue
                time_us, labels, picture = found
                t_us += FRAME_US if last_us is None else time_us - last_us
                last_us = time_us
                objects = zip(labels.types.tolist(), labels.boxes.tolist(), strict=True)
                frame = LabelledFrame(
                    segment.files.name,
                    tuple(LabelledObject(TYPES.get(kind, ""), *box) for kind, box in objects),
                    picture.stored,
                    tracks=tuple(f"{segment.files.name}/{name}" for name in labels.objects),
                )
                yield ShownFrame(frame, t_us, picture.image)


def _shots_of(
    segments: Sequence[Segment], camera: WaymoCamera
) -> Generator[tuple[Segment, Shot | LostShot], None, None]:
    """Yields all pictures; a file that disappeared or broke since its facts were read becomes a ``Lost``."""
    for segment in segments:
        try:
            for shot in segment_reader(segment.files).read_shots(camera):
                yield segment, shot
        except (UserError, OSError) as error:
            yield segment, LostShot(f"the rest of the segment: {error}")


def _decoded(
    shot: Shot | LostShot, last_us: int | None, max_side: int
) -> tuple[int, ShotLabels, DecodedPicture] | LostShot:
    """Returns time, labels and pixels of a picture that follows the segment's frame at ``last_us``."""
    if isinstance(shot, LostShot):
        return shot
    if last_us is not None and not 0 < shot.timestamp_us - last_us <= _LONGEST_STEP_US:
        return LostShot(f"frame {shot.timestamp_us}: its time does not follow that of the one before")
    picture = decode_jpeg(shot.jpeg, max_side)
    if picture is None:
        return LostShot(f"frame {shot.timestamp_us}: its image cannot be decoded")
    return shot.timestamp_us, shot.labels, picture

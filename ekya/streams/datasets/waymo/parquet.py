"""Reads version 2 of the data set: a segment is one Parquet file in the folder of each component.

Rows of ``camera_image`` and ``camera_box`` are joined by segment, time and camera. Rows may be in any order,
and a row group holds pictures of all cameras.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ekya.core.errors import UserError
from ekya.streams.datasets.waymo.shots import (
    NO_LABELS,
    LostShot,
    SegmentFacts,
    SegmentFiles,
    Shot,
    ShotLabels,
    WaymoCamera,
    box_edges,
)
from ekya.system.files import user_errors

_SEGMENT, _TIME, _CAMERA = "key.segment_context_name", "key.frame_timestamp_micros", "key.camera_name"
_OBJECT = "key.camera_object_id"
_IMAGE = "[CameraImageComponent].image"
_BOX = "[CameraBoxComponent]"
_CENTRE = (f"{_BOX}.box.center.x", f"{_BOX}.box.center.y")
_SIZE = (f"{_BOX}.box.size.x", f"{_BOX}.box.size.y")
_TYPE = f"{_BOX}.type"
_LOCATION, _TIME_OF_DAY = "[StatsComponent].location", "[StatsComponent].time_of_day"

_KEYS: Mapping[str, pa.DataType] = {_SEGMENT: pa.string(), _TIME: pa.int64(), _CAMERA: pa.int64()}
_IMAGES = {**_KEYS, _IMAGE: pa.binary()}
_BOXES = {
    **_KEYS,
    _OBJECT: pa.string(),
    **dict.fromkeys((*_CENTRE, *_SIZE), pa.float64()),
    _TYPE: pa.int64(),
}
_WEATHER = "[StatsComponent].weather"
_STATS = {
    _SEGMENT: pa.string(),
    _TIME: pa.int64(),
    _LOCATION: pa.string(),
    _TIME_OF_DAY: pa.string(),
    _WEATHER: pa.string(),
}

_BROKEN = (pa.ArrowException, OSError, ValueError, TypeError, MemoryError, OverflowError)
"""Exceptions that reading a damaged file raises."""

# With a buffer, pages are read one by one; without, a whole column of a row group.
_BUFFER_BYTES = 1 << 20
_ROWS_AT_ONCE = 4
# A segment is 20 seconds long. A time more than a minute away from its middle is damaged.
_LONGEST_US = 60_000_000


@dataclass(frozen=True, slots=True)
class ParquetReader:
    """Reads one segment of version 2."""

    files: SegmentFiles

    def read_facts(self) -> SegmentFacts:
        """Reads the facts of a segment from ``stats`` or, if that file is missing, from ``camera_image``.

        Raises:
            UserError: a file cannot be read, or has no rows of the segment.
        """
        path = self.files.stats or self.files.images
        table = _read(path, _STATS if self.files.stats else _KEYS)
        table = table.filter(pc.equal(table[_SEGMENT], self.files.name))
        times = _integers(table[_TIME])
        if not len(times):
            raise UserError(
                f"{path}: has no rows of segment {self.files.name}; rename the file or leave it out."
            )
        first = table.slice(int(times.argmin()), 1).to_pylist()[0]
        location, time_of_day, weather = (first.get(of) or "" for of in (_LOCATION, _TIME_OF_DAY, _WEATHER))
        return SegmentFacts(location, time_of_day, int(times.min()), len(np.unique(times)), weather)

    def read_cameras(self) -> tuple[WaymoCamera, ...]:
        """Returns the cameras that have rows in the segment.

        Raises:
            UserError: the file cannot be read.
        """
        keys = _read(self.files.images, _KEYS)
        there = set(_integers(keys.filter(pc.equal(keys[_SEGMENT], self.files.name))[_CAMERA]).tolist())
        return tuple(camera for camera in WaymoCamera if camera.number in there)

    def require_camera(self, camera: WaymoCamera) -> None:
        """Checks that the segment has pictures of the camera and a file with boxes.

        Raises:
            UserError: one of them is missing, or a file cannot be read.
        """
        file = self.files.images
        if self.files.boxes is None:
            raise UserError(
                f"{file.parent.parent / 'camera_box' / file.name}: there is no such file, and it says what "
                "the pictures show; fetch it, or leave the segment out."
            )
        with _refusing(self.files.images), closing(_open(self.files.images, _IMAGES)) as images:
            rows = _Rows.of(images, self.files.name, camera)
        if not any(len(group) for group in rows.of_camera):
            raise UserError(
                f"{self.files.images}: has no images of camera {camera}; choose another or leave it out."
            )
        _read(self.files.boxes, _BOXES)

    def read_shots(self, camera: WaymoCamera) -> Iterator[Shot | LostShot]:
        """Yields the camera's pictures in chronological order.

        Each row group is read to its end, a few rows at a time, and the camera's pictures are kept until they
        are due: between row groups, memory holds at most one segment's pictures of one camera.

        Raises:
            UserError: a file cannot be read at all.
        """
        if self.files.boxes is None:
            return
        with _refusing(self.files.images), closing(_open(self.files.images, _IMAGES)) as images:
            rows = _Rows.of(images, self.files.name, camera)
            labels = _labels(self.files.boxes, self.files.name, camera, rows)
            if rows.strange:
                yield LostShot(f"{rows.strange} rows: their time is not that of the segment", rows.strange)
            waiting: dict[int, bytes | LostShot] = {
                int(time): LostShot(f"frame {time}: has no image of camera {camera}") for time in rows.without
            }
            times = iter(rows.times.tolist())
            due = next(times, None)
            for group, expected in enumerate(rows.of_camera):
                for time, jpeg in _pictures(images, group, self.files.name, camera, expected).items():
                    # A damaged file may have a second row for a frame that was yielded already.
                    if due is not None and time >= due:
                        waiting.setdefault(time, jpeg)
                # Release the memory of the pages, three times the published files' 90 MB, while frames play.
                pa.default_memory_pool().release_unused()
                while due is not None and due in waiting:
                    found = waiting.pop(due)
                    if isinstance(found, LostShot):
                        yield found
                    else:
                        yield Shot(due, found, labels.get(due, NO_LABELS))
                    due = next(times, None)


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Times of the rows of ``camera_image``, according to its key columns.

    Attributes:
        times: (N,) sorted times of the frames that any camera has.
        of_camera: times of the camera's rows, for each row group.
        without: the ``times`` for which the camera has no row.
        strange: number of the camera's rows whose time is implausible.
    """

    times: NDArray[np.int64]
    of_camera: tuple[NDArray[np.int64], ...]
    without: NDArray[np.int64]
    strange: int

    @classmethod
    def of(cls, images: pq.ParquetFile, segment: str, camera: WaymoCamera) -> "_Rows":
        all_times, own = [], []
        for group in range(images.num_row_groups):
            keys = _cast(images.read_row_group(group, columns=list(_KEYS), use_threads=False), _KEYS)
            keys = keys.filter(pc.equal(keys[_SEGMENT], segment))
            times = _integers(keys[_TIME])
            all_times.append(times)
            own.append(times[_integers(keys[_CAMERA]) == camera.number])
        every = np.unique(np.concatenate([np.zeros(0, np.int64), *all_times]))
        if not len(every):
            return cls(every, tuple(own), every, 0)
        middle = every[len(every) // 2]
        # As floats: the difference of damaged times may not fit into 64 bits.
        times = every[np.abs(every.astype(np.float64) - float(middle)) <= _LONGEST_US]
        possible = tuple(group[np.isin(group, times)] for group in own)
        return cls(
            times=times,
            of_camera=possible,
            without=np.setdiff1d(times, np.concatenate([*possible])),
            strange=sum(map(len, own)) - sum(map(len, possible)),
        )


def _pictures(
    images: pq.ParquetFile, group: int, segment: str, camera: WaymoCamera, expected: NDArray[np.int64]
) -> Mapping[int, bytes | LostShot]:
    """Returns the camera's pictures of a row group by time; ``Lost`` for expected ones that are missing."""
    if not len(expected):
        return {}
    found: dict[int, bytes | LostShot] = {}
    why = f"has no image of camera {camera}"
    try:
        # On one thread, so that one camera does not occupy all cores.
        for batch in images.iter_batches(
            batch_size=_ROWS_AT_ONCE, row_groups=[group], columns=list(_IMAGES), use_threads=False
        ):
            rows = _cast(pa.Table.from_batches([batch]), _IMAGES)
            wanted = pc.and_(pc.equal(rows[_SEGMENT], segment), pc.equal(rows[_CAMERA], camera.number))
            rows = rows.filter(wanted)
            for time, jpeg in zip(rows[_TIME].to_pylist(), rows[_IMAGE], strict=True):
                if jpeg.is_valid and len(jpeg.as_buffer()) and time is not None:
                    found.setdefault(time, jpeg.as_py())
    except _BROKEN as error:
        why = f"row group {group} cannot be read ({_first_line(error)})"
    return {time: found.get(time, LostShot(f"frame {time}: {why}")) for time in expected.tolist()}


def _labels(boxes: Path, segment: str, camera: WaymoCamera, rows: _Rows) -> Mapping[int, ShotLabels]:
    """Reads the labels by time of the picture; pictures without boxes are left out."""
    wanted = pa.table(
        {
            _SEGMENT: pa.array([segment] * len(rows.times), pa.string()),
            _TIME: pa.array(rows.times),
            _CAMERA: pa.array(np.full(len(rows.times), camera.number)),
        }
    )
    joined = wanted.join(_read(boxes, _BOXES), list(_KEYS), join_type="inner", use_threads=False)
    joined = joined.sort_by([(_TIME, "ascending"), (_OBJECT, "ascending")])
    times = _integers(joined[_TIME])
    centres, sizes = (
        np.stack([joined[name].to_numpy().astype(np.float64) for name in pair], axis=1)
        for pair in (_CENTRE, _SIZE)
    )
    xyxy = box_edges(centres, sizes)
    types = _integers(joined[_TYPE])
    objects = joined[_OBJECT].to_pylist()
    starts = np.flatnonzero(np.diff(times, prepend=-1)).tolist()
    return {
        int(times[start]): ShotLabels(
            xyxy[start:end], types[start:end], tuple(str(one) for one in objects[start:end])
        )
        for start, end in zip(starts, [*starts[1:], len(times)], strict=True)
    }


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Converts pyarrow's exceptions for a damaged file into a ``UserError`` that names the file."""
    try:
        with user_errors(path):
            yield
    except _BROKEN as error:
        raise UserError(
            f"{path}: cannot be read as Parquet ({_first_line(error)}); fetch the file again or leave it out."
        ) from error


def _open(path: Path, columns: Mapping[str, pa.DataType]) -> pq.ParquetFile:
    file = pq.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False)
    missing = [name for name in columns if name not in file.schema_arrow.names]
    if missing:
        file.close()
        raise UserError(f"{path}: has no column '{missing[0]}'; fetch the file of data set version 2 again.")
    return file


def _read(path: Path, columns: Mapping[str, pa.DataType]) -> pa.Table:
    """Reads these columns of a small file, cast to these types.

    Raises:
        UserError: the file cannot be read.
    """
    with _refusing(path), closing(_open(path, columns)) as file:
        return _cast(file.read(columns=list(columns), use_threads=False), columns)


def _cast(table: pa.Table, columns: Mapping[str, pa.DataType]) -> pa.Table:
    return table.select(list(columns)).cast(pa.schema(list(columns.items())))


def _integers(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Returns a column as numbers; null becomes -1, which is no valid time, camera or type."""
    return np.asarray(pc.fill_null(column, -1).to_numpy(), dtype=np.int64)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)

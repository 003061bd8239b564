"""Sample lists with pictures or a video (the format of the paper's public implementation).

A list is a camera, and a folder of lists is a data set of ``ekya prepare``.
"""

import logging
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from functools import partial
from itertools import groupby, islice, pairwise
from operator import attrgetter
from pathlib import Path
from statistics import mode
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from ekya.core.errors import UserError
from ekya.core.units import US_PER_S
from ekya.streams.datasets.cityscapes import PAPER_CLASSES
from ekya.streams.datasets.dataset import Dataset, Survey
from ekya.streams.datasets.labelled import Frames, LabelledFrame, LabelledSource, ShownFrame, show_files
from ekya.streams.datasets.labelled_index import LabelledSpec, examine_labelled
from ekya.streams.datasets.sample_csv import Sample, read_columns, read_samples
from ekya.streams.ingest.frame import Frame
from ekya.streams.ingest.process import SourceProcess, probe_source
from ekya.streams.ingest.video import VideoSpec
from ekya.system.files import FOLDER, user_errors

_log = logging.getLogger(__name__)

PICTURE_FPS = 1.0
"""Default rate, pictures a second of stream time."""

PICTURE_ENDINGS = (".jpg", ".jpeg", ".png")

LABELS: Mapping[int, str] = dict(enumerate(PAPER_CLASSES))
"""Class numbers in the public implementation's lists of Cityscapes."""

_FIRST_FRAMES = 50
_ANY_SIDE = 1 << 16
_VIDEO_ENDINGS = (".mp4", ".avi", ".mkv", ".mov", ".webm")


class SampleListSpec(LabelledSpec):
    """A sample list as a camera in a fleet file. Either ``frames`` or ``video`` is set.

    Attributes:
        samples: the list, a CSV file: a line for each object.
        frames: folder that the list's paths are relative to; or, if the list numbers frames, folder of
            pictures whose names end in their number, such as ``000017.jpg``.
        video: file whose frames the list numbers.
        labels: names of the list's classes if those are numbers; objects of other numbers are left out.
        fps: frames a second of stream time; None takes the video's rate, or 1 for pictures.
    """

    dataset: ClassVar[str] = "sample-list"

    kind: Literal["sample_list"] = "sample_list"
    samples: Path
    frames: Annotated[Path | None, FOLDER] = None
    video: Path | None = None
    labels: Mapping[int, str] = Field(default=LABELS, min_length=1)
    fps: float | None = Field(default=None, gt=0, le=480)

    @model_validator(mode="after")
    def _has_frames_or_video(self) -> Self:
        if (self.frames is None) == (self.video is None):
            raise ValueError("name a folder of pictures as frames, or a file as video, and not both")
        return self

    def in_words(self) -> str:
        return str(self.samples)

    def list_frames(self) -> tuple[tuple[str, ...], Frames]:
        """Returns the list's classes, which are ``labels`` if it has numbers, and its frames, sorted.

        Raises:
            UserError: a line is wrong, or no picture's name ends in a number.
        """
        columns = read_columns(self.samples)
        name_of = _picture_namer(self.frames) if columns.numbered and self.frames else None
        samples: list[Sample] = sorted(read_samples(self.samples, columns), key=attrgetter("place"))
        # Lists of frame ids count from 1, unless there is a frame 0.
        first = min((columns.first, *(one.place for one in samples[:1] if isinstance(one.place, int))))
        frames = []
        for place, group in groupby(samples, key=attrgetter("place")):
            objects = tuple(one for sample in group if (one := sample.name_object(self.labels)) is not None)
            if isinstance(place, int):
                frames.append(LabelledFrame(name_of(place) if name_of else place - first, objects))
            else:
                frames.append(LabelledFrame(place, objects))
        numbered = any(isinstance(sample.kind, int) for sample in samples)
        named = sorted({sample.kind for sample in samples if isinstance(sample.kind, str)})
        return (*(self.labels.values() if numbered else ()), *named), partial(iter, frames)

    def make_source(self, frames: Frames, class_of: Mapping[str, int]) -> LabelledSource:
        """Returns the source of the list's frames."""
        return self._make_source(frames, class_of, _read_here)

    def make_checked_source(self, frames: Frames, class_of: Mapping[str, int]) -> LabelledSource:
        """Returns a source that decodes a video in a process of its own, which a damaged file may abort."""
        return self._make_source(frames, class_of, _read_apart)

    def _make_source(
        self, frames: Frames, class_of: Mapping[str, int], read: "Callable[[VideoSpec], _ReadVideo]"
    ) -> LabelledSource:
        if self.video is None:
            fps = self.fps or PICTURE_FPS
            shown = partial(show_files, self.frames or Path(), fps, frames)
            return LabelledSource(shown, fps, class_of, self.max_side)
        # As stored: the list's boxes are in pixels of the stored picture.
        own_rate, pictures = read(VideoSpec(files=(self.video,), max_side=_ANY_SIDE, square_pixels=False))
        step = _frame_step(self.video, frames())
        video = partial(_show_video, self.video, own_rate, self.fps, pictures, frames)
        return LabelledSource(video, (self.fps or own_rate) / step, class_of, self.max_side)


_Pictures = Generator[Frame, None, None]
_ReadVideo = tuple[float, Callable[[], _Pictures]]
"""Frames a second of a video, and what reads it."""


def _show_video(
    file: Path, own_rate: float, fps: float | None, pictures: Callable[[], _Pictures], frames: Frames
) -> Iterator[ShownFrame]:
    """Yields listed frames of a video at their times in it, relative to the first listed one.

    Args:
        file: the video, which is decoded once, up to the last listed frame.
        own_rate: frames a second of the video.
        fps: frames a second at which it is shown; None keeps its own times.
        pictures: returns all frames of the video.
        frames: frames of the list.
    """
    at, begin_us, shown = -1, None, None
    # The last listed frame may come long before the end: the decoder is released then.
    with closing(pictures()) as read:
        for frame in frames():
            wanted = _number(file, frame)
            while at < wanted:
                # Behind the end, skip straight to the wanted number.
                at, shown = next(((at + 1, one) for one in read), (wanted, None))
            at_us = shown.t_us if shown and not fps else round(wanted * US_PER_S / (fps or own_rate))
            begin_us = at_us if begin_us is None else begin_us
            if frame.problem or shown is None:
                problem = f"{file}: frame {wanted} from 0 on is listed, and is damaged or behind the end"
                listed = LabelledFrame(wanted, problem=frame.problem or problem)
                yield ShownFrame(listed, at_us - begin_us, None)
            else:
                yield ShownFrame(frame, at_us - begin_us, shown.image)


def _read_here(video: VideoSpec) -> _ReadVideo:
    source = video.open(())
    return source.fps, lambda: (frame for frame, _ in source.frames())


def _read_apart(video: VideoSpec) -> _ReadVideo:
    """Decodes by another process; the frames end if that dies."""

    def pictures() -> _Pictures:
        with SourceProcess(video, ()) as process:
            following = 0
            for frame, _ in process.frames():
                yield frame
                following += 1
            if process.died:
                _log.warning("%s: its decoder died at frame %d (%s)", video.files[0], following, process.died)

    return probe_source(video, ()), pictures


def _picture_namer(folder: Path) -> Callable[[int], str]:
    """Returns a function from number to picture name, derived from one picture of a folder.

    Raises:
        UserError: no picture's name ends in a number.
    """
    with user_errors(folder):
        # The shortest, since 10 is written alike with and without zeros before it.
        for entry in sorted(folder.iterdir(), key=lambda one: (len(one.stem), one)):
            match = re.fullmatch(r"(.*?)(\d+)", entry.stem)
            if match and entry.suffix.lower() in PICTURE_ENDINGS:
                before, digits, ending = match[1], match[2], entry.suffix
                return lambda number: f"{before}{number:0{len(digits)}d}{ending}"
    raise UserError(
        f"{folder}: has no pictures whose names end in a number, such as 000017.jpg, named by the key "
        "'frames'; correct the path, or name pictures in the list as imgpath"
    )


def _frame_step(file: Path, frames: Iterator[LabelledFrame]) -> int:
    """Returns the most frequent distance between the first listed frames of a video, in frames.

    Raises:
        UserError: the list names its frames by path.
    """
    numbers = [_number(file, frame) for frame in islice(frames, _FIRST_FRAMES)]
    steps = [later - earlier for earlier, later in pairwise(numbers) if later > earlier]
    return mode(steps) if steps else 1


def _number(file: Path, frame: LabelledFrame) -> int:
    if not isinstance(frame.place, int):
        raise UserError(
            f"{file}: the list names its frames by path ({frame.place}), and a video has only numbers; give "
            "their folder as the key 'frames', and no 'video'"
        )
    return frame.place


def _lists(root: Path) -> tuple[Path, ...]:
    """Returns the lists in the root and in ``sample_lists``, where the public implementation writes them."""
    with user_errors(root):
        files = sorted(root.glob("*.csv")) + sorted((root / "sample_lists").glob("**/*.csv"))
    return tuple(files)


def _material(root: Path, file: Path) -> Path | None:
    """Finds the video or folder of pictures of a list."""
    beside = file.with_suffix("")
    videos = [beside.with_name(beside.name + ending) for ending in _VIDEO_ENDINGS]
    columns = read_columns(file)
    if columns.numbered:
        candidates = [*videos, beside / "frame_images", beside]
        return next((one for one in candidates if one.exists()), None)
    first = next(read_samples(file, columns), None)
    folders = [beside, file.parent, root, root / "leftImg8bit"]
    return next((one for one in folders if first is not None and (one / str(first.place)).exists()), None)


def _classes_in(root: Path) -> tuple[str, ...]:
    """Returns the classes that occur: those of ``LABELS`` in its order, then the others, sorted."""
    found = {
        one.name
        for file in _lists(root)
        for sample in read_samples(file, read_columns(file))
        if (one := sample.name_object(LABELS)) is not None
    }
    ordered = [name for name in LABELS.values() if name in found]
    return (*ordered, *sorted(found - set(ordered)))


def _survey(root: Path) -> Survey:
    """Counts the frames of the lists whose pictures or video are there."""
    frames: dict[str, int] = {}
    missing: list[str] = []
    for file in _lists(root):
        if _material(root, file) is None:
            missing.append(f"{file.with_suffix('')}: there are no pictures of this list, nor a video")
        else:
            samples = read_samples(file, read_columns(file))
            frames[file.stem] = len({sample.place for sample in samples})
    return Survey(frames, tuple(missing))


def _spec(root: Path, stream: str) -> SampleListSpec:
    file = next((one for one in _lists(root) if one.stem == stream), None)
    material = None if file is None else _material(root, file)
    if file is None or material is None:
        raise UserError(f"{root}: has no list {stream}.csv with pictures or a video; correct the name")
    if material.is_dir():
        return SampleListSpec(samples=file, frames=material)
    return SampleListSpec(samples=file, video=material)


SAMPLE_LIST = Dataset(
    name=SampleListSpec.dataset,
    title="Sample lists",
    licence="that of your video",
    had_from=(
        "any folder; the paper's public implementation, edge-video-services/ekya, makes such "
        "lists of Cityscapes and of videos"
    ),
    layout=(
        "NAME.csv (idx, class, x0, y0, x1, y1; or imgpath or 'frame id' in place of idx) beside NAME.mp4, or "
        "beside the folder NAME of pictures; paths of pictures may also begin at the root or "
        "its folder leftImg8bit"
    ),
    classes_in=_classes_in,
    survey=_survey,
    examine=partial(examine_labelled, _spec, _classes_in),
    spec=_spec,
)
"""A root in which each list is a camera."""

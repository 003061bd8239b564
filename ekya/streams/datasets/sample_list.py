"""Sample lists with pictures or a video (the format of the paper's public implementation) as a camera."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from statistics import mode
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ekya.core.errors import UserError
from ekya.core.units import US_PER_S
from ekya.streams.datasets.cityscapes import PAPER_CLASSES
from ekya.streams.datasets.labelled import (
    LabelledFrame,
    LabelledSource,
    PictureFiles,
    Shown,
)
from ekya.streams.datasets.labelled_index import read_frames, read_head
from ekya.streams.datasets.sample_csv import Sample, grouped, read_columns, read_samples
from ekya.streams.ingest.frame import StreamSource, classes_known
from ekya.streams.ingest.video import check_video, video_images
from ekya.system.files import FOLDER, user_errors

DATASET = "sample-list"

PICTURE_FPS = 1.0
"""Default rate, pictures a second of stream time."""

PICTURE_ENDINGS = (".jpg", ".jpeg", ".png")

LABELS: Mapping[int, str] = dict(enumerate(PAPER_CLASSES))
"""Class numbers in the public implementation's lists of Cityscapes."""

_FIRST_FRAMES = 50


class SampleListSpec(BaseModel):
    """A sample list as a camera in a fleet file. Either ``frames`` or ``video`` is set.

    Attributes:
        samples: the list, a CSV file: a line for each object, sorted by frame.
        frames: folder that the list's paths are relative to; or, if the list numbers frames, folder of
            pictures whose names end in their number, such as ``000017.jpg``.
        video: file whose frames the list numbers.
        index: index file that ``ekya prepare`` wrote; read instead of the list.
        labels: names of the list's classes if those are numbers; objects of other numbers are left out.
        fps: frames a second of stream time; None takes the video's rate, or 1 for pictures.
        max_side: larger pictures are scaled down, in proportion, until no side is longer; pixels.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    gives_truth: ClassVar[bool] = True
    live: ClassVar[bool] = False

    kind: Literal["sample_list"] = "sample_list"
    samples: Path
    frames: Annotated[Path | None, FOLDER] = None
    video: Path | None = None
    index: Path | None = None
    labels: Mapping[int, str] = Field(default=LABELS, min_length=1)
    fps: float | None = Field(default=None, gt=0, le=480)
    max_side: int = Field(default=640, ge=32)

    @model_validator(mode="after")
    def _one_of_the_two(self) -> Self:
        if (self.frames is None) == (self.video is None):
            raise ValueError("name a folder of pictures as frames, or a file as video, and not both")
        return self

    def open(self, classes: tuple[str, ...]) -> StreamSource:
        """Opens the frames that the list names; other frames have no truth and are not shown.

        Without an index the whole list is read first, so that a wrong line is reported immediately.

        Raises:
            UserError: a line of the list is wrong, the video cannot be read, or the list lacks a class of the
                fleet.
        """
        described: Callable[[], Iterator[LabelledFrame]]
        if self.index is None:
            known, described = known_classes(self), partial(listed_frames, self)
        else:
            known, described = read_head(self.index, DATASET).known, partial(read_frames, self.index)
        class_of = classes_known(classes, known, f"{self.samples} has")
        return LabelledSource(described, self._pictures(described), class_of, self.max_side)

    def _pictures(self, described: Callable[[], Iterator[LabelledFrame]]) -> "PictureFiles | VideoPictures":
        if self.video is not None:
            rate = check_video(self.video)
            return VideoPictures(self.video, self.fps or rate, frame_step(self.video, described()))
        return PictureFiles(self.frames or Path(), self.fps or PICTURE_FPS)


@dataclass(frozen=True, slots=True)
class VideoPictures:
    """Reads listed frames of a video, at their times in the video relative to the first listed one.

    Attributes:
        file: the video.
        rate: frames a second of the video.
        step: usual distance between two listed frames, in frames of the video.
    """

    file: Path
    rate: float
    step: int

    @property
    def fps(self) -> float:
        """Listed frames a second."""
        return self.rate / self.step

    def show(self, frames: Iterator[LabelledFrame]) -> Iterator[Shown]:
        """Yields each frame with its picture; decodes the video once, up to the last listed frame."""
        first, at, image = None, -1, None
        with closing(video_images(self.file)) as images:
            for frame in frames:
                wanted = _number(self.file, frame)
                first = wanted if first is None else first
                while at < wanted:
                    # Behind the end, skip straight to the wanted number.
                    at, image = next(((at + 1, one) for one in images), (wanted, None))
                problem = frame.problem
                if not problem and image is None:
                    problem = f"{self.file}: frame {wanted} is listed, and is damaged or behind the end"
                t_us = round((wanted - first) * US_PER_S / self.rate)
                yield Shown(frame, t_us, None if problem else image, problem)


def known_classes(spec: SampleListSpec) -> tuple[str, ...]:
    """Reads the whole list and returns its classes: ``labels`` if it has numbers, then those that it names.

    Raises:
        UserError: a line is wrong, or the lines are not sorted by frame.
    """
    named: dict[str, None] = {}
    numbered = False
    for _, samples in grouped(read_samples(spec.samples, read_columns(spec.samples)), spec.samples):
        for sample in samples:
            if isinstance(sample.kind, int):
                numbered = True
            else:
                named[sample.kind] = None
    return (*(spec.labels.values() if numbered else ()), *sorted(named))


def listed_frames(spec: SampleListSpec) -> Iterator[LabelledFrame]:
    """Yields the list's frames with their objects, read line by line.

    Raises:
        UserError: as ``known_classes``, or no picture's name ends in a number.
    """
    columns = read_columns(spec.samples)
    name_of = picture_namer(spec.frames) if columns.numbered and spec.frames else None
    for place, samples in grouped(read_samples(spec.samples, columns), spec.samples):
        yield listed_frame(place, samples, spec.labels, columns.first, name_of)


def listed_frame(
    place: str | int,
    samples: list[Sample],
    labels: Mapping[int, str],
    first: int,
    name_of: Callable[[int], str] | None,
) -> LabelledFrame:
    """Builds one frame of a list.

    Args:
        place: path or number of the frame in the list.
        samples: lines of the frame.
        labels: names of numbered classes.
        first: number of a video's first frame.
        name_of: returns the picture's name for a number; None for a video or a list of paths.
    """
    objects = tuple(one for sample in samples if (one := sample.named(labels)) is not None)
    if isinstance(place, int):
        return LabelledFrame(place - first if name_of is None else name_of(place), objects)
    return LabelledFrame(place, objects)


def picture_namer(folder: Path) -> Callable[[int], str]:
    """Returns a function from number to picture name, derived from one picture of a folder.

    Raises:
        UserError: no picture's name ends in a number.
    """
    with user_errors(folder):
        for entry in folder.iterdir():
            match = re.fullmatch(r"(.*?)(\d+)", entry.stem)
            if match and entry.suffix.lower() in PICTURE_ENDINGS:
                before, digits, ending = match[1], match[2], entry.suffix
                return lambda number: f"{before}{number:0{len(digits)}d}{ending}"
    raise UserError(
        f"{folder}: has no pictures whose names end in a number, such as 000017.jpg, named by the key "
        "'frames'; correct the path, or name pictures in the list as imgpath"
    )


def frame_step(file: Path, frames: Iterator[LabelledFrame]) -> int:
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

"""Sample lists beside pictures or a video: the paper's public implementation's own data, as a camera."""

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

from ekya.core.units import US_PER_S
from ekya.errors import UserError
from ekya.files import FOLDER, user_errors
from ekya.streams.cityscapes import PAPER_CLASSES
from ekya.streams.classes import classes_known
from ekya.streams.frame import StreamSource
from ekya.streams.labelled import (
    LabelledFrame,
    LabelledSource,
    PictureFiles,
    Shown,
)
from ekya.streams.labelled_index import read_frames, read_head
from ekya.streams.sample_csv import Sample, grouped, read_columns, read_samples
from ekya.streams.video import check_video, video_images

DATASET = "sample-list"

PICTURE_FPS = 1.0
"""Pictures a second of stream time, where nobody says otherwise."""

PICTURE_ENDINGS = (".jpg", ".jpeg", ".png")

LABELS: Mapping[int, str] = dict(enumerate(PAPER_CLASSES))
"""What numbers mean in the public implementation's lists of Cityscapes."""

_FIRST_FRAMES = 50


class SampleListSpec(BaseModel):
    """A sample list as a camera, as a fleet file describes it. It has ``frames`` or ``video``.

    Attributes:
        samples: the list, a CSV file: a line for each object, sorted by frame.
        frames: folder at which the list's paths begin; or, where the list numbers frames, of pictures whose
            names end in their number, such as ``000017.jpg``.
        video: file whose frames the list numbers.
        index: what ``ekya prepare`` wrote; it is read instead of the list.
        labels: names of the list's classes, where those are numbers; objects of other numbers are left out.
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
        """The frames that the list names; others are not shown, since nobody knows what is in them.

        Without an index all of the list is read first, so that a wrong line shows at once.

        Raises:
            UserError: a line of the list is wrong, the video cannot be read, or a class of the fleet is none
                of the list's.
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
    """Some frames of a video, at the times at which they stand in it; the first of them is at 0.

    Attributes:
        file: the video.
        rate: its frames a second.
        step: so many frames it is from one that is shown to the next.
    """

    file: Path
    rate: float
    step: int

    @property
    def fps(self) -> float:
        """Shown frames a second."""
        return self.rate / self.step

    def show(self, frames: Iterator[LabelledFrame]) -> Iterator[Shown]:
        """Each frame with its picture; the video is decoded once, from its beginning to the last of them."""
        first, at, image = None, -1, None
        with closing(video_images(self.file)) as images:
            for frame in frames:
                wanted = _number(self.file, frame)
                first = wanted if first is None else first
                while at < wanted:
                    # Behind the end there is nothing, however far one looks.
                    at, image = next(((at + 1, one) for one in images), (wanted, None))
                problem = frame.problem
                if not problem and image is None:
                    problem = f"{self.file}: frame {wanted} is listed, and is damaged or behind the end"
                t_us = round((wanted - first) * US_PER_S / self.rate)
                yield Shown(frame, t_us, None if problem else image, problem)


def known_classes(spec: SampleListSpec) -> tuple[str, ...]:
    """The classes of a list, all of which is read: those of ``labels``, and those that it calls by name.

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
    """The list's frames with their objects, read line by line.

    Raises:
        UserError: as ``known_classes``, or there are no pictures with numbers.
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
    """One frame of a list.

    Args:
        place: as the list says.
        samples: its lines.
        labels: names of classes that are numbers.
        first: number of a video's first frame.
        name_of: the picture of a number, where pictures have numbers.
    """
    objects = tuple(one for sample in samples if (one := sample.named(labels)) is not None)
    if isinstance(place, int):
        return LabelledFrame(place - first if name_of is None else name_of(place), objects)
    return LabelledFrame(place, objects)


def picture_namer(folder: Path) -> Callable[[int], str]:
    """How the pictures of a folder are called by their numbers, judged by one of them.

    Raises:
        UserError: none of them ends in a number.
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
    """How far the listed frames of a video lie apart, mostly, judged by the first of them.

    Raises:
        UserError: they have no numbers.
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

"""Cameras of labelled frames in a fleet file, and the index of one that ``ekya prepare`` writes.

An index has one line of JSON a frame; the first line names the data set, the stream and the data set's
classes, the last gives the number of frames. A source with an index reads it line by line, and need not walk
the folders or read the labels again.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ekya.core.errors import UserError
from ekya.streams.datasets.dataset import OnFrame, StreamFindings
from ekya.streams.datasets.labelled import Frames, LabelledFrame, LabelledSource, examine_source
from ekya.streams.ingest.frame import number_known_classes
from ekya.system.files import atomic_path, user_errors

_REMEDY = "make it again with ekya prepare"


class IndexHead(BaseModel):
    """The first line of an index.

    Attributes:
        index: version of the format.
        dataset: name of the data set.
        stream: name of the stream.
        known: the data set's classes, which need not all occur in the stream.
    """

    index: Literal[1] = 1
    dataset: str
    stream: str
    known: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _End:
    """The last line of an index: the number of frames."""

    end: int


_FRAME = TypeAdapter(LabelledFrame)
_LINE: TypeAdapter[LabelledFrame | _End] = TypeAdapter(LabelledFrame | _End)


class LabelledSpec(BaseModel, ABC):
    """Labelled pictures as a camera in a fleet file.

    Attributes:
        index: index file that ``ekya prepare`` wrote, read instead of the folders, lists and labels.
        max_side: larger pictures are scaled down, in proportion, until no side is longer; pixels.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    gives_truth: ClassVar[bool] = True
    live: ClassVar[bool] = False
    dataset: ClassVar[str]
    """Name of the data set of ``ekya prepare``, which stands in its indices."""

    index: Path | None = None
    max_side: int = Field(default=640, ge=32)

    def open(self, classes: tuple[str, ...]) -> LabelledSource:
        """Opens the pictures by their index or, if there is none, by listing the data set.

        Raises:
            UserError: there are no frames, the index cannot be read or is of another data set, or the data
                set does not have one of the classes.
        """
        if self.index is None:
            known, frames = self.list_frames()
        else:
            known, frames = read_head(self.index, self.dataset).known, partial(read_frames, self.index)
        return self.make_source(frames, number_known_classes(classes, known, f"{self.in_words()} has"))

    @abstractmethod
    def in_words(self) -> str:
        """Returns what error messages call the data."""

    @abstractmethod
    def list_frames(self) -> tuple[tuple[str, ...], Frames]:
        """Returns the classes that the data set knows, and the frames, without an index.

        Raises:
            UserError: there are no frames, or what lists them is wrong.
        """

    @abstractmethod
    def make_source(self, frames: Frames, class_of: Mapping[str, int]) -> LabelledSource:
        """Returns the source of these frames; ``class_of`` numbers the fleet's classes."""

    def make_checked_source(self, frames: Frames, class_of: Mapping[str, int]) -> LabelledSource:
        """Returns the source that ``ekya prepare`` reads to the end."""
        return self.make_source(frames, class_of)


def examine_labelled(
    spec_of: Callable[[Path, str], LabelledSpec],
    known_in: Callable[[Path], tuple[str, ...]],
    root: Path,
    stream: str,
    classes: tuple[str, ...],
    index: Path,
    on_frame: OnFrame,
) -> StreamFindings:
    """Examines a stream and writes its index: ``Dataset.examine`` of every data set of labelled pictures.

    Args:
        spec_of: as ``Dataset.spec``.
        known_in: returns the classes that the data set in a root knows.
        root, stream, classes, index, on_frame: as for ``Dataset.examine``.

    Raises:
        UserError: a class is not known, no frame can be used, or the index cannot be written.
    """
    spec, known = spec_of(root, stream), known_in(root)
    numbers = number_known_classes(classes, known, f"{root} has")
    source = spec.make_checked_source(spec.list_frames()[1], numbers)
    head = IndexHead(dataset=spec.dataset, stream=stream, known=known)
    with atomic_path(index) as temporary, temporary.open("wb") as file:

        def record(frame: LabelledFrame) -> None:
            file.write(_FRAME.dump_json(frame, exclude_defaults=True) + b"\n")

        file.write(head.model_dump_json().encode() + b"\n")
        found = examine_source(source, classes, on_frame, record)
        file.write(b'{"end":%d}\n' % (found.frames + len(found.problems)))
    return found


def read_head(index: Path, dataset: str) -> IndexHead:
    """Reads the first line of an index.

    Raises:
        UserError: the file cannot be read, or is no index of this data set.
    """
    with user_errors(index), index.open("rb") as file:
        line = file.readline()
    try:
        head = IndexHead.model_validate_json(line)
        if head.dataset != dataset:
            raise ValueError
    except ValueError as error:
        raise UserError(
            f"{index}: this is no index of {dataset}, as this version writes it; {_REMEDY}"
        ) from error
    return head


def read_frames(index: Path) -> Iterator[LabelledFrame]:
    """Yields the frames of an index, one at a time.

    Raises:
        UserError: a line cannot be read; the message names file and line.
    """
    with user_errors(index), index.open("rb") as file:
        file.readline()
        for number, line in enumerate(file, start=2):
            try:
                # Strict: a damaged value must not be converted to one that fits.
                found = _LINE.validate_json(line, strict=True)
            except ValidationError as error:
                raise UserError(f"{index}:{number}: this line is damaged; {_REMEDY}") from error
            if isinstance(found, _End):
                return
            yield found
    raise UserError(f"{index}: is cut off; {_REMEDY}")

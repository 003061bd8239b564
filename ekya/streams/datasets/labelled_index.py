"""Index of a stream of labelled frames that ``ekya prepare`` writes: one line of JSON a frame.

The first line names the data set, the stream and the data set's classes, the last gives the number of frames.
A source with an index reads it line by line, and need not walk the folders or read the labels again.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from ekya.core.errors import UserError
from ekya.streams.datasets.dataset import StreamFindings
from ekya.streams.datasets.labelled import Frames, LabelledFrame, LabelledSource, examine_source
from ekya.streams.ingest.frame import classes_known
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


class LabelledSpec(Protocol):
    """A source of labelled pictures in a fleet file, which an index can describe."""

    @property
    def index(self) -> Path | None:
        """Index that ``ekya prepare`` wrote; None if there is none."""

    def listed(self) -> tuple[tuple[str, ...], Frames]:
        """Returns the classes that the data set knows, and the frames, without an index."""

    def source(self, frames: Frames, class_of: Mapping[str, int]) -> LabelledSource:
        """Returns the source of these frames; ``class_of`` numbers the fleet's classes."""


Spec = TypeVar("Spec", bound=LabelledSpec)


def open_labelled(spec: LabelledSpec, dataset: str, whose: str, classes: tuple[str, ...]) -> LabelledSource:
    """Opens a source by its index or, if it has none, by listing the data set.

    Args:
        spec: the source.
        dataset: name of the data set.
        whose: beginning of an error message, as in ``classes_known``.
        classes: the fleet's classes.

    Raises:
        UserError: there are no frames, the index cannot be read or is of another data set, or the data set
            does not have one of the classes.
    """
    if spec.index is None:
        known, frames = spec.listed()
    else:
        known, frames = read_head(spec.index, dataset).known, partial(read_frames, spec.index)
    return spec.source(frames, classes_known(classes, known, whose))


def examine_labelled(
    dataset: str,
    known_in: Callable[[Path], tuple[str, ...]],
    spec_of: Callable[[Path, str], Spec],
    source_of: Callable[[Spec, Frames, Mapping[str, int]], LabelledSource],
    root: Path,
    stream: str,
    classes: tuple[str, ...],
    index: Path,
    on_frame: Callable[[], None],
) -> StreamFindings:
    """Examines a stream and writes its index: ``Dataset.examine`` of every data set of labelled pictures.

    Args:
        dataset: name of the data set.
        known_in: returns the classes that the data set in a root knows.
        spec_of: as ``Dataset.spec``.
        source_of: ``LabelledSpec.source``, or what is to be used in its place.
        root, stream, classes, index, on_frame: as for ``Dataset.examine``.

    Raises:
        UserError: a class is not known, no frame can be used, or the index cannot be written.
    """
    spec, known = spec_of(root, stream), known_in(root)
    source = source_of(spec, spec.listed()[1], classes_known(classes, known, f"{root} has"))
    head = IndexHead(dataset=dataset, stream=stream, known=known)
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
                found = _LINE.validate_json(line, strict=True)
            except ValidationError as error:
                raise UserError(f"{index}:{number}: this line is damaged; {_REMEDY}") from error
            if isinstance(found, _End):
                return
            yield found
    raise UserError(f"{index}: is cut off; {_REMEDY}")

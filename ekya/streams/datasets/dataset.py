"""Protocol of the data sets that ``ekya prepare`` checks before a run.

``survey`` is quick and reads only names; ``examine`` reads every frame of one stream and writes the
stream's index, from which its source opens later without walking the tree again. Streams are examined one by
one, so an interrupted check can resume after the last finished stream.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel


@dataclass(frozen=True, slots=True)
class Survey:
    """Contents of a data set's folder, judged by names alone.

    Attributes:
        frames: approximate number of frames by stream name, which is also the stream's id in a fleet file; in
            the order in which streams are to be examined. Empty if there is no stream.
        missing: a sentence for each missing part of the data set; each names the folder or file.
    """

    frames: Mapping[str, int]
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StreamFindings:
    """Contents of one stream, after every frame was read.

    Attributes:
        frames: number of frames that can be shown.
        duration_s: stream seconds from the first frame to the end of the last.
        objects: number of objects by class, for the requested classes only.
        problems: a sentence for each missing or damaged frame, pair or record: its file and what is wrong.
            A run leaves these frames out and counts them as damaged.
    """

    frames: int
    duration_s: float
    objects: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


class Dataset(Protocol):
    """A data set in a local folder.

    Attributes:
        name: name in a command, such as ``cityscapes``.
        title: name that its authors use.
        licence: terms of use, in words.
        had_from: where to obtain it, in words; Ekya never downloads it.
        layout: files and folders that the root must have, in words.
        classes: the fleet's classes unless the user names others; empty if they depend on the data and
            ``classes_in`` has to read them.
        index_suffix: suffix of an index file, such as ``.jsonl``.
    """

    name: str
    title: str
    licence: str
    had_from: str
    layout: str
    classes: tuple[str, ...]
    index_suffix: str

    def classes_in(self, root: Path) -> tuple[str, ...]:
        """Returns the classes for a fleet over this folder; ``classes`` if those are fixed."""

    def survey(self, root: Path) -> Survey:
        """Lists streams and missing parts, judged by names alone.

        Raises:
            UserError: the folder cannot be read.
        """

    def examine(
        self, root: Path, stream: str, classes: tuple[str, ...], index: Path, looked_at: Callable[[], None]
    ) -> StreamFindings:
        """Reads every frame of a stream and writes its index.

        Args:
            root: root of the data set.
            stream: a stream that ``survey`` listed.
            classes: the fleet's classes.
            index: file to write; its folder exists.
            looked_at: progress callback, called after each frame.

        Raises:
            UserError: no frame of the stream can be used, or ``index`` cannot be written.
        """

    def source(self, root: Path, stream: str, index: Path) -> BaseModel:
        """Returns a ``SourceSpec`` for the fleet file; only keys that are set explicitly are written."""

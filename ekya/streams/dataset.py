"""A data set that can be checked before it is used: what ``ekya prepare`` asks of each.

``survey`` is quick and looks at names; ``examine`` looks at every frame of one stream and writes the
stream's index, from which its source opens later without walking the tree again. Streams are examined
one by one, so that a check that was interrupted can go on behind the last that was finished.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel


@dataclass(frozen=True, slots=True)
class Survey:
    """What a folder holds of a data set, by its names.

    Attributes:
        frames: about how many frames each stream has, by the stream's name, which is also its id in a
            fleet file; in the order in which they are to be examined. Empty where nothing is there.
        missing: a sentence for each part of the data set that is not there; each names the folder or file.
    """

    frames: Mapping[str, int]
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StreamFindings:
    """What one stream holds, after every frame was looked at.

    Attributes:
        frames: that can be shown.
        duration_s: stream seconds from the first frame to the end of the last.
        objects: how many, by class; only of the classes that were asked for.
        problems: a sentence for each frame, pair or record that is missing or damaged: its file and what
            is wrong. Their frames are left out of a run, and counted as damaged there.
    """

    frames: int
    duration_s: float
    objects: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


class Dataset(Protocol):
    """A data set that somebody keeps in a folder.

    Attributes:
        name: in a command, such as ``cityscapes``.
        title: as its makers call it.
        licence: under what terms it may be used, in words.
        had_from: where it is had, in words; nothing is ever downloaded.
        layout: in words, which files and folders have to be in the root.
        classes: the fleet's classes unless the user names others; empty where they are the data's own and
            ``classes_in`` has to look.
        index_suffix: of an index file, such as ``.jsonl``.
    """

    name: str
    title: str
    licence: str
    had_from: str
    layout: str
    classes: tuple[str, ...]
    index_suffix: str

    def classes_in(self, root: Path) -> tuple[str, ...]:
        """The classes that a fleet over this folder should tell apart; ``classes`` where that is fixed."""

    def survey(self, root: Path) -> Survey:
        """What is there, and what is not, judged by names alone.

        Raises:
            UserError: the folder cannot be read.
        """

    def examine(
        self, root: Path, stream: str, classes: tuple[str, ...], index: Path, looked_at: Callable[[], None]
    ) -> StreamFindings:
        """Look at every frame of a stream, and write its index.

        Args:
            root: of the data set.
            stream: one that ``survey`` named.
            classes: the fleet's.
            index: file to write; its folder is there.
            looked_at: to be called after each frame, for whoever watches.

        Raises:
            UserError: nothing of the stream can be used, or ``index`` cannot be written.
        """

    def source(self, root: Path, stream: str, index: Path) -> BaseModel:
        """A ``SourceSpec``, for the fleet file; only keys that are set explicitly are written."""

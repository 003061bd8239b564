"""Interface of a data set to ``ekya prepare``, which checks it before a run.

``survey`` is quick and reads only names; ``examine`` reads every frame of one stream and writes the
stream's index, from which its source opens later without walking the tree again. Streams are examined one by
one, so an interrupted check can resume after the last finished stream.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from ekya.core.errors import UserError

OnFrame = Callable[[tuple[NDArray[np.float32], NDArray[np.int64]] | None], None]
"""Called for each frame that was read, with the boxes (N, 4) and classes (N,) of its objects as a run sees
them; None for a frame that cannot be shown."""


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
        conditions: stream seconds in each light or weather, in the order of a drift; empty without one.
    """

    frames: int
    duration_s: float
    objects: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    conditions: Mapping[str, float] = field(default_factory=dict)

    @property
    def drift_in_words(self) -> str:
        """How a stream drifts, such as ``120 s day, then 40 s night``; empty if it was not asked to."""
        parts = [f"{seconds:g} s {name}" for name, seconds in self.conditions.items()]
        return ", then ".join(parts) + (", so it does not drift" if len(parts) == 1 else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A data set in a local folder.

    Attributes:
        name: name in a command, such as ``cityscapes``.
        title: name that its authors use.
        licence: terms of use, in words.
        had_from: where to obtain it, in words; Ekya never downloads it.
        layout: files and folders that the root must have, in words.
        classes_in: returns the classes for a fleet over a root, unless the user names others.
        survey: lists streams and missing parts of a root, judged by names alone; raises ``UserError`` if the
            folder cannot be read.
        examine: reads every frame of a stream and writes its index. Takes the root, a stream that ``survey``
            listed, the fleet's classes, the file to write, and a callback for each frame.
            Raises ``UserError`` if no frame can be used or the index cannot be written.
        spec: returns the ``SourceSpec`` of a stream, given the root and the stream's name; only keys that
            are set explicitly are written to a fleet file.
        drift: name of the order of the frames, if it is not that of time.
        drifts: the same data in other orders, by the names of these.
        pretraining: streams that base models are trained on, and that no run plays unless it names them.
    """

    name: str
    title: str
    licence: str
    had_from: str
    layout: str
    classes_in: Callable[[Path], tuple[str, ...]]
    survey: Callable[[Path], Survey]
    examine: Callable[[Path, str, tuple[str, ...], Path, OnFrame], StreamFindings]
    spec: Callable[[Path, str], BaseModel]
    drift: str = ""
    drifts: Mapping[str, "Dataset"] = field(default_factory=dict)
    pretraining: frozenset[str] = frozenset()

    @property
    def name_with_drift(self) -> str:
        """Name of the data in this order, such as ``waymo-day-night``."""
        return f"{self.name}-{self.drift}" if self.drift else self.name

    def in_drift(self, drift: str) -> "Dataset":
        """Returns the same data in another order.

        Raises:
            UserError: they have no such order.
        """
        if drift not in self.drifts:
            remedy = "says nothing of light and weather; leave it out"
            if self.drifts:
                remedy = f"has {', '.join(self.drifts)}; use one of them"
            raise UserError(f"--drift {drift}: {self.name} {remedy}")
        return self.drifts[drift]

    def make_indexed_spec(self, root: Path, stream: str, index: Path) -> BaseModel:
        """Returns the ``SourceSpec`` of a stream with its index."""
        return self.spec(root, stream).model_copy(update={"index": index})

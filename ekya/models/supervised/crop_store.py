"""Labelled crops on disk: a stream is cut once, batches are read from there, and memory stays bounded."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from ekya.core.units import StreamId
from ekya.models.training.labelled import LabelledCrops, no_crops, split_by_track_and_time
from ekya.streams.ingest.crops import crop_objects
from ekya.system.files import atomic_path, sync_to_disk, user_errors

MOST_BYTES = 4 << 30
"""Of all crops on disk; 1.4 million of 32 pixels, 28 thousand of 224."""

MOST_ALIKE = 5000
"""Crops of one class and stream; more of them show the same objects and the same street again."""

_STOPPING, _LAST_PART = 0.1, 0.2


@dataclass(frozen=True, slots=True, eq=False)
class LabelledPicture:
    """Objects of one picture.

    Attributes:
        image: (H, W, 3) uint8, BGR.
        t_us: stream time.
        boxes: (N, 4) float32, x0 y0 x1 y1 in pixels.
        classes: (N,) int64.
        tracks: (N,) int64, number of the object.
    """

    image: NDArray[np.uint8]
    t_us: int
    boxes: NDArray[np.float32]
    classes: NDArray[np.int64]
    tracks: NDArray[np.int64]


def most_alike(streams: int, classes: int, side: int) -> int:
    """Returns how many crops of a class are kept of each stream; all fit into ``MOST_BYTES``."""
    return max(1, min(MOST_ALIKE, MOST_BYTES // (3 * side * side) // (streams * classes)))


def cut_stream(
    folder: Path, stream: StreamId, side: int, most: int, frames: Iterable[LabelledPicture], seed: int
) -> None:
    """Cuts the crops of one stream into its files, unless they are whole already.

    Of each class that has more, a random part is kept, the same for the same seed.

    Args:
        folder: of the crops; it exists.
        stream: names the files.
        side: of a crop in pixels.
        most: crops of a class that are kept.
        frames: in any order; not begun if the files are there.
        seed: of the part that is kept.

    Raises:
        UserError: full disk, no permission and the like.
    """
    pixels, columns = _files(folder, stream)
    if columns.is_file():
        return
    rng, seen, slots = np.random.default_rng(seed), dict[int, int](), dict[int, list[int]]()
    rows: list[tuple[int, int, int]] = []
    with user_errors(pixels), pixels.open("wb") as file:
        for frame in frames:
            chosen = []
            for box, kind in enumerate(frame.classes.tolist()):
                seen[kind] = seen.get(kind, 0) + 1
                # A reservoir: each crop of the class is kept with the same probability.
                place = seen[kind] - 1 if seen[kind] <= most else int(rng.integers(seen[kind]))
                if place >= most:
                    continue
                own = slots.setdefault(kind, [])
                if place == len(own):
                    own.append(len(rows))
                    rows.append((0, 0, 0))
                rows[own[place]] = (kind, int(frame.tracks[box]), frame.t_us)
                chosen.append((own[place], box))
            crops = crop_objects(frame.image, frame.boxes[[box for _, box in chosen]], side)
            for (slot, _), crop in zip(chosen, crops, strict=True):
                # Written and not mapped: a full disk is then an error, and not the end of the process.
                file.seek(slot * crop.nbytes)
                file.write(crop.tobytes())
    sync_to_disk(pixels)
    table = np.array(rows, np.int64).reshape(-1, 3)
    with atomic_path(columns) as temporary:
        save_file(
            {name: table[:, at].copy() for at, name in enumerate(("classes", "tracks", "t_us"))}, temporary
        )


def _files(folder: Path, stream: StreamId) -> tuple[Path, Path]:
    return folder / f"{stream}.crops", folder / f"{stream}.labels.safetensors"


def open_crops(folder: Path, stream: StreamId, side: int) -> LabelledCrops:
    """Opens what ``cut_stream`` wrote; its crops are read from disk when they are selected."""
    pixels, columns = _files(folder, stream)
    try:
        table = load_file(columns)
    except safetensors.SafetensorError:
        columns.unlink()
        raise
    classes, tracks, t_us = (table[name] for name in ("classes", "tracks", "t_us"))
    if not len(classes):
        return no_crops(side)
    crops = np.memmap(pixels, np.uint8, "r", shape=(len(classes), side, side, 3))
    return LabelledCrops(crops, classes, tracks, t_us)


class CropStore:
    """Crops of several streams, numbered through.

    Attributes:
        classes: (N,) int64 of all crops.
        objects: (N,) int64, number of each crop's object; no two streams share one.
        parts: number of the stream of each crop, (N,) int64, in the order of ``streams``.
        streams: their names.
        side: of a crop in pixels.
    """

    def __init__(self, streams: Mapping[StreamId, LabelledCrops]) -> None:
        self.streams = tuple(streams)
        self._held: Sequence[LabelledCrops] = tuple(streams.values())
        self.side = self._held[0].side
        counts = [len(of) for of in self._held]
        self._begins = np.cumsum([0, *counts])
        self.parts = np.repeat(np.arange(len(counts)), counts).astype(np.int64)
        self.classes = np.concatenate([of.classes for of in self._held])
        pairs = np.stack([self.parts, np.concatenate([of.tracks for of in self._held])], axis=1)
        self.objects = np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
        self._t_us = np.concatenate([of.t_us for of in self._held])

    def __len__(self) -> int:
        return len(self.classes)

    def read_crops(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Returns these crops, (n, S, S, 3) uint8 RGB, in this order."""
        crops = np.empty((len(rows), self.side, self.side, 3), np.uint8)
        for part in np.unique(self.parts[rows]):
            own = np.flatnonzero(self.parts[rows] == part)
            crops[own] = self._held[part].crops[rows[own] - self._begins[part]]
        return crops

    def split(self, held_out: Sequence[StreamId]) -> "Split":
        """Returns which crops train, which stop the training early, and which measure its result.

        No object is in two parts. The second is a tenth of each stream that trains, its youngest objects.

        Args:
            held_out: streams that measure; empty for the last fifth of each stream.
        """
        rows = np.arange(len(self))
        if held_out:
            measures = np.isin(self.parts, [self.streams.index(one) for one in held_out])
        else:
            measures = self._youngest(rows, _LAST_PART)
        stops = self._youngest(rows[~measures], _STOPPING)
        return Split(rows[~measures & ~stops], rows[stops], rows[measures])

    def _youngest(self, rows: NDArray[np.int64], fraction: float) -> NDArray[np.bool_]:
        """Returns (N,) whether a crop is of the youngest objects of each stream among these rows."""
        young: list[NDArray[np.int64]] = [rows[:0]]
        for part in np.unique(self.parts[rows]):
            own = rows[self.parts[rows] == part]
            # The split looks at no picture.
            unseen = np.zeros((len(own), 0, 0, 3), np.uint8)
            labels = LabelledCrops(unseen, self.classes[own], self.objects[own], self._t_us[own])
            young.append(np.unique(split_by_track_and_time(labels, fraction)[1].tracks))
        chosen = np.zeros(len(self), np.bool_)
        chosen[rows] = np.isin(self.objects[rows], np.concatenate(young))
        return chosen


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """Rows of a ``CropStore``, each int64 and rising.

    Attributes:
        training: learnt from.
        stopping: measured on after each epoch, to keep the best weights.
        held_out: measured on once, at the end.
    """

    training: NDArray[np.int64]
    stopping: NDArray[np.int64]
    held_out: NDArray[np.int64]

"""Damaged files of every kind of stream source, read as in a run.

Each case copies a small intact sample, truncates one of its files at a random place or flips up to 64 of its
bits, and reads the stream to its end in a separate process. Allowed outcomes:

    read      no error: the damage hit nothing that matters, or pixels
    counted   frames or records were skipped, counted, and named in the log
    refused   a one-sentence error that names the file
    died      the decoder crashed its process, and only that stream is lost

Forbidden are an error that names no file, an unhandled exception, and no end within a minute.
"""

import importlib
import logging
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path

import cv2
import numpy as np

from ekya.config.shipped import shipped_root
from ekya.core.errors import UserError
from ekya.streams.datasets.cityscapes import CityscapesSpec
from ekya.streams.datasets.sample_list import SampleListSpec
from ekya.streams.datasets.waymo import WaymoSpec
from ekya.streams.ingest.process import SourceProcess, SourceSpec
from ekya.streams.ingest.video import VideoSpec
from ekya.streams.synthetic import CitySpec

LONGEST_S = 60.0
MOST_BITS = 64
CLASSES = ("person", "car", "truck", "bus", "bicycle", "motorcycle")
WAYMO_CLASSES = ("vehicle", "pedestrian", "cyclist", "sign")

# The script that draws Waymo's sample lies beside the data set's card.
sys.path.insert(0, str(shipped_root() / "datasets" / "waymo"))


class Fate(StrEnum):
    """Outcome of reading a stream."""

    READ = "read"
    COUNTED = "counted"
    REFUSED = "refused"
    DIED = "died"
    UNNAMED = "an error that names no file"
    RAISED = "an exception"
    HUNG = "no end"


BAD = (Fate.UNNAMED, Fate.RAISED, Fate.HUNG)


@dataclass(frozen=True, slots=True)
class Sample:
    """Intact source to damage.

    Attributes:
        spec: the source.
        files: files that may be damaged.
        classes: of the fleet that reads it.
    """

    spec: SourceSpec
    files: tuple[Path, ...]
    classes: tuple[str, ...] = CLASSES


@dataclass(frozen=True, slots=True)
class Case:
    """One damaged file and its outcome."""

    kind: str
    number: int
    damage: str
    fate: Fate
    frames: int
    damaged: int
    words: str


def _video(folder: Path) -> Sample:
    """Returns an MP4, whose index is at its end, and an AVI, which is readable up to a truncation."""
    city = CitySpec(seed=5, fps=12, duration_s=2.0)
    frames = [frame.image for frame, _ in city.open(CLASSES).frames()]
    files = (folder / "street.mp4", folder / "street.avi")
    for file, codec in zip(files, ("mp4v", "MJPG"), strict=True):
        size = (city.width, city.height)
        writer = cv2.VideoWriter(str(file), cv2.VideoWriter.fourcc(*codec), city.fps, size)
        for image in frames:
            writer.write(image)
        writer.release()
    return Sample(VideoSpec(files=files), files)


def _waymo(version: str) -> Callable[[Path], Sample]:
    def make(folder: Path) -> Sample:
        """Draws two segments; the pictures of one have four row groups in version 2."""
        drawn = importlib.import_module("waymo_sample")
        segments = drawn.sample_segments(2, 6, (96, 64))
        for segment in segments:
            {"v1": drawn.write_v1, "v2": drawn.write_v2}[version](folder, segment)
        files = tuple(sorted(file for file in folder.rglob("*") if file.is_file()))
        spec = WaymoSpec(root=folder, segments=tuple(segment.name for segment in segments))
        return Sample(spec, files, WAYMO_CLASSES)

    return make


def _cityscapes(city: str, ending: str, folder: Path) -> Sample:
    root = _shipped("cityscapes", folder)
    spec = CityscapesSpec(root=root, city=city, min_side=5)
    return Sample(spec, tuple(sorted(root.glob(f"*/*/{city}/*{ending}"))))


def _sample_list(folder: Path) -> Sample:
    root = _shipped("sample_list", folder)
    file = root / "crossing.csv"
    return Sample(SampleListSpec(samples=file, frames=root / "crossing"), (file,))


def _shipped(dataset: str, folder: Path) -> Path:
    """Copies the small shipped sample of a data set."""
    return shutil.copytree(shipped_root() / "datasets" / dataset / "sample", folder / dataset)


KINDS: Mapping[str, Callable[[Path], Sample]] = {
    "video": _video,
    "png": partial(_cityscapes, "aachen", ".png"),
    "json": partial(_cityscapes, "aachen", ".json"),
    "instances png": partial(_cityscapes, "lindau", "instanceIds.png"),
    "csv": _sample_list,
    "tfrecord": _waymo("v1"),
    "parquet": _waymo("v2"),
}
"""Makers of an intact sample in an empty folder, by kind of file."""


class _Words(logging.Handler):
    """Log handler that keeps the messages."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def damage(file: Path, generator: np.random.Generator) -> str:
    """Truncates a file or flips some of its bits; returns a description."""
    content = np.frombuffer(file.read_bytes(), np.uint8).copy()
    if generator.random() < 0.5:
        left = int(generator.integers(0, len(content)))
        file.write_bytes(content[:left].tobytes())
        return f"{file.name}: cut off at {left} of {len(content)} bytes"
    count = int(generator.integers(1, MOST_BITS + 1))
    at = generator.integers(0, len(content), count)
    np.bitwise_xor.at(content, at, (1 << generator.integers(0, 8, count)).astype(np.uint8))
    file.write_bytes(content.tobytes())
    return f"{file.name}: {count} bits turned over"


def read(spec: SourceSpec, classes: tuple[str, ...], damaged: Path) -> tuple[Fate, int, int, str]:
    """Reads the whole stream; returns the outcome, frames read, damaged frames, and the messages."""
    words = _Words()
    logging.getLogger("ekya").addHandler(words)
    frames = 0
    try:
        with SourceProcess(spec, classes) as process:
            process.wait_open(LONGEST_S)
            process.start_frames(None)
            while not process.ended:
                arrived = process.poll_frames(LONGEST_S)
                if not arrived and not process.ended:
                    return Fate.HUNG, frames, process.damaged, f"nothing for {LONGEST_S:g} s"
                frames += len(arrived)
            said = " ".join(words.said)
            if process.died is not None:
                return _fate_of(process.died, damaged), frames, process.damaged, process.died
            if process.damaged:
                named = damaged.name in said
                return Fate.COUNTED if named else Fate.UNNAMED, frames, process.damaged, said
            return Fate.READ, frames, 0, said
    except UserError as error:
        return _fate_of(str(error), damaged), frames, 0, str(error)
    finally:
        logging.getLogger("ekya").removeHandler(words)


def _fate_of(words: str, damaged: Path) -> Fate:
    if "killed by signal" in words:
        return Fate.DIED
    if damaged.name in words and "Error:" not in words:
        return Fate.REFUSED
    return Fate.RAISED if "Error" in words else Fate.UNNAMED


def read_damaged(kind: str, count: int, seed: int) -> Iterator[Case]:
    """Damages ``count`` files of a kind, and yields what comes of each."""
    with tempfile.TemporaryDirectory() as made:
        sound = Path(made) / "sound"
        sound.mkdir()
        sample = KINDS[kind](sound)
        for number in range(count):
            generator = np.random.default_rng((seed, sorted(KINDS).index(kind), number))
            folder = Path(made) / "case"
            shutil.copytree(sound, folder)
            file = folder / sample.files[int(generator.integers(len(sample.files)))].relative_to(sound)
            how = damage(file, generator)
            fate, frames, damaged, words = read(_moved(sample.spec, sound, folder), sample.classes, file)
            yield Case(kind, number, how, fate, frames, damaged, words)
            shutil.rmtree(folder)


def _moved(spec: SourceSpec, before: Path, after: Path) -> SourceSpec:
    """Returns the same source in a copy of its folder."""
    moved: SourceSpec = type(spec).model_validate_json(
        spec.model_dump_json().replace(str(before), str(after))
    )
    return moved

"""Sample lists as a data set of ``ekya prepare``."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from ekya.core.errors import UserError
from ekya.core.units import US_PER_S
from ekya.streams.datasets.dataset import StreamFindings, Survey
from ekya.streams.datasets.labelled import LabelledFrame, PictureFiles, Pictures, Shown
from ekya.streams.datasets.labelled_index import IndexHead, examine_frames
from ekya.streams.datasets.sample_csv import Sample, read_columns, read_samples
from ekya.streams.datasets.sample_list import (
    DATASET,
    LABELS,
    PICTURE_FPS,
    SampleListSpec,
    frame_step,
    listed_frame,
    picture_namer,
)
from ekya.streams.ingest.process import SourceProcess
from ekya.streams.ingest.video import VideoSpec
from ekya.system.files import user_errors

_VIDEO_ENDINGS = (".mp4", ".avi", ".mkv", ".mov", ".webm")
_SMALL_SIDE = 32


class SampleListDataset:
    """``Dataset`` in which each list in the root is a camera."""

    name = DATASET
    title = "Sample lists"
    licence = "that of your video"
    had_from = (
        "any folder; the paper's public implementation, edge-video-services/ekya, makes such "
        "lists of Cityscapes and of videos"
    )
    layout = (
        "NAME.csv (idx, class, x0, y0, x1, y1; or imgpath or 'frame id' in place of idx) beside NAME.mp4, or "
        "beside the folder NAME of pictures; paths of pictures may also begin at the root or "
        "its folder leftImg8bit"
    )
    classes: tuple[str, ...] = ()
    index_suffix = ".jsonl"

    def classes_in(self, root: Path) -> tuple[str, ...]:
        """Returns the classes that occur: those of ``LABELS`` in its order, then the others, sorted."""
        found = {
            one.name
            for file in _lists(root)
            for sample in read_samples(file, read_columns(file))
            if (one := sample.named(LABELS)) is not None
        }
        ordered = [name for name in LABELS.values() if name in found]
        return (*ordered, *sorted(found - set(ordered)))

    def survey(self, root: Path) -> Survey:
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

    def examine(
        self, root: Path, stream: str, classes: tuple[str, ...], index: Path, looked_at: Callable[[], None]
    ) -> StreamFindings:
        """Decodes every picture that the list names; sorts the index by frame, as the list need not be."""
        spec = _spec(root, stream)
        frames = _sorted_frames(spec)
        pictures: Pictures = PictureFiles(spec.frames or root, PICTURE_FPS)
        if spec.video is not None:
            pictures = _watch(spec.video, frame_step(spec.video, iter(frames)))
        return examine_frames(
            IndexHead(DATASET, stream, self.classes_in(root), pictures.fps),
            iter(frames),
            pictures,
            lambda one: one.name in classes,
            index,
            looked_at,
        )

    def source(self, root: Path, stream: str, index: Path) -> SampleListSpec:
        """Returns the specification of a list with its index."""
        return _spec(root, stream, index)


def _lists(root: Path) -> tuple[Path, ...]:
    """Returns the lists in the root and in ``sample_lists``, where the public implementation writes them."""
    with user_errors(root):
        files = sorted(root.glob("*.csv")) + sorted((root / "sample_lists").glob("**/*.csv"))
    return tuple(files)


def _spec(root: Path, stream: str, index: Path | None = None) -> SampleListSpec:
    file = next((one for one in _lists(root) if one.stem == stream), None)
    material = None if file is None else _material(root, file)
    if file is None or material is None:
        raise UserError(f"{root}: has no list {stream}.csv with pictures or a video; correct the name")
    if material.is_dir():
        return SampleListSpec(samples=file, frames=material, index=index)
    return SampleListSpec(samples=file, video=material, index=index)


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


def _sorted_frames(spec: SampleListSpec) -> list[LabelledFrame]:
    columns = read_columns(spec.samples)
    name_of = picture_namer(spec.frames) if columns.numbered and spec.frames else None
    samples: list[Sample] = sorted(read_samples(spec.samples, columns), key=attrgetter("place"))
    return [
        listed_frame(place, list(group), spec.labels, columns.first, name_of)
        for place, group in groupby(samples, key=attrgetter("place"))
    ]


@dataclass(frozen=True, slots=True)
class _Watched:
    """``Pictures`` of a video that was decoded in advance by a separate process, which may have died."""

    file: Path
    rate: float
    step: int
    decoded: frozenset[int]
    died: str | None

    @property
    def fps(self) -> float:
        """Listed frames a second."""
        return self.rate / self.step

    def show(self, frames: Iterator[LabelledFrame]) -> Iterator[Shown]:
        """Yields each frame without its picture, with a problem if it did not decode."""
        first = None
        for frame in frames:
            number = int(frame.place)
            first = number if first is None else first
            problem = ""
            if number not in self.decoded:
                why = f"the decoder {self.died} before it" if self.died else "damaged, or behind the end"
                problem = f"{self.file}: frame {number} is listed, and is not there ({why})"
            yield Shown(frame, round((number - first) * US_PER_S / self.rate), None, problem)


def _watch(file: Path, step: int) -> _Watched:
    with SourceProcess(VideoSpec(files=(file,), max_side=_SMALL_SIDE), ()) as process:
        rate = process.wait_open()
        decoded = frozenset(round(frame.t_us * rate / US_PER_S) for frame, _ in process.frames())
        return _Watched(file, rate, step, decoded, process.died)

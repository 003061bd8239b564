"""Tries student and golden detector on a few runs of frames from all over videos, before any run of them."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from ekya.config.fleet_file import FleetConfig
from ekya.config.sizing import resolutions_to_measure
from ekya.core.configs import GOLDEN_RESOLUTION, InferenceConfig
from ekya.core.errors import UserError
from ekya.models.edge.detection.read_objects import Found
from ekya.models.edge.multi_model import Predictors
from ekya.models.golden.golden_model import GoldenModel, open_golden
from ekya.models.training.frames import FrameObjects
from ekya.models.training.goals import judged_frames
from ekya.pipeline.base_model import base_model
from ekya.pipeline.collector import CollectedFrame
from ekya.pipeline.discover_classes import fleet_classes
from ekya.pipeline.frame_labelling import measure_burst, objects_of
from ekya.pipeline.inference import Serving, serving
from ekya.pipeline.measure_host import kept_self_test
from ekya.pipeline.setup import crop_side
from ekya.pipeline.who_answers import SeenCamera
from ekya.planning.profiling.inference_profile import BurstFrame
from ekya.planning.sizing.choose_sizes import GOLDEN_EVERY
from ekya.streams.ingest.crops import square_frame
from ekya.streams.ingest.frame import Frame, Truth
from ekya.streams.ingest.pictures import shrink_frame
from ekya.streams.ingest.process import SourceProcess
from ekya.streams.ingest.video import SpreadVideoSpec, VideoSpec

RUNS, LEAST_RUNS = 12, 3
"""Runs of frames of all videos together, and of each at least."""

RUN_FRAMES = max(GOLDEN_EVERY)
"""Frames of a run: as many as pass until the golden detector looks again."""

READ_S, TRY_S = 12.0, 20.0
"""Longest times for reading all videos, and for the models on them; one run of each is taken in any case."""

_TIMED = 4
_ANY_SIDE = 1 << 15


@dataclass(frozen=True, slots=True, eq=False)
class SpreadFrames:
    """Runs of consecutive frames of a video.

    Attributes:
        size: width and height of the video in pixels; the frames are as large as a run sees them.
        runs: at least one.
    """

    size: tuple[int, int]
    runs: tuple[tuple[Frame, ...], ...]

    def frames(self) -> Iterator[tuple[Frame, Truth | None]]:
        """Yields the first frame of each run."""
        for run in self.runs:
            yield run[0], None


@dataclass(frozen=True, slots=True, eq=False)
class TriedRun:
    """Consecutive frames as the models see them.

    Attributes:
        objects: what the golden detector finds in each.
        found: what the student finds in each.
        burst: what λ are measured on; empty where only one frame was tried.
        scale: (4,) float32, from fractions of a frame to pixels.
    """

    objects: tuple[FrameObjects, ...]
    found: tuple[Found, ...]
    burst: tuple[BurstFrame, ...]
    scale: NDArray[np.float32]

    def answer_by_golden(self, every: int, held: int) -> tuple[Found, ...]:
        """Returns the golden detector's answers on every n-th frame, and those that follow them.

        As many as make whole periods; ``held`` is as of ``held_frames``.
        """
        answers = []
        for at in range(len(self.burst) // every * every):
            later = at % every
            boxes, classes = self.burst[at - later].boxes_after(later if later > held else 0)
            answers.append(
                Found((boxes / self.scale).astype(np.float32), classes, np.ones(len(boxes), np.float32))
            )
        return tuple(answers)


def read_spread_frames(fleet: FleetConfig) -> list[SpreadFrames]:
    """Reads frames from all over each video of a fleet of videos.

    Raises:
        UserError: a video cannot be read.
    """
    videos = [stream.source for stream in fleet.streams if isinstance(stream.source, VideoSpec)]
    runs = max(RUNS // len(videos), LEAST_RUNS)
    return [_read_video(video, runs, READ_S / len(videos)) for video in videos]


def _read_video(video: VideoSpec, runs: int, longest_s: float) -> SpreadFrames:
    whole = video.model_copy(update={"max_side": _ANY_SIDE})
    read: list[list[Frame]] = []
    size = (0, 0)
    with SourceProcess(SpreadVideoSpec(video=whole, runs=runs, run_frames=RUN_FRAMES), ()) as source:
        source.wait_open()
        source.start_frames(None)
        ends_s = time.monotonic() + longest_s
        while not source.ended and (not read or time.monotonic() < ends_s):
            for frame in (one.frame for one in source.poll_frames(1.0) if one.frame is not None):
                if not read or len(read[-1]) == RUN_FRAMES or frame.index != read[-1][-1].index + 1:
                    read.append([])
                size = (frame.image.shape[1], frame.image.shape[0])
                image = shrink_frame(frame.image, video.max_side)
                read[-1].append(Frame(frame.index, frame.t_us, image, None))
    if not read:
        raise UserError(f"{video.files[0]}: no frame of it can be decoded ({source.died}); convert the file")
    return SpreadFrames(size, tuple(map(tuple, read)))


def try_models(
    fleet: FleetConfig,
    videos: Sequence[SpreadFrames],
    device: str,
    say: Callable[[str], object] = lambda step: None,
) -> list[tuple[TriedRun, ...]]:
    """Returns what student and golden detector find in each video; a slow one sees fewer frames.

    Args:
        fleet: of these videos, with its classes.
        videos: at least one.
        device: torch's name.
        say: called before each of their runs, with the step in words.

    Raises:
        UserError: a model cannot be opened.
    """
    # As the run will have it, and the measurement beside it.
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    golden = open_golden(fleet.golden, fleet_classes(fleet), fleet.edge.task, device)
    way = kept_self_test(fleet.edge.model, device, resolutions_to_measure(fleet)).way
    student = serving(base_model(fleet, 0), fleet_classes(fleet), Predictors(device, way))
    frame_s = _golden_frame_s(golden, videos[0].runs[0][0])
    length = RUN_FRAMES if frame_s * RUN_FRAMES * LEAST_RUNS * len(videos) <= TRY_S else 1
    ends_s = time.monotonic() + TRY_S
    tried: list[list[TriedRun]] = [[] for _ in videos]
    rounds = list(zip_longest(*(video.runs for video in videos)))
    for done, runs in enumerate(rounds):
        say(f"trying the models on frames of the videos ({done / len(rounds):.0%})")
        for run, of_video in zip(runs, tried, strict=True):
            if run is not None and (not of_video or time.monotonic() < ends_s):
                of_video.append(_try_run(fleet, golden, student, run[:length]))
    return [tuple(of_video) for of_video in tried]


def _golden_frame_s(golden: GoldenModel, frame: Frame) -> float:
    took = []
    for _ in range(_TIMED):
        began_s = time.monotonic()
        golden.find_objects(frame.image)
        took.append(time.monotonic() - began_s)
    # The first is slow, and others may have waited for a core.
    return min(took)


def _try_run(fleet: FleetConfig, golden: GoldenModel, student: Serving, frames: Sequence[Frame]) -> TriedRun:
    configs = [InferenceConfig(1, side) for side in resolutions_to_measure(fleet)]
    configs += [InferenceConfig(every, GOLDEN_RESOLUTION) for every in GOLDEN_EVERY]
    labelled = [
        (_collected(frame), found)
        for frame in frames
        if (found := golden.find_objects(frame.image)) is not None
    ]
    side = crop_side(fleet)
    images = np.concatenate([square_frame(frame.image, side) for frame in frames])
    return TriedRun(
        tuple(objects_of(frame, found) for frame, found in labelled),
        tuple(student.predict(images, side)),
        tuple(measure_burst(student, configs, labelled)) if len(frames) > 1 else (),
        np.tile(np.array(frames[0].image.shape[1::-1], np.float32), 2),
    )


def _collected(frame: Frame) -> CollectedFrame:
    none, size = np.zeros((0, 4), np.float32), (frame.image.shape[1], frame.image.shape[0])
    crops = np.zeros((0, 1, 1, 3), np.uint8)
    return CollectedFrame(
        frame.index, frame.t_us, none, np.zeros(0, np.int64), crops, frame.image, None, size
    )


def summarize_runs(runs: Sequence[TriedRun]) -> SeenCamera:
    """Returns what the planner learns of a camera from tried runs."""
    answers = [(run.found, run.objects) for run in runs]
    return SeenCamera(measure_f1(answers), tuple(run.burst for run in runs if run.burst))


def measure_golden_f1(runs: Sequence[TriedRun], every: int, held: int) -> float | None:
    """Returns the F1 of the golden detector on every n-th frame; None if that was not tried.

    Args:
        runs: of a video.
        every: n.
        held: number of frames after an analysed one in which its boxes stay in place.
    """
    answers = [run.answer_by_golden(every, held) for run in runs]
    return measure_f1([(one, run.objects[: len(one)]) for one, run in zip(answers, runs, strict=True)])


def measure_f1(answers: Sequence[tuple[Sequence[Found], Sequence[FrameObjects]]]) -> float | None:
    """Returns the F1 of answers against the objects of the same frames; None without either."""
    judged = [judged_frames(list(found), tuple(objects)) for found, objects in answers]
    counted = sum(float(one.counted.sum()) for one in judged)
    return sum(float(one.correct.sum()) for one in judged) / counted if counted else None

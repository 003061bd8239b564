"""Says of someone's own videos what would answer cameras like them here, and when adapting pays."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from ekya.config.fleet_file import FleetConfig
from ekya.config.fleet_sections import StreamConfig
from ekya.core.configs import GOLDEN_RESOLUTION, InferenceConfig, every_nth
from ekya.core.host import StreamCosts
from ekya.core.units import FULL_GPU_MILLI
from ekya.gpu.backends.registry import choose_backend
from ekya.pipeline.discover_classes import with_classes
from ekya.pipeline.kept_measurements import inference_speed, kept_speeds, training_speed
from ekya.pipeline.video_trial import (
    SpreadFrames,
    TriedRun,
    measure_golden_f1,
    read_spread_frames,
    summarize_runs,
    try_models,
)
from ekya.pipeline.who_answers import Answering, Crossing, find_crossing
from ekya.planning.profiling.inference_profile import held_frames, needed_milli
from ekya.planning.sizing.choose_sizes import GOLDEN_EVERY
from ekya.planning.sizing.fleet_sizes import MachineSize
from ekya.runtime.driver.machine_report import MeasuredWork, start_measuring
from ekya.runtime.driver.open_run import machine_of
from ekya.streams.ingest.video import VideoSpec


@dataclass(frozen=True, slots=True)
class VideoFacts:
    """A video, and what was measured on it.

    Attributes:
        files: names of its files.
        size: width and height in pixels.
        fps: frames a second.
        frames: number of frames that were tried.
        student_ms, golden_ms, following_ms: milliseconds of a GPU, or of a core, for a frame: of the student
            at its finest resolution, of the golden detector, and of optical flow that follows its boxes.
        student_f1: F1 of the student as it comes, against the golden detector; None without objects.
        golden_f1: F1 of the golden detector on every n-th frame, by n, where it keeps up with this camera;
            None where it was not tried.
    """

    files: tuple[str, ...]
    size: tuple[int, int]
    fps: float
    frames: int
    student_ms: float
    golden_ms: float
    following_ms: float
    student_f1: float | None
    golden_f1: Mapping[int, float | None]


@dataclass(frozen=True, slots=True)
class VideoReport:
    """What was found of a fleet of videos.

    Attributes:
        work: the fleet with its classes, and the costs of its work.
        machine: capacity for it.
        videos: of each stream.
        crossing: what answers growing numbers of cameras like these.
    """

    work: MeasuredWork
    machine: MachineSize
    videos: tuple[VideoFacts, ...]
    crossing: Crossing

    @property
    def own(self) -> Answering | None:
        """What answers as many cameras as there are videos; None if they do not fit the machine."""
        return next((row for row in self.crossing.rows if row.cameras == len(self.videos)), None)


def examine_videos(fleet: FleetConfig, say: Callable[[str], object] = lambda step: None) -> VideoReport:
    """Tries the models of a fleet on frames of its videos, and measures its work, in about a minute.

    Args:
        fleet: of videos and detectors; sizes are open.
        say: called with each step, in words.

    Raises:
        UserError: a video or a model cannot be opened, or not even one camera fits the machine.
    """
    say("looking through the videos")
    frames = read_spread_frames(fleet)
    fleet = with_classes(fleet, frames)
    chosen = choose_backend()
    with start_measuring(fleet) as probe:
        tried = try_models(fleet, frames, chosen.capability.device, say)
        say("measuring what work costs here")
        host = probe.result()
    speeds = kept_speeds(chosen, fleet.edge.model)
    crossing = find_crossing(
        fleet,
        host.costs,
        machine_of(chosen),
        [summarize_runs(runs) for runs in tried],
        (training_speed(speeds), inference_speed(speeds)),
    )
    videos = tuple(
        _facts(stream, of_video, runs, host.costs.streams[stream.id])
        for stream, of_video, runs in zip(fleet.streams, frames, tried, strict=True)
    )
    return VideoReport(MeasuredWork(fleet, host), machine_of(chosen), videos, crossing)


def _facts(
    stream: StreamConfig, frames: SpreadFrames, runs: Sequence[TriedRun], costs: StreamCosts
) -> VideoFacts:
    assert isinstance(stream.source, VideoSpec)
    golden_s = costs.frame_gpu_s[GOLDEN_RESOLUTION]
    needed = {n: needed_milli(costs, InferenceConfig(n, GOLDEN_RESOLUTION)) for n in GOLDEN_EVERY}
    return VideoFacts(
        files=tuple(file.name for file in stream.source.files),
        size=frames.size,
        fps=round(costs.fps, 2),
        frames=sum(len(run.objects) for run in runs),
        student_ms=round(costs.frame_gpu_s[max(costs.frame_gpu_s)] * 1e3, 2),
        golden_ms=round(golden_s * 1e3, 2),
        following_ms=round(costs.following_gpu_s[GOLDEN_RESOLUTION] * 1e3, 2),
        student_f1=summarize_runs(runs).student_f1,
        golden_f1={
            n: measure_golden_f1(runs, n, held_frames(milli, golden_s, costs.fps))
            for n, milli in needed.items()
            if milli <= FULL_GPU_MILLI
        },
    )


def describe_video(video: VideoFacts, fleet: FleetConfig) -> Iterator[str]:
    """Yields what was measured on a video, in lines of text."""
    student, golden = name_models(fleet)
    yield (
        f"{', '.join(video.files)}: {video.size[0]}x{video.size[1]}, {video.fps:g} frames a second; tried on "
        f"{video.frames} of its frames, from all over it"
    )
    yield (
        f"  a frame takes the small model (student, {student}) {video.student_ms:.3g} ms, the large one "
        f"(golden, {golden}) {video.golden_ms:.3g} ms, and following its boxes {video.following_ms:.2g} ms"
    )
    if video.student_f1 is None:
        yield "  neither model found anything in these frames"
        return
    tried = [f"{every_nth(n)} {f1:.0%}" for n, f1 in video.golden_f1.items() if f1 is not None]
    large = f"; large model on {', '.join(tried)}" if tried else ""
    yield f"  F1 against the large model on every frame: small model {video.student_f1:.0%}{large}"


def name_models(fleet: FleetConfig) -> tuple[str, str]:
    """Returns the names of student and golden model, for messages."""
    student, golden = fleet.edge, fleet.golden
    return (
        student.model if student.weights is None else student.weights.stem,
        golden.model if golden.weights is None else golden.weights.stem,
    )


def format_answering(row: Answering) -> tuple[str, ...]:
    """Returns a row of a table: cameras, large and small model, labels in a window, its length, F1."""
    students = row.cameras - row.by_golden
    count = str(row.by_golden) if students else "all"
    retrained = f", {row.retrained} retrained" if row.retrained else ""
    of = "each" if row.labelled >= row.cameras else _cameras(row.labelled)
    return (
        str(row.cameras),
        f"{count}, {_every(row.golden_every)}" if row.by_golden else "",
        f"{students}, {_every(row.student_every)}{retrained}" if students else "",
        f"{row.labels} of {of}",
        f"{row.window_s:g} s",
        f"{row.expected_f1:.0%}",
    )


def _every(every: Sequence[int]) -> str:
    """Returns every how many frames, in words: ``every 5th to 9th frame``."""
    first, last = every_nth(every[0]), every_nth(every[-1])
    if every[0] == 1:
        return first if every[-1] == 1 else f"{first} to {last}"
    return first if first == last else f"{first.removesuffix(' frame')} to {last.removeprefix('every ')}"


def draw_conclusions(report: VideoReport) -> Iterator[str]:
    """Yields in plain words what is best, up to how many cameras, and with how many adapting pays."""
    rows, own, most = report.crossing.rows, report.own, report.crossing.all_golden
    if own is not None:
        yield f"With {_cameras(own.cameras)} like this {_verdict(own)}."
    after = next((row for row in rows if row.cameras > most), None)
    if most == 0 and not report.videos[0].golden_f1:
        slowest = every_nth(max(GOLDEN_EVERY))
        yield f"The large model is too slow here to keep up with a camera even on {slowest}."
    elif after is None:
        yield f"So it is up to {_cameras(most)}, the most that were planned."
    elif most > 0:
        yield (
            f"Up to {_cameras(most)} like this the large model answers by itself; with {after.cameras} "
            f"{_verdict(after)}."
        )
    adapted = next((row for row in rows if row.retrained), None)
    if adapted is None:
        yield "Adapting the small model pays with none of these numbers: its time is worth more elsewhere."
    else:
        first = _cameras(adapted.cameras)
        yield f"Adapting the small model pays where the table says retrained, first with {first}."
    if report.crossing.refused is not None:
        yield f"More do not fit: {report.crossing.refused}."


def _verdict(row: Answering) -> str:
    if row.by_golden == row.cameras:
        return (
            f"the large model answers by itself, on {_every(row.golden_every)}, with its boxes followed in "
            "between, and adapting the small one gains little"
        )
    small = "adapted to each camera" if row.retrained else "as it comes"
    if row.by_golden:
        large = f"the large model answers {row.by_golden}, on {_every(row.golden_every)}"
        return f"{large}, and the small one, {small}, the others"
    return f"the small model answers, {small}, on {_every(row.student_every)}"


def _cameras(count: int) -> str:
    return f"{count} camera{'' if count == 1 else 's'}"


def video_report_as_json(report: VideoReport) -> Mapping[str, object]:
    """Returns all figures as JSON values."""
    student, golden = name_models(report.work.fleet)
    return {
        "student": student,
        "golden": golden,
        "classes": list(report.work.fleet.classes or ()),
        "videos": [asdict(video) for video in report.videos],
        "cameras": [asdict(row) for row in report.crossing.rows],
        "all_golden": report.crossing.all_golden,
        "refused": report.crossing.refused,
        "conclusion": list(draw_conclusions(report)),
    }

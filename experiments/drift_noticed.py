"""Measures which changes of a scene are noticed, how soon, and how often none is one.

    python experiments/drift_noticed.py --hours 2 --jobs 2
    python experiments/drift_noticed.py --hours 20 --seen noticed/ --json noticed.json
    python experiments/drift_noticed.py --student FastestDet.safetensors --video street.mp4 --video gate.mp4

Rendered cameras show a scene, and some of them another one from a drawn time on: the camera is moved, dusk
falls, rain comes over 12 s, or other vehicles and clothes are on the same street. The base model, which is
never retrained, answers; a monitor sees its answers. An alarm is right from the change until 30 s after it is
complete, once; while the change is under way also again. Every other alarm is false. With ``--video`` each
recording is played, and each pair of neighbours as one camera. ``--seen`` keeps what inference saw, so that a
measurement continues where it ended, and thresholds are compared without it.

Constants were chosen on ``TUNING_SEEDS``; figures are of ``FIGURE_SEEDS``, the default.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Annotated

# Must be set before numpy is imported: each case uses one thread.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import typer
from cases import Jobs, run_cases
from recipe import Json, print_rows, run
from scipy.stats import chi2

from ekya.cli.command import open_output
from ekya.cli.options import parse_integers
from ekya.config.shipped import shipped_path
from ekya.core.errors import UserError
from ekya.core.units import BASE_VERSION, US_PER_S
from ekya.models.edge.architecture_table import FASTESTDET
from ekya.models.edge.checkpoints import load_model
from ekya.models.edge.detection.weights import open_detector_weights
from ekya.pipeline.inference import serving
from ekya.planning.adaptation.drift import FALSE_ALARMS_PER_HOUR, Drift, DriftMonitor, SeenFrame
from ekya.streams.ingest.crops import crop_objects, describe_picture, square_frame
from ekya.streams.ingest.video import VideoSpec
from ekya.streams.synthetic.scene import KINDS, StreetScene
from ekya.streams.synthetic.source import CitySpec
from ekya.system.files import atomic_path

TUNING_SEEDS = tuple(range(100, 120))
"""Constants of the monitor were chosen on these."""

FIGURE_SEEDS = tuple(range(700, 720))
"""Figures are of these."""

RATES = (100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01)
"""False alarms a camera and hour that thresholds are made for."""

STEADY = "steady"
CHANGES = ("moved", "dusk", "rain", "liveries")
RAMP_S = {"rain": 12.0}

STEADY_S, AFTER_S, FPS = 900.0, 45.0, 5.0
RIGHT_S = 30.0
TOGETHER = 100
SIDES = {"crop": 32, "frame": 352}
_MIXES = (
    {"car": 0.36, "person": 0.3, "bicycle": 0.12, "bus": 0.1, "truck": 0.08, "motorcycle": 0.04},
    {"car": 0.22, "truck": 0.18, "bus": 0.16, "motorcycle": 0.14, "person": 0.16, "bicycle": 0.14},
)


@dataclass(frozen=True, slots=True)
class Case:
    """A camera.

    Attributes:
        kind: ``STEADY``, one of ``CHANGES``, or the names of recordings.
        seed: of a rendered camera.
        folder: of what was seen; None keeps nothing.
        videos: recordings in a row; empty for a rendered camera.
        student: weights of the detector that sees them.
    """

    kind: str
    seed: int
    folder: Path | None
    videos: tuple[Path, ...] = ()
    student: Path | None = None


@dataclass(frozen=True, slots=True)
class Alarms:
    """Alarms of a camera at one threshold.

    Attributes:
        kind, seed: of the case.
        rate: false alarms an hour for which the threshold is made.
        seconds: that the camera lasted.
        change_s: when its scene changed; None if it did not.
        at_s: of the alarms.
        reasons: their evidence.
    """

    kind: str
    seed: int
    rate: float
    seconds: float
    change_s: float | None
    at_s: tuple[float, ...]
    reasons: tuple[str, ...]

    @property
    def delay_s(self) -> float | None:
        """Time from the change to the first alarm that is right; None if none is."""
        return None if not self._right else self._right[0] - (self.change_s or 0.0)

    @property
    def false(self) -> int:
        """Number of false alarms."""
        return len(self.at_s) - len(self._right)

    @property
    def _right(self) -> list[float]:
        if self.change_s is None:
            return []
        complete_s = self.change_s + RAMP_S.get(self.kind, 0.0)
        right = [at_s for at_s in self.at_s if self.change_s <= at_s <= complete_s + RIGHT_S]
        return [at_s for number, at_s in enumerate(right) if number == 0 or at_s <= complete_s + 10.0]


@dataclass(frozen=True, slots=True)
class Seen:
    """Observations of a camera by inference."""

    frames: tuple[SeenFrame, ...]
    change_s: float | None


def alarms_of(case: Case) -> list[Alarms]:
    """Returns the alarms of a camera at all thresholds."""
    seen = _seen(case)
    seconds = seen.frames[-1].t_us / US_PER_S
    rows = []
    for rate in RATES:
        monitor = DriftMonitor(KINDS, rate)
        drifts: list[Drift] = [drift for frame in seen.frames if (drift := monitor.observe_frame(frame))]
        at_s, reasons = tuple(drift.t_us / US_PER_S for drift in drifts), tuple(d.reason for d in drifts)
        rows.append(Alarms(case.kind, case.seed, rate, seconds, seen.change_s, at_s, reasons))
    return rows


def _seen(case: Case) -> Seen:
    path = None if case.folder is None else case.folder / f"{case.kind}-{case.seed}.npz"
    if path is not None and path.exists():
        return _read(path)
    seen = _watched(case) if case.videos else _rendered(case)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(seen, path)
    return seen


def _rendered(case: Case) -> Seen:
    rng = np.random.default_rng([case.seed, *case.kind.encode()])
    change_s = None if case.kind == STEADY else 40.0 + float(rng.uniform(0.0, 15.0))
    first = _scene(rng, "day" if case.kind in ("dusk", "rain") else None)
    seconds = STEADY_S if change_s is None else change_s + RAMP_S.get(case.kind, 0.0) + AFTER_S
    scenes = (first,) if change_s is None else (first, _changed(first, case.kind, change_s, rng))
    spec = CitySpec(seed=case.seed, fps=FPS, scenes=scenes, duration_s=seconds)
    model = serving(load_model(shipped_path("golden_models/synthetic_city_resnet18_base.safetensors")), KINDS)
    side, crops, shown = SIDES["crop"], [], []
    for frame, truth in spec.open(KINDS).frames():
        assert truth is not None, "the city knows its objects"
        crops.append(crop_objects(frame.image, truth.boxes, side))
        shown.append((frame.t_us, describe_picture(frame.image)))
    # Many crops at a time take a third of the time of one frame's.
    every = np.concatenate(crops)
    answers = [model.predict(every[at : at + TOGETHER], side) for at in range(0, len(every), TOGETHER)]
    ends = np.cumsum([len(own) for own in crops])[:-1]
    classes, confidence = (np.split(np.concatenate(part), ends) for part in zip(*answers, strict=True))
    frames = [
        _frame(t_us, side, sure, called, picture)
        for (t_us, picture), sure, called in zip(shown, confidence, classes, strict=True)
    ]
    return Seen(tuple(frames), change_s)


def _one_of(rng: np.random.Generator, values: Sequence[str]) -> str:
    return values[int(rng.integers(len(values)))]


def _scene(rng: np.random.Generator, lighting: str | None) -> StreetScene:
    return StreetScene.model_validate(
        {
            "mix": _MIXES[int(rng.integers(len(_MIXES)))],
            "view": _one_of(rng, ["side", "front", "high"]),
            "lighting": lighting or _one_of(rng, ["day", "dusk", "rain", "night"]),
            "livery": _one_of(rng, ["north", "south", "harbour", "plain"]),
            "clothing": _one_of(rng, ["summer", "winter", "workwear"]),
            "fleet": _one_of(rng, ["city", "utility", "mixed"]),
            "density": float(rng.integers(3, 9)),
        }
    )


def _changed(first: StreetScene, kind: str, at_s: float, rng: np.random.Generator) -> StreetScene:
    def other(values: Sequence[str], now: str) -> str:
        return _one_of(rng, [value for value in values if value != now])

    changes: dict[str, object] = {"at_s": at_s, "ramp_s": RAMP_S.get(kind, 0.0)}
    match kind:
        case "moved":
            changes["view"] = other(["side", "front", "high"], first.view)
        case "liveries":
            changes["livery"] = other(["north", "south", "harbour", "plain"], first.livery)
            changes["clothing"] = other(["summer", "winter", "workwear"], first.clothing)
            changes["fleet"] = other(["city", "utility"], first.fleet)
        case lighting:
            changes["lighting"] = lighting
    return StreetScene.model_validate({**first.model_dump(), **changes})


def _watched(case: Case) -> Seen:
    assert case.student is not None, "recordings are seen by a detector"
    model = serving(open_detector_weights(case.student, FASTESTDET, KINDS), KINDS)
    source = VideoSpec(files=case.videos).open(KINDS)
    every, side, frames = max(1, round(source.fps / FPS)), SIDES["frame"], []
    for frame, _ in source.frames():
        if frame.index % every == 0:
            (found,) = model.predict(square_frame(frame.image, side), side)
            frames.append(
                _frame(frame.t_us, side, found.confidence, found.classes, describe_picture(frame.image))
            )
    if len(case.videos) == 1:
        return Seen(tuple(frames), None)
    first = sum(1 for _ in VideoSpec(files=case.videos[:1]).open(KINDS).frames())
    return Seen(tuple(frames), first / source.fps)


def _frame(t_us: int, side: int, confidence: object, classes: object, picture: object) -> SeenFrame:
    return SeenFrame(
        t_us,
        BASE_VERSION,
        side,
        np.asarray(confidence, np.float32),
        np.asarray(classes, np.int16),
        np.asarray(picture, np.float32),
    )


def _write(seen: Seen, path: Path) -> None:
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(
            file,
            t_us=[frame.t_us for frame in seen.frames],
            resolution=seen.frames[0].resolution,
            counts=[len(frame.classes) for frame in seen.frames],
            confidence=np.concatenate([frame.confidence for frame in seen.frames]),
            classes=np.concatenate([frame.classes for frame in seen.frames]),
            pictures=np.array([frame.picture for frame in seen.frames], np.float16),
            change_s=np.nan if seen.change_s is None else seen.change_s,
        )


def _read(path: Path) -> Seen:
    with np.load(path) as kept:
        resolution, change_s = int(kept["resolution"]), float(kept["change_s"])
        ends = np.cumsum(kept["counts"])[:-1]
        columns = (np.split(kept["confidence"], ends), np.split(kept["classes"], ends), kept["pictures"])
        frames = tuple(
            _frame(int(t_us), resolution, *values)
            for t_us, *values in zip(kept["t_us"], *columns, strict=True)
        )
    return Seen(frames, None if np.isnan(change_s) else change_s)


@dataclass(frozen=True, slots=True)
class Point:
    """All cameras at one threshold.

    Attributes:
        rate: for which the threshold is made.
        hours: of steady scenes: all of the steady cameras.
        false: alarms in them.
        most_per_hour: upper end of the one-sided 95% interval of their number an hour (Poisson).
        precision: right alarms by all alarms of cameras that change.
        recall: part of the changes that were noticed.
        delay_s: from the change to the alarm, the median of those noticed.
        by_kind: recall and delay of each change.
    """

    rate: float
    hours: float
    false: int
    most_per_hour: float | None
    precision: float | None
    recall: float | None
    delay_s: float | None
    by_kind: dict[str, tuple[float, float | None]]


def point_of(rows: Sequence[Alarms], rate: float) -> Point:
    """Returns the point of the curve at a threshold."""
    own = [row for row in rows if row.rate == rate]
    steady = [row for row in own if row.change_s is None]
    hours, false = sum(row.seconds for row in steady) / 3600, sum(row.false for row in steady)
    changed = [row for row in own if row.change_s is not None]
    noticed = [row.delay_s for row in changed if row.delay_s is not None]
    wrong = sum(row.false for row in changed)
    by_kind = {}
    for kind in dict.fromkeys(row.kind for row in changed):
        all_ = [row for row in changed if row.kind == kind]
        delays = [row.delay_s for row in all_ if row.delay_s is not None]
        by_kind[kind] = (len(delays) / len(all_), median(delays) if delays else None)
    return Point(
        rate,
        hours,
        false,
        float(chi2.ppf(0.95, 2 * (false + 1))) / 2 / hours if hours else None,
        len(noticed) / (len(noticed) + wrong) if noticed or wrong else None,
        len(noticed) / len(changed) if changed else None,
        median(noticed) if noticed else None,
        by_kind,
    )


def curve_row(point: Point) -> dict[str, object]:
    """Returns a point of the curve for display."""
    kinds = {
        kind: f"{recall:.0%} {'-' if delay_s is None else f'{delay_s:.1f}'}"
        for kind, (recall, delay_s) in point.by_kind.items()
    }
    return {name: value for name, value in asdict(point).items() if name != "by_kind"} | kinds


def video_row(row: Alarms) -> dict[str, object]:
    """Returns the alarms of a recording for display."""
    return {
        "recording": row.kind,
        "seconds": row.seconds,
        "changes at": row.change_s,
        "alarms at": ", ".join(f"{at_s:.1f}" for at_s in row.at_s) or "none",
        "evidence": "; ".join(row.reasons),
    }


def _cases(
    hours: float, seeds: Sequence[int], videos: Sequence[Path], student: Path | None, seen: Path | None
) -> Iterator[Case]:
    if videos:
        for path in videos:
            yield Case(path.stem, 0, seen, (path,), student)
        for pair in pairwise(videos):
            yield Case("+".join(path.stem for path in pair), 0, seen, pair, student)
        return
    for number in range(round(hours * 3600 / STEADY_S)):
        # Each seed's first steady camera is its own; further ones are seeds of their own.
        again, place = divmod(number, len(seeds))
        yield Case(STEADY, seeds[place] + 1000 * again, seen)
    for kind in CHANGES:
        yield from (Case(kind, seed, seen) for seed in seeds)


def main(
    hours: Annotated[float, typer.Option(min=0.0, help="Camera-hours of steady scenes.")] = 1.0,
    seeds: Annotated[str, typer.Option(metavar="N,...", help="A camera of each change for each.")] = ",".join(
        map(str, FIGURE_SEEDS)
    ),
    seen: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Keep what was seen, and continue from there.")
    ] = None,
    video: Annotated[
        list[Path] | None, typer.Option(exists=True, dir_okay=False, help="Recording; may be repeated.")
    ] = None,
    student: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="FastestDet's weights, for recordings.")
    ] = None,
    jobs: Jobs = 1,
    json_to: Json = None,
) -> None:
    """Measure what a monitor of drift notices."""
    if video and student is None:
        raise UserError("--video: a detector must see it; name its weights with --student.")
    cases = list(_cases(hours, parse_integers(seeds), video or (), student, seen))
    with open_output(json_to) as out:
        rows = [row for found in run_cases(alarms_of, cases, jobs, out.console) for row in found]
        points = [point_of(rows, rate) for rate in RATES]
        out.write_json({"points": [asdict(point) for point in points], "rows": [asdict(row) for row in rows]})
        title = "false alarms of steady scenes; changes that were noticed, and the median delay"
        forms = {"precision": ".0%", "recall": ".0%"}
        print_rows(out.console, title, [curve_row(point) for point in points], forms)
        if video:
            shipped = [video_row(row) for row in rows if row.rate == FALSE_ALARMS_PER_HOUR]
            title = f"recordings, at {FALSE_ALARMS_PER_HOUR:g} false alarms an hour"
            print_rows(out.console, title, shipped)


if __name__ == "__main__":
    run(main, "python experiments/drift_noticed.py --hours 2 --jobs 2")

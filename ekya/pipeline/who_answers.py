"""Plans which detector answers cameras on a machine: the golden one on every n-th frame, or students.

Each number is sized and planned as the first window of a run would be, from costs that were measured once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from ekya.config.fleet_file import FleetConfig
from ekya.config.sizing import fit_fleet
from ekya.control.views import window_view
from ekya.core.configs import InferenceConfig
from ekya.core.errors import UserError
from ekya.core.host import HostCosts
from ekya.core.plan import Assignment, Plan
from ekya.core.speed import LINEAR, SpeedCurve
from ekya.core.state import FleetState, StreamState, WindowLabels
from ekya.core.units import StreamId
from ekya.core.view import InferenceOption, WindowView
from ekya.models.training.labelled import VALIDATION_FRACTION
from ekya.pipeline.setup import loop_options
from ekya.planning.profiling.inference_profile import BurstFrame, inference_options
from ekya.planning.schedulers.objective import evaluate_phases
from ekya.planning.schedulers.registry import DEFAULT_SCHEDULER, make_scheduler
from ekya.planning.sizing.fleet_sizes import MachineSize

CAMERAS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Numbers of cameras that are asked for."""


@dataclass(frozen=True, slots=True, eq=False)
class SeenCamera:
    """What a few frames of a camera have shown.

    Attributes:
        student_f1: F1 of the student against the golden detector; None without objects.
        bursts: runs of consecutive frames, on which λ are measured; without any, λ are guessed.
    """

    student_f1: float | None = None
    bursts: tuple[tuple[BurstFrame, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Answering:
    """What answers a number of cameras, once the labels of a window are made.

    Attributes:
        cameras: their number.
        by_golden: number of those that the golden detector answers itself.
        golden_every: every how many frames it does, rising; empty where it answers none.
        student_every: the same of the students.
        retrained: number of students that are retrained in the window.
        labelled: number of cameras that are labelled in the window.
        labels: frames of each of them that the golden detector labels.
        window_s: length of the window.
        expected_f1: mean over the cameras at the end of the window.
    """

    cameras: int
    by_golden: int
    golden_every: tuple[int, ...]
    student_every: tuple[int, ...]
    retrained: int
    labelled: int
    labels: int
    window_s: float
    expected_f1: float


@dataclass(frozen=True, slots=True)
class Crossing:
    """Up to which number of cameras the golden detector answers all.

    Attributes:
        rows: of growing numbers of cameras, this one and the next among them.
        all_golden: that number; 0 if it does not even answer one.
        refused: why more cameras than those of the last row do not fit the machine; None if more were not
            asked for.
    """

    rows: tuple[Answering, ...]
    all_golden: int
    refused: str | None


def find_crossing(
    fleet: FleetConfig,
    costs: HostCosts,
    machine: MachineSize,
    seen: Sequence[SeenCamera],
    speeds: tuple[SpeedCurve, SpeedCurve] = (LINEAR, LINEAR),
) -> Crossing:
    """Plans growing numbers of cameras like those of a fleet, which are taken in turn.

    Args:
        fleet: of detectors, with its classes; sizes are open.
        costs: of its work, measured on the machine.
        machine: its capacity.
        seen: of each stream of the fleet.
        speeds: of training and of inference at a share.

    Raises:
        UserError: not even one camera fits.
    """
    planning = _Planning(fleet, costs, machine, seen, speeds)
    rows: dict[int, Answering] = {}
    refused = None

    def answers_all(cameras: int) -> bool:
        rows[cameras] = planning.plan_cameras(cameras)
        return rows[cameras].by_golden == cameras

    all_golden, not_all = 0, CAMERAS[-1] + 1
    for cameras in sorted({*CAMERAS, len(fleet.streams)}):
        try:
            if not answers_all(cameras):
                not_all = min(not_all, cameras)
            elif cameras < not_all:
                all_golden = cameras
        except UserError as error:
            if not rows:
                raise
            refused = str(error)
            break
    while not_all - all_golden > 1 and not_all in rows:
        middle = (all_golden + not_all) // 2
        if answers_all(middle):
            all_golden = middle
        else:
            not_all = middle
    asked = {*CAMERAS, len(fleet.streams), all_golden, all_golden + 1}
    return Crossing(tuple(rows[one] for one in sorted(asked & set(rows))), all_golden, refused)


@dataclass(frozen=True, slots=True, eq=False)
class _Planning:
    """What ``find_crossing`` is given, and the Λ that it has made of it."""

    fleet: FleetConfig
    costs: HostCosts
    machine: MachineSize
    seen: Sequence[SeenCamera]
    speeds: tuple[SpeedCurve, SpeedCurve]
    lambdas: dict[tuple[int, tuple[InferenceConfig, ...]], tuple[InferenceOption, ...]] = field(
        default_factory=dict
    )

    def plan_cameras(self, cameras: int) -> Answering:
        """Returns what answers a number of cameras.

        Raises:
            UserError: they do not fit.
        """
        streams, of = self.fleet.streams, self.costs.streams
        like = {StreamId(f"cam-{at:03d}"): at % len(streams) for at in range(cameras)}
        # A camera does not end, as a recording does.
        endless = {name: replace(of[streams[at].id], length_s=None) for name, at in like.items()}
        fleet = self.fleet.model_copy(
            update={
                "streams": tuple(streams[at].model_copy(update={"id": name}) for name, at in like.items())
            }
        )
        fleet, _ = fit_fleet(fleet, replace(self.costs, streams=endless), self.machine)
        options = replace(
            loop_options(fleet, self.costs.families, 0, 1, fleet.capacity_milli),
            training_speed=self.speeds[0],
            inference_speed=self.speeds[1],
        )
        states = tuple(
            StreamState(
                name,
                self._lambdas_of(at, options.inference_configs),
                accuracy=self.seen[at].student_f1,
                labels=_labels(fleet, place),
                inference_measured=True,
            )
            for place, (name, at) in enumerate(like.items())
        )
        scheduler = make_scheduler(DEFAULT_SCHEDULER)
        state = FleetState(states, window=1, window_end_us=options.window_us)
        view = window_view(state, options.preparation_us, options, scheduler.needs, {})
        return _summed_up(fleet, view, scheduler.plan(view))

    def _lambdas_of(self, at: int, configs: tuple[InferenceConfig, ...]) -> tuple[InferenceOption, ...]:
        """Returns Λ of a stream of the fleet, each as it is in the mean of its bursts."""
        if (at, configs) not in self.lambdas:
            of = self.costs.streams[self.fleet.streams[at].id]
            known = [
                inference_options(configs, burst, of.frame_gpu_s, of.fps, self.speeds[1], of.following_gpu_s)
                for burst in self.seen[at].bursts or ((),)
            ]
            self.lambdas[at, configs] = tuple(
                replace(same[0], relative_accuracy=fmean(one.relative_accuracy for one in same))
                for same in zip(*known, strict=True)
            )
        return self.lambdas[at, configs]


def _labels(fleet: FleetConfig, place: int) -> WindowLabels:
    """Returns a stream's labels in a window in which the first streams are labelled."""
    if place >= (fleet.preparation.streams or len(fleet.streams)):
        return WindowLabels()
    frames = fleet.golden.frames_per_window
    validation = round(VALIDATION_FRACTION * frames)
    return WindowLabels(frames - validation, validation)


def _summed_up(fleet: FleetConfig, view: WindowView, plan: Plan) -> Answering:
    last = plan.phases[-1].assignments
    golden = [given for given in last if given.inference.by_golden]
    students = {given.stream: given for given in last if not given.inference.by_golden}
    retrained = {one.stream for phase in plan.phases for one in phase.assignments if one.retrain is not None}
    return Answering(
        cameras=len(last),
        by_golden=len(golden),
        golden_every=_every(golden),
        student_every=_every(students.values()),
        retrained=len(retrained & set(students)),
        labelled=fleet.preparation.streams or len(last),
        labels=fleet.golden.frames_per_window,
        window_s=fleet.window_s,
        expected_f1=evaluate_phases(view, plan.phases).at_end,
    )


def _every(given: Iterable[Assignment]) -> tuple[int, ...]:
    return tuple(sorted({one.inference.every for one in given}))

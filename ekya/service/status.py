"""Status of a service at a moment: immutable facts for pages, metrics and messages.

Each is made of numbers, texts and tuples alone, so that ``dataclasses.asdict`` of it is JSON. Times are run
time in microseconds (``_us``) or seconds of wall-clock time since 1970 (``_unix_s``).
"""

from dataclasses import dataclass

from ekya.core.areas import Polygon
from ekya.core.errors import NotThereError


@dataclass(frozen=True, slots=True)
class RetrainingStatus:
    """A retraining in progress.

    Attributes:
        job: its number.
        config: γ for display.
        epoch, epochs: epochs that are over, and of all.
        best_accuracy: validation accuracy after the best epoch so far; None before the first.
        expected_accuracy: present estimate of its final accuracy.
    """

    job: int
    config: str
    epoch: int
    epochs: int
    best_accuracy: float | None
    expected_accuracy: float


@dataclass(frozen=True, slots=True)
class RetrainingRow:
    """A retraining that is over.

    Attributes:
        job, window, config: its number, the window on whose labels it trained, γ for display.
        before: accuracy of the model that served when it began; None if that was unknown.
        after: validation accuracy of its best epoch; None if it reached no epoch.
        gpu_s: GPU-seconds that it used.
        outcome: ``served``, ``kept`` (the model that served before goes on) or ``failed``.
        reason: why it was not served, in a sentence; empty if it was.
        began_unix_s, ended_unix_s: when.
        validated: its validation is kept: confusion, and pictures of mistakes.
    """

    job: int
    window: int
    config: str
    before: float | None
    after: float | None
    gpu_s: float
    outcome: str
    reason: str
    began_unix_s: float
    ended_unix_s: float
    validated: bool = False


@dataclass(frozen=True, slots=True)
class RetrainingCounts:
    """Numbers of retrainings by outcome."""

    served: int = 0
    kept: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class CameraCounts:
    """What was counted of a camera; see ``CameraStatus``."""

    frames_due: int = 0
    frames_analysed: int = 0
    drifts: int = 0
    labels: int = 0
    retrainings: RetrainingCounts = RetrainingCounts()


@dataclass(frozen=True, slots=True)
class Series:
    """How a camera's accuracy and shares went: columns of equal length, in order of time.

    The last hour has a point every 10 s, the days before one every 5 min, which is a mean; while the service
    was down, there are none.

    Attributes:
        unix_s: times of the points.
        accuracy: estimated accuracy of what answers, in [0, 1]; None while it is unknown.
        inference_milli, retraining_milli: granted shares in thousandths of a GPU.
    """

    unix_s: tuple[float, ...] = ()
    accuracy: tuple[float | None, ...] = ()
    inference_milli: tuple[float, ...] = ()
    retraining_milli: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class AuditedAccuracy:
    """Accuracy of a camera's answers on frames drawn from all that arrived, by the golden model.

    Attributes:
        accuracy: in [0, 1].
        low, high: bounds of its 95% interval.
        frames: number of frames that were compared.
        since_unix_s, until_unix_s: times of the first and the last comparison.
    """

    accuracy: float
    low: float
    high: float
    frames: int
    since_unix_s: float
    until_unix_s: float


@dataclass(frozen=True, slots=True)
class CameraStatus:
    """One camera at a moment.

    Counts are of all starts of the service; those of the metrics are since the last one.

    Attributes:
        id: as in the fleet file.
        state: ``serving``, ``restarting``, ``lost``, ``paused``, ``ended`` or ``set aside``.
        reason: why it does not serve; empty while it does.
        health: ``ok``, ``stale``, ``unlabelled``, ``behind`` or ``lost``.
        health_reason: reason and remedy in a sentence; empty for ``ok``.
        accuracy: estimated accuracy of what answers, in [0, 1]; None before it is known.
        audited: accuracy of its answers of the last hour, measured on frames that nothing learnt from; None
            before enough were.
        model_version: of the model that serves; 0 is the base model.
        every, resolution: λ: each ``every``-th frame is analysed, at this many pixels, 0 by the golden
            detector; both None without inference.
        inference_share_milli, retraining_share_milli: granted shares in thousandths of a GPU.
        retraining: the one in progress; None without one.
        why: what the last plan says of this camera; empty before it.
        frames_due, frames_analysed: frames that λ selected, and that were analysed.
        weight: of its accuracy in the objective.
        frozen: it is not retrained, since an operator said so.
        drifts: changes of its scene that were noticed.
        labels: labels that the golden model made.
        labels_unix_s: when the newest of them came; None before the first.
        retrainings: numbers by outcome.
        mask, zone: where its objects count, as in the fleet file.
        analysed_url: key of the fleet file, ``url`` or ``url_detect``, whose pictures are analysed; None of
            what is no live camera.
    """

    id: str
    state: str
    reason: str
    health: str
    health_reason: str
    accuracy: float | None
    audited: AuditedAccuracy | None
    model_version: int
    every: int | None
    resolution: int | None
    inference_share_milli: int
    retraining_share_milli: int
    retraining: RetrainingStatus | None
    why: str
    frames_due: int
    frames_analysed: int
    weight: float
    frozen: bool
    drifts: int
    labels: int
    labels_unix_s: float | None
    retrainings: RetrainingCounts
    mask: tuple[Polygon, ...] = ()
    zone: tuple[Polygon, ...] = ()
    analysed_url: str | None = None

    @property
    def healthy(self) -> bool:
        """True if it got what it needs."""
        return self.health == "ok"


@dataclass(frozen=True, slots=True)
class WarningRow:
    """A warning of a process: when, its readable name, and one line without passwords."""

    unix_s: float
    source: str
    text: str


@dataclass(frozen=True, slots=True)
class WarningCount:
    """Number of warnings of a process since the service was started."""

    source: str
    count: int


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Durations of the loop's steps since the service was started, as a histogram.

    Attributes:
        counts: number of steps up to each bound of ``STEP_BOUNDS_S`` and above the one before; the last
            counts all that took longer than the last bound.
        sum_s: of all durations.
    """

    counts: tuple[int, ...]
    sum_s: float


STEP_BOUNDS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Upper bounds of the classes of ``StepTimes``."""


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """A service at a moment.

    Attributes:
        name: of its folder.
        version: of Ekya.
        scheduler: its name, with options.
        started_unix_s: when it was started last.
        now_unix_s, now_us: the moment, as wall-clock time and as run time.
        window: index of the open window; -1 before the first.
        window_opened_us, window_ends_us: run times of its begin and end.
        capacity_milli: all GPUs together, in thousandths of one.
        preparing: labels and profiles are being made.
        cameras: sorted by id.
        warnings: the newest, in order of time.
        warning_counts: sorted by source.
        steps: durations of the loop's steps.
    """

    name: str
    version: str
    scheduler: str
    started_unix_s: float
    now_unix_s: float
    window: int
    window_opened_us: int
    window_ends_us: int
    now_us: int
    capacity_milli: int
    preparing: bool
    cameras: tuple[CameraStatus, ...]
    warnings: tuple[WarningRow, ...]
    warning_counts: tuple[WarningCount, ...]
    steps: StepTimes

    def camera(self, name: str) -> CameraStatus:
        """Returns the status of one camera.

        Raises:
            NotThereError: there is none of this name.
        """
        for camera in self.cameras:
            if camera.id == name:
                return camera
        raise NotThereError(f"there is no camera {name!r}")

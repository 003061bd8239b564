"""Script of a fleet: its cameras, its failures and the laws by which it learns."""

from dataclasses import dataclass, field, replace

import numpy as np

from ekya.control.options import LoopOptions
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.profile import Family, FamilyCost, FamilyCurve, Profiler, family_of
from ekya.core.speed import SpeedCurve
from ekya.core.units import JobId, StreamId
from ekya.core.view import InferenceOption

S = 1_000_000

GAMMAS = tuple(
    RetrainConfig(epochs, 16, 0, blocks, fraction)
    for epochs in (3, 8)
    for blocks in (0, 1)
    for fraction in (0.5, 1.0)
)
LAMBDAS = (InferenceConfig(1, 32), InferenceConfig(2, 32), InferenceConfig(5, 32))
BENT = SpeedCurve(((0, 0.0), (200, 0.4), (500, 0.75), (1000, 1.0)))

COSTS = {
    cost.family: cost
    for cost in (FamilyCost(Family(0, 0, 16), 0.002, 0.002), FamilyCost(Family(1, 0, 16), 0.002, 0.008))
}

OPTIONS = LoopOptions(
    window_us=30 * S,
    windows=4,
    capacity_milli=2000,
    quantum_milli=100,
    steal_milli=100,
    min_accuracy=0.3,
    preparation_share_milli=500,
    preparation_us=4_500_000,
    checkpoint_delay_us=S // 20,
    retrain_configs=GAMMAS,
    inference_configs=LAMBDAS,
    family_costs=tuple(COSTS.values()),
    training_speed=BENT,
    seed=1,
)

TRIALS = replace(OPTIONS, profiler=Profiler.PAPER)
"""With the paper's micro-profiles."""

CAM_1, CAM_2, CAM_3 = (StreamId(f"cam-{number}") for number in (1, 2, 3))

MISFORTUNES = (
    ev.ShareMeasured(5 * S, CAM_1, ev.Role.INFERENCE, 333),
    ev.WorkerDied(12 * S, CAM_2, ev.Role.INFERENCE, "killed"),
    ev.StreamLost(31 * S, CAM_1, "no signal"),
    ev.StreamBack(36 * S, CAM_1),
    ev.WorkerDied(66 * S, CAM_2, ev.Role.RETRAINING, "killed"),
    ev.RetrainFailed(67 * S, CAM_1, JobId(999), "not the job that runs"),
    ev.StreamEnded(95 * S, CAM_3),
)
"""Failures of all kinds, at most two deaths per stream."""

LABEL_GPU_S, LAMBDA_GPU_S, SUBSET_CROPS, PROFILED_EPOCHS = 0.1, 0.03, 36, 3
VALIDATION_CROPS, SWAP_US, RESTART_US, PLANNING_US = 60, 20_000, 300_000, 10_000
LIMITS = {0: 0.74, 1: 0.92}
"""Highest accuracy of a retraining, by its number of trained blocks."""


@dataclass
class Camera:
    """A scripted stream.

    ``drift`` is the accuracy that the serving model loses in each window, ``slowness`` the time of an epoch
    relative to its profile. The camera joins at ``joins_us``.
    """

    stream: StreamId
    accuracy: float
    drift: float
    crops: int
    needed_milli: int
    slowness: float = 1.0
    joins_us: int = 0
    version: int = 0
    inference_milli: int = 0
    lost: bool = False
    down: bool = False
    over: bool = False
    labelled: int = -1
    job: "Job | None" = None
    ended: "Job | None" = None

    @property
    def alive(self) -> bool:
        """True unless the stream is lost, down or over."""
        return not (self.lost or self.down or self.over)


def three_cameras() -> tuple[Camera, ...]:
    """One camera drifts strongly, one drifts and one hardly drifts."""
    return (
        Camera(CAM_1, 0.62, 0.25, 240, 350),
        Camera(CAM_2, 0.66, 0.12, 180, 250),
        Camera(CAM_3, 0.80, 0.01, 120, 300),
    )


@dataclass
class Job:
    """A retraining: the preparation is one step, and each epoch is another."""

    started: cmd.StartRetraining
    from_accuracy: float
    share_milli: int
    since_us: int
    step_gpu_s: float
    epoch_gpu_s: float
    left_gpu_s: float
    prepared: bool = False
    gpu_s: float = 0.0
    accuracies: list[float] = field(default_factory=list)

    def work_until(self, now_us: int) -> None:
        passed_s = max(now_us - self.since_us, 0) / S
        self.left_gpu_s = max(self.left_gpu_s - passed_s * BENT.speed_at(self.share_milli), 0.0)
        self.since_us = max(self.since_us, now_us)

    @property
    def due_us(self) -> int | None:
        speed = BENT.speed_at(self.share_milli)
        return self.since_us + round(self.left_gpu_s / speed * S) if speed else None


def lambdas_of(camera: Camera, measured: bool) -> tuple[InferenceOption, ...]:
    """Returns Λ as first estimated, or as a profile measures it."""
    relative = {1: 1.0, 2: 0.93, 5: 0.75} if measured else {1: 1.0, 2: 0.8, 5: 0.6}
    return tuple(
        InferenceOption(config, relative[config.every], camera.needed_milli // config.every)
        for config in LAMBDAS
    )


def accuracy_after(family: Family, before: float, seen: float, salt: tuple[int, ...]) -> float:
    """Returns the accuracy after ``seen`` crops, with the noise of a small validation part."""
    rng = np.random.default_rng((family.trainable_blocks, *salt))
    limit = max(LIMITS[family.trainable_blocks], before)
    reached = limit - (limit - before) / (1 + seen / 150) + rng.normal(0, 0.008)
    return round(float(np.clip(reached, 0.0, 1.0)), 4)


def curve_of(family: Family, camera: Camera, salt: tuple[int, ...]) -> FamilyCurve:
    """Returns the curve that a micro-profile of a family finds."""
    later = (
        accuracy_after(family, camera.accuracy, epoch * SUBSET_CROPS, (*salt, epoch))
        for epoch in range(1, PROFILED_EPOCHS + 1)
    )
    cost = COSTS[family]
    return FamilyCurve(
        family.batch_size,
        family.head_width,
        family.trainable_blocks,
        SUBSET_CROPS,
        (camera.accuracy, *later),
        round(cost.epoch_gpu_s * SUBSET_CROPS, 6),
        round(cost.prepare_gpu_s * SUBSET_CROPS, 6),
    )


def gpu_s_of(config: RetrainConfig, camera: Camera) -> tuple[float, float]:
    """Returns the GPU-seconds of a retraining's preparation and of each of its epochs."""
    cost, crops = COSTS[family_of(config)], config.data_fraction * camera.crops
    return cost.prepare_gpu_s * crops, cost.epoch_gpu_s * crops * camera.slowness

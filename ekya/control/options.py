"""Options of the loop, constant during a run."""

from dataclasses import dataclass

from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.profile import FamilyCost, Profiler
from ekya.core.speed import LINEAR, SpeedCurve
from ekya.core.units import FULL_GPU_MILLI, StreamId
from ekya.planning.adaptation.shadow_gate import ROLL_BACK_MARGIN, SERVE_MARGIN
from ekya.planning.placement.pack import Packing, free_milli_by_gpu

CHECKPOINT_DELAY_US = 250_000
"""Planned cost of a checkpoint: copying the weights (45 MB for a ResNet18), transferring them and preparing
them takes about this much time of one core, which the retraining loses."""

PLANNING_US = 10_000
"""Charge for one plan on virtual time: more than any scheduler here takes for a small fleet."""


@dataclass(frozen=True, slots=True)
class StreamTerms:
    """Service terms of one stream; see ``StreamView`` for the fields."""

    stream: StreamId
    weight: float = 1.0
    max_age_us: int | None = None


@dataclass(frozen=True, slots=True)
class StreamHome:
    """The GPU, or with ``pools_milli`` the core, on which a stream's processes stay, counted from 0."""

    stream: StreamId
    gpu: int


@dataclass(frozen=True, slots=True)
class LoopOptions:
    """The run's constants.

    Attributes:
        windows: number of windows; None continues until every stream has ended.
        capacity_milli: all GPUs together.
        quantum_milli, steal_milli, min_accuracy: δ, Δ and a_MIN.
        preparation_share_milli: largest share of labelling and profiling while they run.
        preparation_us: time limit of labelling and profiling at that share.
        prepared_streams: number of streams that are labelled and profiled per window; None for all.
        checkpoint_delay_us: how long a checkpoint stops a retraining; None: no weights serve before its end.
        retrain_configs, inference_configs: Γ without ∅, and Λ.
        family_costs: one per family of Γ.
        training_speed, inference_speed: speed of a job at a share.
        trainer_milli: the part of a GPU to which each retraining's process is limited.
        share_step_milli: smallest step of a share that the share backend can enforce.
        terms: of the streams with other than default terms, sorted by id.
        packing: how shares are placed on GPUs.
        homes: of all streams, where their processes cannot change to another GPU; empty where they can.
        pools_milli: capacity of each node of several, whose cores are one pool; empty: each GPU is one.
        profiler: how γ are micro-profiled.
        last_join_us: run time after which no stream is added.
        readmit_after_us: time after which a stream that was set aside is tried again, when a window opens;
            doubled each time, up to an hour. None: it stays set aside.
        serve_margin: accuracy by which new weights may be worse than the serving ones and still serve.
        roll_back_margin: accuracy by which they may be worse than their predecessors, on labels of a window
            that they served, and still stay.
        reacts_to_drift: a stream that drifts inside a window is labelled and retrained in that window.
        pools_labels: retrainings learn from other labels of the same scene, too.
    """

    window_us: int
    windows: int | None
    capacity_milli: int
    quantum_milli: int
    steal_milli: int
    min_accuracy: float
    preparation_share_milli: int
    preparation_us: int
    checkpoint_delay_us: int | None
    retrain_configs: tuple[RetrainConfig, ...]
    inference_configs: tuple[InferenceConfig, ...]
    family_costs: tuple[FamilyCost, ...]
    share_step_milli: int = 1
    packing: Packing = Packing.POOL
    training_speed: SpeedCurve = LINEAR
    inference_speed: SpeedCurve = LINEAR
    seed: int = 0
    terms: tuple[StreamTerms, ...] = ()
    homes: tuple[StreamHome, ...] = ()
    profiler: Profiler = Profiler.EKYA
    last_join_us: int = 0
    serve_margin: float = SERVE_MARGIN
    roll_back_margin: float = ROLL_BACK_MARGIN
    prepared_streams: int | None = None
    reacts_to_drift: bool = False
    pools_labels: bool = False
    readmit_after_us: int | None = None
    trainer_milli: int = FULL_GPU_MILLI
    pools_milli: tuple[int, ...] = ()

    @property
    def retraining_speed(self) -> SpeedCurve:
        """Speed of a retraining at a share, as its process is limited."""
        return self.training_speed.up_to(self.trainer_milli)

    @property
    def pools(self) -> tuple[int, ...]:
        """Capacities between which no share moves, where streams have homes."""
        return self.pools_milli or free_milli_by_gpu(self.capacity_milli, ())

    @property
    def pool_by_place(self) -> tuple[int, ...]:
        """The pool of each GPU or core."""
        places = (-(-milli // FULL_GPU_MILLI) for milli in self.pools)
        return tuple(pool for pool, count in enumerate(places) for _ in range(count))

"""What the loop is told once, at the start of a run."""

from dataclasses import dataclass

from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.gpu_groups import GpuGroups
from ekya.core.ids import StreamId
from ekya.core.profile import FamilyCost, Profiler
from ekya.core.speed import LINEAR, SpeedCurve
from ekya.core.view import Objective
from ekya.placement.pack import Packing
from ekya.profiling.gate import ROLL_BACK_MARGIN, SERVE_MARGIN


@dataclass(frozen=True, slots=True)
class StreamTerms:
    """What one stream was promised; see ``StreamView`` for what they mean."""

    stream: StreamId
    weight: float = 1.0
    max_age_us: int | None = None


@dataclass(frozen=True, slots=True)
class StreamHome:
    """The GPU on which a stream's processes stay, counted from 0."""

    stream: StreamId
    gpu: int


@dataclass(frozen=True, slots=True)
class LoopOptions:
    """The run's constants.

    Attributes:
        windows: how many; None goes on until every stream has ended.
        capacity_milli: all GPUs together.
        quantum_milli, steal_milli, min_accuracy: δ, Δ and a_MIN.
        preparation_share_milli: held by labelling and profiling while they last.
        preparation_us: the longest that they may take.
        prepared_streams: how many streams are labelled and profiled in a window; None for all.
        checkpoint_delay_us: how long a retraining stands still for a checkpoint.
        retrain_configs, inference_configs: Γ without ∅, and Λ.
        family_costs: one per family of Γ.
        training_speed, inference_speed: speed of a job at a share.
        share_step_milli: what the share backend can enforce.
        training_groups: in which training has multiprocessors of its own; None where it has none.
        objective: what is maximised.
        terms: of the streams that have any but the usual ones, sorted by id.
        packing: how shares come to stand on GPUs.
        homes: of all streams, where their processes cannot change to another GPU; empty where they can.
        profiler: how γ are micro-profiled.
        last_join_us: no stream is added after this moment of the run.
        serve_margin: how much worse than those that serve new weights may measure, and serve all the same.
        roll_back_margin: how much worse than those before them they may do in the window they have served in.
    """

    window_us: int
    windows: int | None
    capacity_milli: int
    quantum_milli: int
    steal_milli: int
    min_accuracy: float
    preparation_share_milli: int
    preparation_us: int
    checkpoint_delay_us: int
    retrain_configs: tuple[RetrainConfig, ...]
    inference_configs: tuple[InferenceConfig, ...]
    family_costs: tuple[FamilyCost, ...]
    share_step_milli: int = 1
    packing: Packing = Packing.POOL
    training_speed: SpeedCurve = LINEAR
    inference_speed: SpeedCurve = LINEAR
    seed: int = 0
    objective: Objective = Objective.MEAN
    terms: tuple[StreamTerms, ...] = ()
    homes: tuple[StreamHome, ...] = ()
    profiler: Profiler = Profiler.EKYA
    last_join_us: int = 0
    training_groups: GpuGroups | None = None
    serve_margin: float = SERVE_MARGIN
    roll_back_margin: float = ROLL_BACK_MARGIN
    prepared_streams: int | None = None

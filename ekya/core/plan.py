"""What a scheduler answers: shares, γ and λ per stream, in phases, with reasons."""

from dataclasses import dataclass

from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.elsewhere import Elsewhere
from ekya.core.ids import StreamId


@dataclass(frozen=True, slots=True)
class Assignment:
    """What one stream gets in one phase.

    Attributes:
        stream: who gets it.
        retrain: γ to run, or None for no retraining (∅ in the paper).
        retrain_share_milli: share of the retraining; 0 without one, and 0 pauses a running one.
        inference: λ.
        inference_share_milli: share of the inference.
        below_min: no λ reaches a_MIN at this share.
        reason: one sentence that an operator can read.
        too_old: results get older than the stream's limit allows at this share.
        retrain_gpu, inference_gpu: index of the GPU that the job stands on, from 0 on; None where it holds
            no share, and where the GPUs are one pool.
        elsewhere: how the weights of ``retrain`` come without a share; None where they are trained here.
    """

    stream: StreamId
    retrain: RetrainConfig | None
    retrain_share_milli: int
    inference: InferenceConfig
    inference_share_milli: int
    below_min: bool
    reason: str
    too_old: bool = False
    retrain_gpu: int | None = None
    inference_gpu: int | None = None
    elsewhere: Elsewhere | None = None


@dataclass(frozen=True, slots=True)
class Phase:
    """Assignments that hold until a retraining completes, or the window ends; sorted by stream id."""

    assignments: tuple[Assignment, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The first phase is executed; the others are forecast and are planned again in their time.

    Attributes:
        phases: at least one.
        expected_accuracy: the objective's value for these phases, in [0, 1].
        rounding_cost: what the first phase lost of the objective, were it held to the window's end, when its
            shares became those that can be granted; below 0 where what was left over brought more than
            rounding took. 0 for a plan that nobody has rounded yet.
        epoch: number of the plan in its run, from 1 on; 0 for one that is not carried out, and in journals
            that are older than these numbers.
    """

    phases: tuple[Phase, ...]
    expected_accuracy: float
    rounding_cost: float = 0.0
    epoch: int = 0

"""A scheduler's plan: shares, γ and λ per stream, in phases, with reasons."""

from dataclasses import dataclass

from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.units import StreamId
from ekya.core.weights import Elsewhere


@dataclass(frozen=True, slots=True)
class Assignment:
    """Shares and configurations of one stream in one phase.

    Attributes:
        stream: the stream.
        retrain: γ to run, or None for no retraining (∅ in the paper).
        retrain_share_milli: share of the retraining; 0 without one, and 0 pauses a running one.
        inference: λ.
        inference_share_milli: share of the inference.
        below_min: no λ reaches a_MIN at this share.
        reason: one sentence that an operator can read.
        too_old: results get older than the stream's limit allows at this share.
        retrain_gpu, inference_gpu: index of the job's GPU, from 0; None where it holds no share, and where
            the GPUs are one pool.
        elsewhere: arrival of the weights of ``retrain`` without a share; None where they are trained here.
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
    """Plan of a window. The first phase is executed; the others are a forecast, and are planned anew later.

    Attributes:
        phases: at least one.
        expected_accuracy: the objective's value for these phases, in [0, 1].
        rounding_cost: loss of the objective by rounding the first phase to shares that can be granted, if
            that phase were kept to the window's end; negative where distributing the remainder gained more
            than rounding lost. 0 before rounding.
        epoch: number of the plan in its run, from 1; 0 for one that is not carried out, and in journals
            that are older than these numbers.
    """

    phases: tuple[Phase, ...]
    expected_accuracy: float
    rounding_cost: float = 0.0
    epoch: int = 0

"""PickConfigs (paper Algorithm 2) for one stream: the best γ and λ at given shares.

The two choices do not disturb each other: λ depends on the inference share and the current accuracy,
and the best γ is the same under every λ because the objective is their product. So each is worked out
once a share and remembered, which is what makes a thief's step cost two look-ups.
"""

from dataclasses import dataclass

from ekya.core.units import FULL_GPU_MILLI
from ekya.core.view import InferenceOption, RetrainOption, StreamView, WindowView
from ekya.scheduling.objective import analysed_part, completion_us, mean_after_retraining

SAME = 1e-12
"""Values closer than this are equal: a choice must not hang on the last bit of a sum."""


@dataclass(frozen=True, slots=True)
class InferenceChoice:
    """λ at a share.

    Attributes:
        option: the choice.
        part: what it leaves of the model's accuracy, in [0, 1].
        below_min: the pool of Algorithm 2 was empty.
    """

    option: InferenceOption
    part: float
    below_min: bool


@dataclass(frozen=True, slots=True)
class RetrainChoice:
    """γ at a share.

    Attributes:
        option: the choice; None is ∅.
        serving: mean accuracy of the serving model over the rest of the window.
        completes_us: when it is done, if that is before the window's end.
    """

    option: RetrainOption | None
    serving: float
    completes_us: int | None


def pick_inference(view: WindowView, stream: StreamView, share_milli: int) -> InferenceChoice:
    """Lines 3 and 4: the most accurate λ that keeps up at this share and reaches a_MIN.

    Where λ keep up but none reaches a_MIN, the most accurate of them is taken, for a cheaper one
    would only lower an accuracy that is poor already. Where none keeps up, the cheapest is taken
    and frames drop. Both are flagged ``below_min``.
    """
    usable = min(share_milli, FULL_GPU_MILLI)
    fitting = [o for o in stream.inference_options if o.share_needed_milli <= usable]
    if not fitting:
        cheapest = min(
            stream.inference_options, key=lambda o: (o.share_needed_milli, -o.relative_accuracy, o.config)
        )
        return InferenceChoice(cheapest, analysed_part(cheapest, usable), below_min=True)
    best = min(fitting, key=lambda o: (-o.relative_accuracy, o.share_needed_milli, o.config))
    reaches = _reaches(view, stream, best)
    return InferenceChoice(best, analysed_part(best, usable), below_min=not reaches)


def pick_retraining(view: WindowView, stream: StreamView, share_milli: int) -> RetrainChoice:
    """Lines 5 to 11: the γ with the highest mean accuracy until the window's end, ∅ included.

    A running retraining keeps its γ (paper §5), even where it gains nothing. Equal gains go to the
    γ with fewer GPU-seconds.
    """
    speed = view.training_speed.speed(share_milli)
    if stream.running is not None:
        return _retrain_choice(view, stream, stream.running.option, speed)
    best: RetrainOption | None = None
    best_serving = stream.accuracy
    for option in sorted(stream.retrain_options, key=lambda o: (o.gpu_s, o.config)):
        serving = mean_after_retraining(view, stream.accuracy, option, speed)
        if serving > best_serving + SAME:
            best, best_serving = option, serving
    return _retrain_choice(view, stream, best, speed)


def inference_floor_milli(view: WindowView, stream: StreamView) -> int | None:
    """The smallest share, in multiples of δ, at which a_MIN is reached; None if no share does."""
    needed = [o.share_needed_milli for o in stream.inference_options if _reaches(view, stream, o)]
    if not needed:
        return None
    floor = -(-max(0, min(needed)) // view.quantum_milli) * view.quantum_milli
    return floor if floor <= FULL_GPU_MILLI else None


class StreamChoices:
    """Both choices of one stream of one view, worked out when first asked for."""

    def __init__(self, view: WindowView, stream: StreamView) -> None:
        self.view = view
        self.stream = stream
        self._inference: dict[int, InferenceChoice] = {}
        self._retraining: dict[int, RetrainChoice] = {}

    @property
    def has_retraining(self) -> bool:
        """Whether there is a retraining to give a share to."""
        return self.stream.running is not None or bool(self.stream.retrain_options)

    def inference(self, share_milli: int) -> InferenceChoice:
        """λ at a share."""
        choice = self._inference.get(share_milli)
        if choice is None:
            choice = self._inference[share_milli] = pick_inference(self.view, self.stream, share_milli)
        return choice

    def retraining(self, share_milli: int) -> RetrainChoice:
        """γ at a share."""
        choice = self._retraining.get(share_milli)
        if choice is None:
            choice = self._retraining[share_milli] = pick_retraining(self.view, self.stream, share_milli)
        return choice

    def value(self, retrain_share_milli: int, inference_share_milli: int) -> float:
        """The stream's part of the objective at the best choices for these shares."""
        return self.retraining(retrain_share_milli).serving * self.inference(inference_share_milli).part


def _reaches(view: WindowView, stream: StreamView, option: InferenceOption) -> bool:
    return stream.accuracy * option.relative_accuracy >= view.min_accuracy - SAME


def fixed_retraining(
    view: WindowView, stream: StreamView, option: RetrainOption | None, share_milli: int
) -> RetrainChoice:
    """What a γ that somebody else chose comes to at a share."""
    return _retrain_choice(view, stream, option, view.training_speed.speed(share_milli))


def _retrain_choice(
    view: WindowView, stream: StreamView, option: RetrainOption | None, speed: float
) -> RetrainChoice:
    if option is None:
        return RetrainChoice(None, stream.accuracy, None)
    done_us = completion_us(view.now_us, option.gpu_s, speed)
    in_time = done_us if done_us is not None and done_us < view.window_end_us else None
    return RetrainChoice(option, mean_after_retraining(view, stream.accuracy, option, speed), in_time)

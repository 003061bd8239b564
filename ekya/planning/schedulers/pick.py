"""PickConfigs (paper Algorithm 2) for one stream: the best γ and λ at given shares.

The two choices are independent: λ depends on the inference share and the current accuracy, and the best γ is
the same under every λ because the objective is their product. So each is computed once per share and cached,
which reduces a thief's step to two look-ups.
"""

from dataclasses import dataclass, replace

from ekya.core.configs import InferenceConfig
from ekya.core.units import FULL_GPU_MILLI
from ekya.core.view import InferenceOption, RetrainOption, StreamView, WindowView
from ekya.planning.schedulers.objective import analysed_part, completion_us, mean_after_retraining

SAME = 1e-12
"""Values closer than this are equal, so that rounding errors decide no choice."""


WATCHING_AGE_US = 2_000_000
"""Age limit for a λ of one frame a second: one second until the next frame, and at most one to analyse it."""


@dataclass(frozen=True, slots=True)
class InferenceChoice:
    """λ at a share.

    Attributes:
        option: the choice.
        part: part of the model's accuracy that it leaves, in [0, 1].
        below_min: whether a_MIN is not reached.
        too_old: whether the stream's latency limit is not kept.
    """

    option: InferenceOption
    part: float
    below_min: bool
    too_old: bool = False


@dataclass(frozen=True, slots=True)
class RetrainChoice:
    """γ at a share.

    Attributes:
        option: the choice; None is ∅.
        serving: mean accuracy of the serving model over the rest of the window.
        completes_us: completion time, if that is before the window's end.
    """

    option: RetrainOption | None
    serving: float
    completes_us: int | None


def pick_inference(view: WindowView, stream: StreamView, share_milli: int) -> InferenceChoice:
    """Lines 3 and 4: returns the most accurate λ that keeps up, keeps the latency limit and reaches a_MIN.

    Where λ keep up but none of them keeps the latency limit, or none that does reaches a_MIN, the most
    accurate that is left is taken, for another would only lower an accuracy that is poor already. Where none
    keeps up, the cheapest is taken and frames drop. The choice is then flagged ``too_old`` and
    ``below_min``.
    """
    usable = min(share_milli, FULL_GPU_MILLI)
    fitting = [o for o in stream.inference_options if o.share_needed_milli <= usable]
    if not fitting:
        cheapest = min(
            stream.inference_options, key=lambda o: (o.share_needed_milli, -o.relative_accuracy, o.config)
        )
        limited = stream.max_age_us is not None
        return InferenceChoice(
            cheapest, analysed_part(cheapest, usable, view.inference_speed), below_min=True, too_old=limited
        )
    pool = [o for o in fitting if is_young(stream, o)] or fitting
    best = min(pool, key=_inference_rank)
    return InferenceChoice(
        best,
        analysed_part(best, usable, view.inference_speed),
        below_min=not _reaches(view, stream, best),
        too_old=not is_young(stream, best),
    )


def pick_retraining(view: WindowView, stream: StreamView, share_milli: int) -> RetrainChoice:
    """Lines 5 to 11: returns the γ with the highest mean accuracy until the window's end, ∅ included.

    A running retraining keeps its γ (paper §5), even where it gains nothing. Ties go to the γ with fewer
    GPU-seconds.
    """
    speed = view.training_speed.speed(share_milli)
    if stream.running is not None:
        return _retrain_choice(view, stream, stream.running.option, speed)
    best: RetrainOption | None = None
    best_serving = stream.accuracy
    for option in retraining_order(stream):
        serving = mean_after_retraining(view, stream.accuracy, option, speed)
        if serving > best_serving + SAME:
            best, best_serving = option, serving
    return _retrain_choice(view, stream, best, speed)


def retraining_order(stream: StreamView) -> list[RetrainOption]:
    """Returns γ in the order in which they are tried: of equal gains the first is taken.

    γ are left out if an earlier one, or the serving model, is as accurate; but one whose checkpoints serve
    may be worth more than one that is done sooner.
    """
    kept: list[RetrainOption] = []
    reached = stream.accuracy
    for option in sorted(stream.retrain_options, key=lambda o: (o.gpu_s, o.config)):
        if option.accuracy_after > (stream.accuracy if option.early_part > 0.0 else reached):
            kept.append(option)
            reached = max(reached, option.accuracy_after)
    return kept


def inference_order(stream: StreamView) -> list[InferenceOption]:
    """Returns λ from the best to the worst; the first one in the pool is taken."""
    return sorted(stream.inference_options, key=_inference_rank)


def is_young(stream: StreamView, option: InferenceOption) -> bool:
    """Returns whether a λ that keeps up keeps the stream's latency limit."""
    return stream.max_age_us is None or option.age_us <= stream.max_age_us


def inference_floor_milli(view: WindowView, stream: StreamView) -> int | None:
    """Returns the smallest share, in multiples of δ, from which on the stream's constraints are kept.

    The constraints are a_MIN and the latency limit together; where no share keeps both, the limit alone, and
    where none keeps that, a_MIN alone. None if no share keeps any.
    """
    reaching = [o for o in stream.inference_options if _reaches(view, stream, o)]
    if stream.max_age_us is None:
        return _least_milli(view, reaching)
    both = _least_milli(view, [o for o in reaching if is_young(stream, o)])
    if both is not None:
        return both
    young = _least_milli(view, [o for o in stream.inference_options if is_young(stream, o)])
    return young if young is not None else _least_milli(view, reaching)


def watching_milli(view: WindowView, stream: StreamView) -> int:
    """Returns the share, in multiples of δ, of the cheapest λ that still watches the stream; 0 without ages.

    The results of such a λ get no older than ``WATCHING_AGE_US``; where no λ is that young, the cheapest is
    taken. The share keeps up with crowded frames too: at one frame a second a missed frame cannot be made up
    for.
    """
    aged = [
        replace(o, share_needed_milli=max(o.share_needed_milli, o.ample_milli))
        for o in stream.inference_options
        if o.age_us > 0
    ]
    return _least_milli(view, [o for o in aged if o.age_us <= WATCHING_AGE_US] or aged) or 0


def _least_milli(view: WindowView, options: list[InferenceOption]) -> int | None:
    """Returns the smallest multiple of δ at which one of these keeps up; None if one GPU is not enough."""
    needed = min((o.share_needed_milli for o in options), default=FULL_GPU_MILLI + 1)
    floor = -(-max(0, needed) // view.quantum_milli) * view.quantum_milli
    return floor if floor <= FULL_GPU_MILLI else None


class StreamChoices:
    """Choices for one stream of one view, computed on first use and cached."""

    def __init__(self, view: WindowView, stream: StreamView) -> None:
        self.view = view
        self.stream = stream
        self._inference: dict[int, InferenceChoice] = {}
        self._retraining: dict[int, RetrainChoice] = {}

    @property
    def has_retraining(self) -> bool:
        """True if there is a retraining to give a share to."""
        return self.stream.running is not None or bool(self.stream.retrain_options)

    def inference(self, share_milli: int) -> InferenceChoice:
        """Returns λ at a share."""
        choice = self._inference.get(share_milli)
        if choice is None:
            choice = self._inference[share_milli] = pick_inference(self.view, self.stream, share_milli)
        return choice

    def retraining(self, share_milli: int) -> RetrainChoice:
        """Returns γ at a share."""
        choice = self._retraining.get(share_milli)
        if choice is None:
            choice = self._retraining[share_milli] = pick_retraining(self.view, self.stream, share_milli)
        return choice

    def value(self, retrain_share_milli: int, inference_share_milli: int) -> float:
        """Returns the stream's part of the objective at the best choices for these shares."""
        return self.retraining(retrain_share_milli).serving * self.inference(inference_share_milli).part


def _inference_rank(option: InferenceOption) -> tuple[float, int, InferenceConfig]:
    return (-option.relative_accuracy, option.share_needed_milli, option.config)


def _reaches(view: WindowView, stream: StreamView, option: InferenceOption) -> bool:
    return stream.accuracy * option.relative_accuracy >= view.min_accuracy - SAME


def fixed_retraining(
    view: WindowView, stream: StreamView, option: RetrainOption | None, share_milli: int
) -> RetrainChoice:
    """Returns what a given γ brings at a share."""
    return _retrain_choice(view, stream, option, view.training_speed.speed(share_milli))


def _retrain_choice(
    view: WindowView, stream: StreamView, option: RetrainOption | None, speed: float
) -> RetrainChoice:
    if option is None:
        return RetrainChoice(None, stream.accuracy, None)
    done_us = completion_us(view.now_us, option.gpu_s, speed)
    in_time = done_us if done_us is not None and done_us < view.window_end_us else None
    return RetrainChoice(option, mean_after_retraining(view, stream.accuracy, option, speed), in_time)

"""PickConfigs (paper Algorithm 2) for one stream: the best γ and λ at given shares.

The two choices are independent: λ depends on the inference share and the current accuracy, and the best γ is
the same under every λ because the objective is their product. So each is computed once per share and cached,
which reduces a step of the thief to two table reads. Only under a λ of the golden detector is every γ worth
the same, nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

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
        part: part of its full accuracy that it leaves, in [0, 1].
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
        cheapest = min(stream.inference_options, key=cheapest_rank)
        limited = stream.max_age_us is not None
        return InferenceChoice(
            cheapest, analysed_part(cheapest, usable, view.inference_speed), below_min=True, too_old=limited
        )
    pool = [o for o in fitting if is_young(stream, o)] or fitting
    best = _most_accurate(pool, stream.accuracy)
    return InferenceChoice(
        best,
        analysed_part(best, usable, view.inference_speed),
        below_min=best.accuracy_with(stream.accuracy) < view.min_accuracy - SAME,
        too_old=not is_young(stream, best),
    )


def pick_retraining(view: WindowView, stream: StreamView, share_milli: int) -> RetrainChoice:
    """Lines 5 to 11: returns the γ with the highest mean accuracy until the window's end, ∅ included.

    A running retraining keeps its γ (paper §5), even where it gains nothing. Ties go to the γ with fewer
    GPU-seconds.
    """
    if stream.running is not None:
        return fixed_retraining(view, stream, stream.running.option, share_milli)
    speed = view.training_speed.speed_at(share_milli)
    best: RetrainOption | None = None
    best_serving = stream.accuracy
    for option in retraining_order(stream):
        serving = mean_after_retraining(view, stream.accuracy, option, speed)
        if serving > best_serving + SAME:
            best, best_serving = option, serving
    return fixed_retraining(view, stream, best, share_milli)


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


def is_young(stream: StreamView, option: InferenceOption) -> bool:
    """Returns whether a λ that keeps up keeps the stream's latency limit."""
    return stream.max_age_us is None or option.age_us <= stream.max_age_us


def watching_milli(view: WindowView, stream: StreamView) -> int:
    """Returns the share, in multiples of δ, of the cheapest λ that still watches the stream; 0 without ages.

    The results of such a λ get no older than ``WATCHING_AGE_US``; where no λ is that young, the cheapest is
    taken. The share keeps up with crowded frames too: at one frame a second a missed frame cannot be made up
    for.
    """
    aged = [
        (o.age_us, max(o.share_needed_milli, o.ample_milli)) for o in stream.inference_options if o.age_us > 0
    ]
    watching = [needed_milli for age_us, needed_milli in aged if age_us <= WATCHING_AGE_US]
    needed_milli = min(watching or [needed_milli for _, needed_milli in aged], default=0)
    floor = -(-max(0, needed_milli) // view.quantum_milli) * view.quantum_milli
    return floor if floor <= FULL_GPU_MILLI else 0


class StreamChoices:
    """Choices for one stream of one view, computed on first use and cached."""

    def __init__(self, view: WindowView, stream: StreamView) -> None:
        self.view = view
        self.stream = stream
        # Plain dictionaries: making a functools.cache for every stream takes longer than its choices.
        self._inference: dict[int, InferenceChoice] = {}
        self._retraining: dict[int, RetrainChoice] = {}

    @property
    def has_retraining(self) -> bool:
        """True if there is a retraining to give a share to."""
        return self.stream.running is not None or bool(self.stream.retrain_options)

    def choose_inference(self, share_milli: int) -> InferenceChoice:
        """Returns λ at a share."""
        if share_milli not in self._inference:
            self._inference[share_milli] = pick_inference(self.view, self.stream, share_milli)
        return self._inference[share_milli]

    def choose_retraining(self, share_milli: int) -> RetrainChoice:
        """Returns γ at a share."""
        if share_milli not in self._retraining:
            self._retraining[share_milli] = pick_retraining(self.view, self.stream, share_milli)
        return self._retraining[share_milli]


def _most_accurate(options: Sequence[InferenceOption], accuracy: float) -> InferenceOption:
    """Returns the most accurate of λ that keep up, with a serving model of this accuracy."""
    best = min(options, key=lambda option: (option.config.by_golden, *inference_rank(option)))
    golden = min((o for o in options if o.config.by_golden), key=inference_rank, default=best)
    return golden if golden.accuracy_with(accuracy) > best.accuracy_with(accuracy) + SAME else best


def inference_rank(option: InferenceOption) -> tuple[float, int, InferenceConfig]:
    """Returns a key that sorts λ that keep up, of one detector, from the best to the worst."""
    return (-option.relative_accuracy, option.share_needed_milli, option.config)


def cheapest_rank(option: InferenceOption) -> tuple[int, float, InferenceConfig]:
    """Returns a key that sorts λ from the cheapest to the most expensive."""
    return (option.share_needed_milli, -option.relative_accuracy, option.config)


def fixed_retraining(
    view: WindowView, stream: StreamView, option: RetrainOption | None, share_milli: int
) -> RetrainChoice:
    """Returns what a given γ brings at a share."""
    if option is None:
        return RetrainChoice(None, stream.accuracy, None)
    speed = view.training_speed.speed_at(share_milli)
    done_us = completion_us(view.now_us, option.gpu_s, speed)
    in_time = done_us if done_us is not None and done_us < view.window_end_us else None
    return RetrainChoice(option, mean_after_retraining(view, stream.accuracy, option, speed), in_time)

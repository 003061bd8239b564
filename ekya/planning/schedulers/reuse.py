"""The baseline that serves an old model again instead of retraining (paper §6.5)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ekya.core.plan import Assignment, Plan
from ekya.core.view import RetrainOption, StreamView, WindowView
from ekya.core.weights import CachedModel, Elsewhere
from ekya.planning.schedulers.allocation import Job, JobKind, choices_by_stream, even_inference
from ekya.planning.schedulers.pick import StreamChoices, fixed_retraining
from ekya.planning.schedulers.reasons import assignment, plan_of
from ekya.planning.schedulers.scheduler import Needs


@dataclass(frozen=True, slots=True)
class Reuse:
    """Serves in every window the kept model that was trained on the most similar mix of classes.

    All GPUs go to inference, in equal shares, since nothing is retrained.
    """

    @property
    def name(self) -> str:
        """Name in the registry."""
        return "reuse"

    @property
    def needs(self) -> Needs:
        """Preparation that the scheduler needs; labels give the mix of classes."""
        return Needs(
            labels=True,
            inference_profile=True,
            micro_profile=False,
            fixed_gamma=True,
            fixed_shares=True,
            kept_models=True,
        )

    def plan(self, view: WindowView) -> Plan:
        """Returns one phase; λ is the most accurate that keeps up at its share."""
        choices = choices_by_stream(view)
        shares = even_inference(view, choices)
        return plan_of(
            view,
            [
                _assignment(choice, shares[Job(stream, JobKind.INFERENCE)])
                for stream, choice in choices.items()
            ],
        )


def closest(histogram: Sequence[int], cached: Sequence[CachedModel]) -> CachedModel | None:
    """Returns the kept model whose labels had the most similar mix of classes.

    Similar is a small Euclidean distance between the class frequencies (§6.5). Ties go to the youngest
    model, and within one window to the γ that sorts last. None where nothing is kept, or nothing was
    labelled.

    Args:
        histogram: labels of each class today; classes missing at its end count 0.
        cached: kept models, in any order.
    """
    if sum(histogram) == 0:
        return None
    today = _frequencies(histogram)
    return min(
        (model for model in cached if sum(model.histogram) > 0),
        key=lambda model: (
            round(_distance(today, _frequencies(model.histogram)), 12),
            -model.trained_in,
            _last_first(model),
        ),
        default=None,
    )


def _last_first(model: CachedModel) -> tuple[float, ...]:
    gamma = model.config
    return (
        -gamma.epochs,
        -gamma.batch_size,
        -gamma.head_width,
        -gamma.trainable_blocks,
        -gamma.data_fraction,
    )


def _frequencies(histogram: Sequence[int]) -> list[float]:
    total = sum(histogram)
    return [count / total for count in histogram]


def _distance(one: Sequence[float], other: Sequence[float]) -> float:
    longer = max(len(one), len(other))
    padded = ([*mix, *[0.0] * (longer - len(mix))] for mix in (one, other))
    return math.dist(*padded)


def _assignment(choice: StreamChoices, share_milli: int) -> Assignment:
    option, elsewhere = _reused(choice.view, choice.stream)
    return assignment(
        choice,
        fixed_retraining(choice.view, choice.stream, option, 0),
        0,
        choice.inference(share_milli),
        share_milli,
        forecast=False,
        why_not="nothing is kept that could serve again",
        elsewhere=elsewhere,
    )


def _reused(view: WindowView, stream: StreamView) -> tuple[RetrainOption | None, Elsewhere | None]:
    if stream.running is not None:
        return stream.running.option, stream.running.elsewhere
    model = closest(stream.histogram, stream.cached)
    if model is None:
        return None, None
    return RetrainOption(model.config, stream.accuracy, 0.0), Elsewhere(view.now_us, model.trained_in)

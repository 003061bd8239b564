"""The baseline that serves an old model again instead of retraining (paper §6.5)."""

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import ClassVar

from ekya.core.plan import Plan
from ekya.core.view import RetrainOption, StreamView, WindowView
from ekya.core.weights import CachedModel, Elsewhere
from ekya.planning.schedulers.reasons import inference_plan
from ekya.planning.schedulers.scheduler import Needs


@dataclass(frozen=True, slots=True)
class Reuse:
    """Serves in every window the kept model that was trained on the most similar mix of classes.

    All GPUs go to inference, in equal shares, since nothing is retrained.
    """

    name: ClassVar[str] = "reuse"
    needs: ClassVar[Needs] = Needs(
        labels=True,
        inference_profile=True,
        micro_profile=False,
        fixed_gamma=True,
        fixed_shares=True,
        kept_models=True,
    )

    def plan(self, view: WindowView) -> Plan:
        """Returns one phase; λ is the most accurate that keeps up at its share."""

        def weights(stream: StreamView) -> tuple[RetrainOption | None, Elsewhere | None]:
            if stream.running is not None:
                return stream.running.option, stream.running.elsewhere
            model = closest_model(stream.histogram, stream.cached)
            if model is None:
                return None, None
            return RetrainOption(model.config, stream.accuracy, 0.0), Elsewhere(view.now_us, model.trained_in)

        return inference_plan(view, weights, why_not="nothing is kept that could serve again")


def closest_model(histogram: Sequence[int], cached: Sequence[CachedModel]) -> CachedModel | None:
    """Returns the kept model whose labels had the most similar mix of classes.

    Similar is a small Euclidean distance between the class frequencies (§6.5). Ties go to the youngest
    model, and within one window to the γ that sorts last. None where nothing is kept, or nothing was
    labelled.

    Args:
        histogram: labels of each class today; classes missing at its end count 0.
        cached: kept models, in any order.
    """
    known = [model for model in cached if sum(model.histogram) > 0]
    if sum(histogram) == 0 or not known:
        return None
    width = max(len(histogram), *(len(model.histogram) for model in known))
    today = _frequencies(histogram, width)

    def rank(model: CachedModel) -> tuple[float, ...]:
        distance = math.dist(today, _frequencies(model.histogram, width))
        return round(distance, 12), -model.trained_in, *(-value for value in astuple(model.config))

    return min(known, key=rank)


def _frequencies(histogram: Sequence[int], width: int) -> list[float]:
    """Returns the part of each of ``width`` classes."""
    total = sum(histogram)
    return [*(count / total for count in histogram), *[0.0] * (width - len(histogram))]

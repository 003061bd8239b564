"""Selects the γ that are worth micro-profiling (paper §4.3, pruning out bad configurations).

Definition of a γ's distance from the Pareto front: let each γ have its mean gain and its mean GPU-seconds
over the remembered windows, without those in which no γ gained, since they show no difference. The front is
the γ that no other one beats in one of the two and matches in the other. For a γ c and one f on the front,
in units in which the whole spread is 1,

    worse_gain = max(0, gain_f − gain_c) / max(spread of gains, LEAST_GAIN_SPREAD)
    worse_cost = max(0, ln(gpu_s_c / gpu_s_f)) / max(spread of ln gpu_s, ln 2)

and the distance of c is the least of sqrt(worse_gain² + worse_cost²) over the front: how far c must move, by
gaining more or costing less, to be as good as some γ on it. It is 0 on the front. Costs are compared by
ratio, since they differ by up to 200 times (paper §3.1).
"""

import math
from collections.abc import Iterable, Mapping
from statistics import fmean

from ekya.core.configs import RetrainConfig
from ekya.core.profile import Family, family_of
from ekya.core.units import StreamId
from ekya.planning.profiling.history import Observation, ProfileHistory

MAX_DISTANCE = 0.3
"""A γ further than this from the front is pruned, in parts of the whole spread."""

RETRY_EVERY = 4
"""Each pruned family is profiled again once in this many windows."""

LEAST_GAIN_SPREAD = 0.05
"""Differences in gain below this are noise and are not scaled up to 1."""

ENOUGH_ACCURACY = 0.95
"""A stream whose model reaches this on its newest labels is not micro-profiled."""


def select_families(
    configs: Iterable[RetrainConfig], history: ProfileHistory, window: int
) -> tuple[Family, ...]:
    """Returns the families to micro-profile in a window, cheapest first.

    A family stays if any of its γ is near the front or was never observed. The pruned ones come back in
    turn: the i-th of all families, in their order, in windows w with (w + i) divisible by ``RETRY_EVERY``.
    The result is never empty where there are configurations.

    Args:
        configs: Γ.
        history: results of Γ in earlier windows.
        window: index of the window to be profiled.
    """
    offered = sorted(set(configs))
    families = sorted({family_of(config) for config in offered}, key=_structural_cost)
    distances = pareto_distances(offered, history)
    near = {
        family_of(config)
        for config in offered
        if config not in distances or distances[config] <= MAX_DISTANCE
    }
    chosen = [
        family
        for index, family in enumerate(families)
        if family in near or (window + index) % RETRY_EVERY == 0
    ]
    measured = _cost_per_pass(history.observations)
    if all(family in measured for family in chosen):
        chosen.sort(key=lambda family: (measured[family], _structural_cost(family)))
    return tuple(chosen)


def in_need(accuracies: Mapping[StreamId, float]) -> tuple[StreamId, ...]:
    """Returns the streams that are worth profiling, worst first: there is most to gain.

    A model with ``ENOUGH_ACCURACY`` on the newest labels is left as it is; the error of a validation part of
    some twenty crops is larger than what it could still gain.
    """
    needy = [stream for stream, accuracy in accuracies.items() if accuracy < ENOUGH_ACCURACY]
    return tuple(sorted(needy, key=lambda stream: (accuracies[stream], stream)))


def pareto_distances(
    configs: Iterable[RetrainConfig], history: ProfileHistory
) -> Mapping[RetrainConfig, float]:
    """Returns the distance from the Pareto front of each γ of ``configs`` that was observed."""
    wanted = set(configs)
    # Where nothing had drifted, the cheapest γ looks best of all: only windows in which some γ gained count.
    gained = {o.window for o in history.observations if o.gain >= LEAST_GAIN_SPREAD}
    by_config: dict[RetrainConfig, list[Observation]] = {}
    for observation in history.observations:
        if observation.config in wanted and observation.window in gained:
            by_config.setdefault(observation.config, []).append(observation)
    points = {
        config: (fmean(o.gain for o in seen), math.log(max(1e-9, fmean(o.gpu_s for o in seen))))
        for config, seen in by_config.items()
    }
    if not points:
        return {}
    gains = [gain for gain, _ in points.values()]
    costs = [cost for _, cost in points.values()]
    gain_unit = max(max(gains) - min(gains), LEAST_GAIN_SPREAD)
    cost_unit = max(max(costs) - min(costs), math.log(2))
    front = [point for point in points.values() if not any(_beats(other, point) for other in points.values())]
    return {
        config: min(
            math.hypot(max(0.0, best_gain - gain) / gain_unit, max(0.0, cost - best_cost) / cost_unit)
            for best_gain, best_cost in front
        )
        for config, (gain, cost) in points.items()
    }


def _beats(a: tuple[float, float], b: tuple[float, float]) -> bool:
    return a != b and a[0] >= b[0] and a[1] <= b[1]


def _structural_cost(family: Family) -> tuple[int, int, int]:
    """Returns an order of cost for families not measured: fewer blocks, smaller head, larger batches."""
    return family.trainable_blocks, family.head_width, -family.batch_size


def _cost_per_pass(observations: Iterable[Observation]) -> dict[Family, float]:
    """Returns the GPU-seconds of one epoch over all data, by family."""
    costs: dict[Family, list[float]] = {}
    for o in observations:
        costs.setdefault(family_of(o.config), []).append(o.gpu_s / (o.config.epochs * o.config.data_fraction))
    return {family: fmean(values) for family, values in costs.items()}

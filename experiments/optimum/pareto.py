"""The two γ that the uniform baseline fixes, found on held-out streams (paper §6.1, Figure 3)."""

from collections.abc import Iterator, Sequence
from itertools import product

from optimum.problems import view_of

from ekya.core.configs import RetrainConfig
from ekya.core.trace import Trace
from ekya.core.view import RetrainOption
from ekya.planning.schedulers.baselines import Uniform
from ekya.planning.schedulers.scheduler import gamma_word

INFERENCE_PARTS_MILLI = (300, 500, 900)
"""Parts of a stream's share that the paper's uniform baselines give to inference (Figure 6, Table 3)."""

LOW_REACHES = 0.9
"""The cheap γ is the cheapest on the frontier with at least this part of the expensive one's accuracy."""


def mean_options(held_out: Sequence[Sequence[RetrainOption]]) -> tuple[RetrainOption, ...]:
    """Returns the mean result of each γ, sorted by γ.

    Args:
        held_out: results of each γ, for each held-out stream and window. A γ that was not measured
            everywhere is left out.

    Raises:
        ValueError: no γ was measured everywhere.
    """
    by_gamma = [{option.config: option for option in options} for options in held_out]
    common = set.intersection(*(set(one) for one in by_gamma)) if by_gamma else set()
    if not common:
        raise ValueError("no γ was measured on every held-out stream")
    return tuple(
        RetrainOption(
            config,
            sum(one[config].accuracy_after for one in by_gamma) / len(by_gamma),
            sum(one[config].gpu_s for one in by_gamma) / len(by_gamma),
        )
        for config in sorted(common)
    )


def pareto_frontier(held_out: Sequence[Sequence[RetrainOption]]) -> tuple[RetrainOption, ...]:
    """Returns the γ that no other beats in both accuracy and cost, from the cheapest on.

    Args, Raises: as ``mean_options``, whose means are compared.
    """
    means = mean_options(held_out)
    frontier: list[RetrainOption] = []
    for option in sorted(means, key=lambda o: (o.gpu_s, -o.accuracy_after, o.config)):
        if not frontier or option.accuracy_after > frontier[-1].accuracy_after:
            frontier.append(option)
    return tuple(frontier)


def pareto_points(held_out: Sequence[Sequence[RetrainOption]]) -> tuple[RetrainConfig, RetrainConfig]:
    """Returns the paper's Config 1 and Config 2: one with high and one with low resource usage.

    The paper says no more than that both lie on the frontier. Here Config 1 is its most accurate point, and
    Config 2 the cheapest that reaches ``LOW_REACHES`` of its accuracy: a cheaper one would be no realistic
    choice. The two are one γ where no cheaper one reaches that.

    Args, Raises: as ``pareto_frontier``.
    """
    frontier = pareto_frontier(held_out)
    high = frontier[-1]
    low = next(o for o in frontier if o.accuracy_after >= LOW_REACHES * high.accuracy_after)
    return high.config, low.config


def uniform_baselines(high: RetrainConfig, low: RetrainConfig) -> tuple[Uniform, ...]:
    """Returns the paper's uniform baselines: both γ with each part for inference."""
    return tuple(
        Uniform(inference_part_milli=part, fixed_gamma=gamma)
        for gamma, part in product((high, low), INFERENCE_PARTS_MILLI)
    )


def uniform_word(uniform: Uniform) -> str:
    """Returns the scheduler with its options in one word, as ``make_scheduler`` reads it."""
    gamma = f":gamma={gamma_word(uniform.fixed_gamma)}" if uniform.fixed_gamma else ""
    return f"uniform:inference={uniform.inference_part_milli}{gamma}"


def profiles(trace: Trace) -> Iterator[tuple[RetrainOption, ...]]:
    """Yields the outcome of every γ, for each window of each stream in which a retraining was recorded."""
    for window in range(1, trace.windows):
        for stream in view_of(trace, window, capacity_milli=1000).streams:
            if stream.retrain_options:
                yield stream.retrain_options

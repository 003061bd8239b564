"""Schedulers by name."""

from collections.abc import Callable, Collection
from types import MappingProxyType

from ekya.core.configs import RetrainConfig
from ekya.errors import UserError
from ekya.scheduling.cloud import Cloud
from ekya.scheduling.ekya import Ekya
from ekya.scheduling.exact import Exact
from ekya.scheduling.factors import FixedConfig, FixedRes
from ekya.scheduling.no_retrain import NoRetrain
from ekya.scheduling.oracle import Oracle
from ekya.scheduling.protocol import Scheduler, SchedulerOptions
from ekya.scheduling.reuse import Reuse
from ekya.scheduling.serial import Serial
from ekya.scheduling.spec import gamma_word, read_scheduler
from ekya.scheduling.thief import Thief
from ekya.scheduling.uniform import Uniform

SCHEDULERS: MappingProxyType[str, Callable[[SchedulerOptions], Scheduler]] = MappingProxyType(
    {
        "ekya": lambda _options: Ekya(),
        "serial": lambda _options: Serial(),
        "thief": lambda _options: Thief(),
        "exact": lambda _options: Exact(),
        "uniform": lambda options: Uniform(options.inference_part_milli, options.fixed_gamma),
        "fixed-res": lambda options: FixedRes(options.inference_part_milli),
        "fixed-config": lambda options: FixedConfig(options.inference_part_milli, options.fixed_gamma),
        "cloud": lambda options: Cloud(options.network, options.fixed_gamma),
        "reuse": lambda _options: Reuse(),
        "oracle": lambda _options: Oracle(),
        "no-retrain": lambda _options: NoRetrain(),
    }
)
"""Factory of every scheduler, by name."""

DEFAULT_SCHEDULER = "ekya"
"""Scheduler used where none is named."""

_OPTIONS = {
    "uniform": ("inference", "gamma"),
    "fixed-res": ("inference",),
    "fixed-config": ("inference", "gamma"),
    "cloud": ("up", "down", "order", "gamma"),
}
"""Options of each scheduler, as ``spec`` writes them; the others take none."""


def make_scheduler(
    text: str,
    options: SchedulerOptions | None = None,
    offered: Collection[RetrainConfig] | None = None,
) -> Scheduler:
    """Returns the scheduler of that name.

    Args:
        text: a name, or a name with options as ``spec`` reads them.
        options: instead of those in ``text``.
        offered: Γ, where it is available: a scheduler with a fixed γ outside Γ would never retrain.

    Raises:
        UserError: the scheduler is unknown, its options are invalid, or its γ is not in Γ.
    """
    try:
        name, written = read_scheduler(text, {name: _OPTIONS.get(name, ()) for name in SCHEDULERS})
    except ValueError as error:
        raise UserError(f"scheduler: {error}") from error
    chosen = options or written
    if offered is not None and chosen.fixed_gamma is not None and chosen.fixed_gamma not in offered:
        there = ", ".join(gamma_word(config) for config in sorted(offered))
        raise UserError(
            f"scheduler: gamma={gamma_word(chosen.fixed_gamma)} is not among the retraining configurations; "
            f"choose one of {there}"
        )
    return SCHEDULERS[name](chosen)

"""Schedulers by name, and their options in one word for the command line and the fleet file."""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from ekya.core.configs import RetrainConfig
from ekya.core.errors import UserError
from ekya.planning.schedulers.baselines import NoRetrain, Oracle, Uniform
from ekya.planning.schedulers.cloud import Cloud
from ekya.planning.schedulers.ekya import Ekya
from ekya.planning.schedulers.exact import Exact
from ekya.planning.schedulers.factors import FixedConfig, FixedRes
from ekya.planning.schedulers.network import LinkOrder
from ekya.planning.schedulers.reuse import Reuse
from ekya.planning.schedulers.scheduler import Scheduler, SchedulerOptions
from ekya.planning.schedulers.serial import Serial
from ekya.planning.schedulers.thief import Thief


@dataclass(frozen=True, slots=True)
class _Key:
    """One option.

    Attributes:
        form: form of its value, for messages.
        read: returns the options with this value; ValueError for an invalid value.
    """

    form: str
    read: Callable[[SchedulerOptions, str], SchedulerOptions]


def read_scheduler(text: str, keys: Mapping[str, tuple[str, ...]]) -> tuple[str, SchedulerOptions]:
    """Returns the name and the options.

    Args:
        text: the specification.
        keys: for each scheduler the options that it takes.

    Raises:
        ValueError: one sentence: the scheduler is unknown, it does not take an option, an option is
            repeated, or a value is invalid.
    """
    name, *rest = text.split(":")
    if name not in keys:
        raise ValueError(f"there is no {name!r}; choose one of {', '.join(sorted(keys))}")
    options = SchedulerOptions()
    seen: set[str] = set()
    for part in rest:
        key, _, value = part.partition("=")
        if key not in keys[name]:
            forms = ", ".join(f"{one}={_KEYS[one].form}" for one in keys[name])
            raise ValueError(
                f"{name} has no option {key!r}; " + (f"it takes {forms}" if forms else f"write {name} alone")
            )
        if key in seen:
            raise ValueError(f"{key} stands twice in {text!r}; keep one of them")
        seen.add(key)
        try:
            options = _KEYS[key].read(options, value)
        except ValueError:
            raise ValueError(f"{value!r} is no value for {key}; write {key}={_KEYS[key].form}") from None
    return name, options


def gamma_word(config: RetrainConfig) -> str:
    """Returns γ in the format of ``gamma=``."""
    return "/".join(
        str(value)
        for value in (
            config.epochs,
            config.batch_size,
            config.head_width,
            config.trainable_blocks,
            config.data_fraction,
        )
    )


def uniform_word(options: SchedulerOptions) -> str:
    """Returns ``uniform`` with its part for inference and its γ, in the format of ``read_scheduler``."""
    gamma = f":gamma={gamma_word(options.fixed_gamma)}" if options.fixed_gamma else ""
    return f"uniform:inference={options.inference_part_milli}{gamma}"


def _above_zero(word: str) -> float:
    number = float(word)
    if not 0 < number < math.inf:
        raise ValueError(word)
    return number


def _gamma(word: str) -> RetrainConfig:
    epochs, batch, head, blocks, data = word.split("/")
    config = RetrainConfig(int(epochs), int(batch), int(head), int(blocks), float(data))
    possible = (
        config.epochs >= 1 and config.batch_size >= 2 and min(config.head_width, config.trainable_blocks) >= 0
    )
    if not possible or not 0 < config.data_fraction <= 1:
        raise ValueError(word)
    return config


def _network(options: SchedulerOptions, **changes: Any) -> SchedulerOptions:
    return replace(options, network=replace(options.network, **changes))


_KEYS: Mapping[str, _Key] = MappingProxyType(
    {
        "inference": _Key(
            "THOUSANDTHS", lambda options, word: replace(options, inference_part_milli=int(word))
        ),
        "gamma": _Key(
            "EPOCHS/BATCH/HEAD/BLOCKS/DATA", lambda options, word: replace(options, fixed_gamma=_gamma(word))
        ),
        "up": _Key("MBPS", lambda options, word: _network(options, uplink_mbps=_above_zero(word))),
        "down": _Key("MBPS", lambda options, word: _network(options, downlink_mbps=_above_zero(word))),
        "order": _Key("|".join(LinkOrder), lambda options, word: _network(options, order=LinkOrder(word))),
    }
)


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

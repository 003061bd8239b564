"""Schedulers and presets by name, and the reading of options, as in ``uniform:inference=300@paper``."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from ekya.core.configs import RetrainConfig
from ekya.core.errors import UserError
from ekya.core.plug_ins import PlugInGroup, find_plug_ins, load_plug_in
from ekya.core.profile import Profiler
from ekya.planning.schedulers.baselines import (
    FixedConfig,
    FixedRes,
    FixedResOptions,
    NoRetrain,
    Oracle,
    Uniform,
    UniformOptions,
)
from ekya.planning.schedulers.cloud_and_reuse import Cloud, CloudOptions, Network, Reuse
from ekya.planning.schedulers.ekya import Ekya
from ekya.planning.schedulers.exact import Exact
from ekya.planning.schedulers.scheduler import Scheduler, SchedulerOptions, gamma_word
from ekya.planning.schedulers.serial import Serial
from ekya.planning.schedulers.thief import Thief

MARK = "@"
"""Between a scheduler and a preset: ``uniform:inference=300@paper``."""


@dataclass(frozen=True, slots=True)
class Preset:
    """Settings around a scheduler. They replace those of the fleet, apart from the length of a window.

    Attributes:
        scheduler: the preset's own, where only the preset is named.
        profiler: how γ are micro-profiled.
        window_s: length of a window where neither file nor command sets one.
    """

    scheduler: str
    profiler: Profiler
    window_s: float


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {"paper": Preset(scheduler="thief", profiler=Profiler.PAPER, window_s=200.0)}
)
"""Every preset, by name. ``paper`` is the paper's scheduler with the paper's micro-profiler.

All else, such as packing, checkpoints and answers to drifts, is the run's: two schedulers of one comparison
differ in what they decide."""


def preset_of(text: str) -> Preset | None:
    """Returns the preset that a scheduler's text names, alone or after ``MARK``; None without one."""
    return PRESETS.get(text.partition(MARK)[2]) if MARK in text else PRESETS.get(text)


def scheduler_of(text: str) -> str:
    """Returns a scheduler's text without its preset."""
    return PRESETS[text].scheduler if text in PRESETS else text.partition(MARK)[0]


@dataclass(frozen=True, slots=True)
class Entry:
    """A scheduler in the registry.

    Attributes:
        make: returns it for its options.
        options: its model of them; the base model has none.
    """

    make: Callable[[Any], Scheduler]
    options: type[SchedulerOptions] = SchedulerOptions


SCHEDULERS: MappingProxyType[str, Entry] = MappingProxyType(
    {
        "ekya": Entry(lambda _: Ekya()),
        "serial": Entry(lambda _: Serial()),
        "thief": Entry(lambda _: Thief()),
        "exact": Entry(lambda _: Exact()),
        "uniform": Entry(lambda options: Uniform(options.inference, options.gamma), UniformOptions),
        "fixed-res": Entry(lambda options: FixedRes(options.inference), FixedResOptions),
        "fixed-config": Entry(lambda options: FixedConfig(options.inference, options.gamma), UniformOptions),
        "cloud": Entry(
            lambda options: Cloud(Network(options.up, options.down, options.order), options.gamma),
            CloudOptions,
        ),
        "reuse": Entry(lambda _: Reuse()),
        "oracle": Entry(lambda _: Oracle()),
        "no-retrain": Entry(lambda _: NoRetrain()),
    }
)
"""Every scheduler, by name."""

DEFAULT_SCHEDULER = "ekya"
"""Scheduler used where none is named."""


def scheduler_word(given: str | Scheduler) -> str:
    """Returns what journals, folders and tables call a scheduler that is given by name or as an object."""
    return given if isinstance(given, str) else given.name


def make_scheduler(given: str | Scheduler, offered: Collection[RetrainConfig] | None = None) -> Scheduler:
    """Returns the scheduler of that name, or the given one.

    Args:
        given: a name, with options or a preset: ``name:key=value:...@preset``; a preset alone; or an object.
        offered: Γ, where it is available: a scheduler with a fixed γ outside Γ would never retrain.

    Raises:
        UserError: one sentence: the scheduler or the preset is unknown, it does not take an option, an option
            is repeated, a value is invalid, its γ is not in Γ, or another package's cannot be loaded.
    """
    if not isinstance(given, str):
        return given
    text = given
    if MARK in text and preset_of(text) is None:
        raise UserError(
            f"scheduler: there is no preset {text.partition(MARK)[2]!r}; choose one of {', '.join(PRESETS)}"
        )
    name, *words = scheduler_of(text).split(":")
    if name in PRESETS:
        raise UserError(f"scheduler: {name} is a preset and has no options; write {name} alone")
    if name not in SCHEDULERS:
        others = find_plug_ins(PlugInGroup.SCHEDULERS)
        if name not in others:
            known = ", ".join(sorted({*SCHEDULERS, *PRESETS, *others}))
            raise UserError(f"scheduler: there is no {name!r}; choose one of {known}")
        if words:
            raise UserError(f"scheduler: {name} takes no options; write {name} alone")
        made: Scheduler = load_plug_in(others[name], lambda scheduler: scheduler())
        return made
    options = _read_options(text, name, words)
    gamma: RetrainConfig | None = getattr(options, "gamma", None)
    if offered is not None and gamma is not None and gamma not in offered:
        there = ", ".join(gamma_word(config) for config in sorted(offered))
        raise UserError(
            f"scheduler: gamma={gamma_word(gamma)} is not among the retraining configurations; "
            f"choose one of {there}"
        )
    return SCHEDULERS[name].make(options)


def _read_options(text: str, name: str, words: Sequence[str]) -> SchedulerOptions:
    model = SCHEDULERS[name].options
    forms = {key: f"{key}={field.title}" for key, field in model.model_fields.items()}
    values: dict[str, str] = {}
    for word in words:
        key, _, value = word.partition("=")
        if key not in forms:
            remedy = f"it takes {', '.join(forms.values())}" if forms else f"write {name} alone"
            raise UserError(f"scheduler: {name} has no option {key!r}; {remedy}")
        if key in values:
            raise UserError(f"scheduler: {key} stands twice in {text!r}; keep one of them")
        values[key] = value
    try:
        return model.model_validate(values)
    except ValidationError as error:
        key = str(error.errors()[0]["loc"][0])
        raise UserError(f"scheduler: {values[key]!r} is no value for {key}; write {forms[key]}") from None

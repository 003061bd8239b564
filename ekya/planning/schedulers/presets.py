"""Presets: a scheduler together with the profiler, the shares and the checkpoints around it, by one name."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ekya.core.profile import Profiler
from ekya.planning.placement.pack import Packing

MARK = "@"
"""Between a scheduler and a preset: ``uniform:inference=300@paper``."""


@dataclass(frozen=True, slots=True)
class Preset:
    """Settings around a scheduler. They replace those of the fleet, apart from the length of a window.

    Attributes:
        scheduler: the preset's own, where only the preset is named.
        profiler: how γ are micro-profiled.
        prepares_in_burst: whether labelling and profiling hold their share whatever inference needs.
        placement: how shares of its own scheduler are packed; those of another are packed as the fleet says.
        checkpoints: whether weights may serve while their retraining goes on.
        reacts_to_drift: whether changes inside a window may be noticed and answered there.
        window_s: length of a window where neither file nor command sets one.
    """

    scheduler: str
    profiler: Profiler
    prepares_in_burst: bool
    placement: Packing
    checkpoints: bool
    reacts_to_drift: bool
    window_s: float


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "paper": Preset(
            scheduler="thief",
            profiler=Profiler.PAPER,
            prepares_in_burst=True,
            placement=Packing.QUANTISED,
            checkpoints=False,
            reacts_to_drift=False,
            window_s=200.0,
        )
    }
)
"""Every preset, by name. ``paper`` is Ekya as the paper describes it."""


def preset_of(text: str) -> Preset | None:
    """Returns the preset that a scheduler's text names, alone or after ``MARK``; None without one."""
    return PRESETS.get(text.partition(MARK)[2]) if MARK in text else PRESETS.get(text)


def placement_of(text: str, usual: Packing) -> Packing:
    """Returns how shares are packed: as the preset says for its own scheduler, and otherwise as usual."""
    preset = preset_of(text)
    if preset is None or scheduler_of(text) != preset.scheduler:
        return usual
    return preset.placement


def scheduler_of(text: str) -> str:
    """Returns a scheduler's text without its preset."""
    return PRESETS[text].scheduler if text in PRESETS else text.partition(MARK)[0]

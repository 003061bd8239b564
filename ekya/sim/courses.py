"""Which trainings show every γ: those that differ in their epochs alone share one, stopped at the longest."""

from collections.abc import Sequence
from dataclasses import dataclass

from ekya.core.configs import RetrainConfig
from ekya.core.profile import Family, family_of


@dataclass(frozen=True, slots=True)
class Course:
    """One training that serves every γ of a family and part of the data: the longest of them.

    Attributes:
        config: the longest γ.
        ends: epochs after which some γ ends.
    """

    config: RetrainConfig
    ends: frozenset[int]

    @property
    def family(self) -> Family:
        """Of all its γ."""
        return family_of(self.config)


def courses_of(configs: Sequence[RetrainConfig]) -> tuple[Course, ...]:
    """The trainings that Γ takes, the dearest last."""
    groups: dict[tuple[Family, float], list[RetrainConfig]] = {}
    for config in configs:
        groups.setdefault((family_of(config), config.data_fraction), []).append(config)
    return tuple(
        Course(max(group), frozenset(config.epochs for config in group))
        for _, group in sorted(groups.items())
    )

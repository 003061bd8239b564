"""Groups Γ into trainings: γ that differ only in epochs share one, which runs for the longest."""

from collections.abc import Sequence
from dataclasses import dataclass

from ekya.core.configs import RetrainConfig
from ekya.core.profile import Family, family_of


@dataclass(frozen=True, slots=True)
class Course:
    """One training that covers every γ of a family and data fraction: the longest of them.

    Attributes:
        config: the longest γ.
        ends: epochs at which a γ ends.
    """

    config: RetrainConfig
    ends: frozenset[int]

    @property
    def family(self) -> Family:
        """Family of all its γ."""
        return family_of(self.config)


def courses_of(configs: Sequence[RetrainConfig]) -> tuple[Course, ...]:
    """Returns the trainings that cover Γ, the most expensive last."""
    groups: dict[tuple[Family, float], list[RetrainConfig]] = {}
    for config in configs:
        groups.setdefault((family_of(config), config.data_fraction), []).append(config)
    return tuple(
        Course(max(group), frozenset(config.epochs for config in group))
        for _, group in sorted(groups.items())
    )

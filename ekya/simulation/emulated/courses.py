"""Courses of a recording: one training covers all γ that differ only in epochs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.profile import Family, family_of
from ekya.models.edge.model import EdgeModel
from ekya.models.golden.golden_model import Labels
from ekya.pipeline.costs import CostCard


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


@dataclass(frozen=True, slots=True, eq=False)
class Common:
    """Inputs of a recording that all streams share.

    Attributes:
        retrain_configs, inference_configs: Γ without ∅, and Λ.
        base: the model that every stream starts from.
        golden: labels samples.
        card: costs of all work.
        window_us: length of a window.
        every_start: train from every model that may serve, not only from the newest of each family.
        on_training: callback after each training, with its name.
    """

    retrain_configs: tuple[RetrainConfig, ...]
    inference_configs: tuple[InferenceConfig, ...]
    base: EdgeModel
    golden: Labels
    card: CostCard
    window_us: int
    every_start: bool
    on_training: Callable[[str], None]

    @property
    def offers_golden(self) -> bool:
        """True if a λ is of the golden detector."""
        return any(config.by_golden for config in self.inference_configs)

    @property
    def courses(self) -> tuple[Course, ...]:
        """Trainings that Γ takes."""
        return courses_of(self.retrain_configs)

    @property
    def blocks_left(self) -> int:
        """Number of blocks that some γ trains; the others stay those of the base model."""
        return max(config.trainable_blocks for config in self.retrain_configs)

    @property
    def families(self) -> tuple[Family, ...]:
        """Families of Γ, sorted."""
        return tuple(sorted({family_of(config) for config in self.retrain_configs}))

    def trainings(self, windows: int) -> int:
        """Returns the maximum number of trainings of one stream."""
        of_each = len(self.families)
        if self.every_start:
            return len(self.courses) * sum(1 + of_each * (window - 1) for window in range(1, windows))
        return len(self.courses) * (1 + (of_each + 1) * (windows - 2))

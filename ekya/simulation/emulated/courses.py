"""Trainings of a recording: from which models they start; one covers all γ that differ only in epochs."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.profile import Family, family_of
from ekya.core.trace import Origin, RecordedTraining
from ekya.models.edge.model import EdgeModel
from ekya.models.golden.golden_model import Labels
from ekya.models.training.exemplars import ExemplarMemory
from ekya.pipeline.costs import CostCard
from ekya.planning.adaptation.shadow_gate import SERVE_MARGIN, why_not


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
class TrainedCourse:
    """A recorded training and its best weights."""

    training: RecordedTraining
    validation_accuracy: float
    model: EdgeModel

    def would_serve(self, serving: float) -> bool:
        """Returns whether it would replace a model with this validation accuracy."""
        return why_not(self.validation_accuracy, serving, SERVE_MARGIN) is None


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


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A model that may serve, with its stream's exemplar memory at that point.

    Attributes:
        needed: whether each retraining on the way to it started from a model that was not accurate enough.
            Baselines retrain accurate models too.
    """

    origin: Origin
    model: EdgeModel
    memory: ExemplarMemory
    needed: bool


@dataclass(slots=True, eq=False)
class TraceCandidates:
    """The candidates of a stream, oldest first.

    Attributes:
        families: of γ.
        every_start: whether each candidate is trained further, and with every family.
    """

    families: tuple[Family, ...]
    every_start: bool
    _known: list[Candidate] = field(default_factory=list)

    def __iter__(self) -> Iterator[Candidate]:
        return iter(self._known)

    def add(self, candidates: Iterable[Candidate]) -> None:
        """Adds candidates; the first of all is the base model."""
        self._known += candidates

    def newest(self, count: int) -> list[Candidate]:
        """Returns the newest candidates, oldest first."""
        return self._known[-count:]

    def starts(self) -> list[Candidate]:
        """Returns the models to train from: the newest of each family, or the base model if it has none."""
        if self.every_start:
            return list(self._known)
        youngest = [self.youngest(family, needed) for family in self.families for needed in (True, False)]
        return [candidate for candidate in self._known if candidate in youngest]

    def families_of(self, start: Candidate) -> tuple[Family, ...]:
        """Returns the families to train; accurate models only with their own, as only a baseline does."""
        own = start.origin.family
        if self.every_start or start.needed or own is None:
            return self.families
        return (own,)

    def youngest(self, family: Family, needed: bool) -> Candidate:
        """Returns the newest model trained with this family; the base model if there is none.

        Args:
            family: the family.
            needed: only models that were trained where it was needed; otherwise any.
        """
        own = [of for of in self._known if of.origin.family == family and (of.needed or not needed)]
        return own[-1] if own else self._known[0]

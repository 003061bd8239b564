"""Models of a recorded stream that may serve, from which its later retrainings start."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ekya.core.profile import Family
from ekya.core.trace import Origin
from ekya.models.edge.model import EdgeModel
from ekya.models.training.exemplars import ExemplarMemory


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
class Candidates:
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

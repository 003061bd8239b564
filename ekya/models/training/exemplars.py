"""Exemplar memory after iCaRL: a few crops or frames per class (paper §2.2, [82])."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from ekya.models.edge.architecture_table import Task
from ekya.models.training.labelled import Examples, concatenate

MOST_EXEMPLARS: Mapping[Task, int] = MappingProxyType({Task.CLASSIFY: 120, Task.DETECT: 24})
"""Exemplars of one stream, all classes together: crops, or frames, each as large as 120 crops."""


@dataclass(frozen=True, slots=True, eq=False)
class ExemplarMemory:
    """Exemplars that a stream keeps of earlier windows.

    Attributes:
        budget: maximum number of exemplars, shared evenly by the classes seen.
        kept: the exemplars, class by class, rising in time; None before the first update.
    """

    budget: int = MOST_EXEMPLARS[Task.CLASSIFY]
    kept: Examples | None = None

    def exemplars(self) -> Examples | None:
        """Returns the exemplars, or None before the first update."""
        return self.kept

    @property
    def size(self) -> int:
        """Number of exemplars."""
        return 0 if self.kept is None else len(self.kept)

    def update_exemplars(self, labelled: Examples) -> "ExemplarMemory":
        """Returns the memory after this window: old exemplars and new ones of each class, evenly in time.

        iCaRL chooses those nearest to the mean of a class's features (herding), for which the model must
        analyse all of them once more: longer than a retraining of the head takes. It retrains no better.
        """
        candidates = labelled if self.kept is None else concatenate([self.kept, labelled])
        if len(candidates) == 0:
            return self
        seen = candidates.by_class()
        # With more classes than the budget each has one exemplar, and the last ones are cut off below.
        quota = max(1, self.budget // max(len(seen), 1))
        chosen = [np.zeros(0, np.int64)]
        for members in seen:
            in_time = members[np.argsort(candidates.t_us[members], kind="stable")]
            places = np.linspace(0, len(members) - 1, min(quota, len(members)))
            chosen.append(in_time[places.round().astype(np.int64)])
        # A frame may represent several classes.
        rows = list(dict.fromkeys(np.concatenate(chosen).tolist()))
        return ExemplarMemory(self.budget, candidates.select_rows(np.array(rows[: self.budget], np.int64)))

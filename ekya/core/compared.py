"""Comparison of two sets of weights on the same labels."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Compared:
    """Accuracies of new and old weights on the same labels, none of which they were trained on.

    Attributes:
        new: accuracy of the weights that served in the labelled window.
        old: accuracy of the weights that served when labels were taken before.
        objects: number of distinct objects, one crop of each.
    """

    new: float
    old: float
    objects: int

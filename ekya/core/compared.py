"""Two sets of weights beside each other."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Compared:
    """New weights and old ones, asked about the same labels, of which they have learnt none.

    Attributes:
        new: accuracy of those that served in the window that was labelled.
        old: of those that served when labels were taken before.
        objects: that they were asked about, one picture of each.
    """

    new: float
    old: float
    objects: int

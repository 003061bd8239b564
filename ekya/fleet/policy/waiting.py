"""Cost functions of a training's response time, in the unit of all other costs. Times are in seconds."""

from dataclasses import dataclass
from math import exp
from typing import Protocol

_LARGEST_EXPONENT = 600.0
"""Of e, so that the sum of many costs is still a number."""


class WaitingCost(Protocol):
    """A non-decreasing function of the response time, from arrival to end (Okita §III.B)."""

    @property
    def per_s(self) -> float:
        """Sensitivity to waiting: ω in ANDREAS, τ in Okita's priority (Eq. 4)."""

    @property
    def due_s(self) -> float | None:
        """Response time from which a job is late; None where it never is."""

    def cost_after(self, response_s: float) -> float:
        """Returns the cost of a response time."""


@dataclass(frozen=True, slots=True)
class Tardiness:
    """Zero until the due date, then linear (ANDREAS §IV.A).

    Attributes:
        due_s: after the job's arrival.
        per_s: ω.
    """

    due_s: float
    per_s: float

    def cost_after(self, response_s: float) -> float:
        """Returns ω times the tardiness."""
        return self.per_s * max(0.0, response_s - self.due_s)


@dataclass(frozen=True, slots=True)
class Growing:
    """τ e^(rate t): Okita's default, which §V.B calls the sigmoid function.

    Attributes:
        per_s: τ.
        rate: 0.25 a slot in the paper.
    """

    per_s: float
    rate: float
    due_s: None = None

    def cost_after(self, response_s: float) -> float:
        """Returns the cost of a response time; it grows no more where numbers end."""
        return self.per_s * exp(min(self.rate * response_s, _LARGEST_EXPONENT))


@dataclass(frozen=True, slots=True)
class Linear:
    """τ t + b (Okita §V.B).

    Attributes:
        per_s: τ.
        base: b.
    """

    per_s: float
    base: float
    due_s: None = None

    def cost_after(self, response_s: float) -> float:
        """Returns the cost of a response time."""
        return self.per_s * response_s + self.base


@dataclass(frozen=True, slots=True)
class Cliff:
    """τ₁ before c and τ₂ from then on (Okita §V.B, the piecewise function): a hard deadline.

    Attributes:
        before, after: τ₁ and τ₂.
        due_s: c.
    """

    before: float
    after: float
    due_s: float

    @property
    def per_s(self) -> float:
        """τ₂."""
        return self.after

    def cost_after(self, response_s: float) -> float:
        """Returns the cost of a response time."""
        return self.before if response_s < self.due_s else self.after

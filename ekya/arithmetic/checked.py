"""What came of asking a device for a sum whose answer is known."""

from dataclasses import dataclass

MOST_ERROR = 1e-2
"""Relative to the largest value. Rounding to the coarsest type in use, bfloat16, makes 0.002 to 0.004."""


@dataclass(frozen=True, slots=True)
class Checked:
    """One operation in one type.

    Attributes:
        operation: its name, for people.
        dtype: name of the type.
        error: largest deviation from the CPU, relative to the largest value.
        finite: whether every value was.
        raised: what the operation raised, or nothing.
    """

    operation: str
    dtype: str
    error: float
    finite: bool
    raised: str = ""

    @property
    def passed(self) -> bool:
        """Whether the level may be used with this type, as far as this operation goes."""
        return not self.raised and self.finite and self.error < MOST_ERROR

    def __str__(self) -> str:
        """One clause."""
        if self.raised:
            return f"a {self.operation} in {self.dtype} raised {self.raised}"
        if not self.finite:
            return f"a {self.operation} in {self.dtype} has values that are not finite"
        return f"a {self.operation} in {self.dtype} is off by {self.error:.2g}"

"""Result of checking a device's arithmetic against a known result."""

from dataclasses import dataclass

MOST_ERROR = 1e-2
"""Relative to the largest value. Rounding to the coarsest type in use, bfloat16, gives 0.002 to 0.004."""


@dataclass(frozen=True, slots=True)
class Checked:
    """Result of one operation in one type.

    Attributes:
        operation: its name, for display.
        dtype: name of the type.
        error: largest deviation from the CPU, relative to the largest value.
        finite: True if every value was finite.
        raised: the error that the operation raised, or empty.
    """

    operation: str
    dtype: str
    error: float
    finite: bool
    raised: str = ""

    @property
    def passed(self) -> bool:
        """True if this operation allows the level to be used with this type."""
        return not self.raised and self.finite and self.error < MOST_ERROR

    def __str__(self) -> str:
        """Returns the result in one clause."""
        if self.raised:
            return f"a {self.operation} in {self.dtype} raised {self.raised}"
        if not self.finite:
            return f"a {self.operation} in {self.dtype} has values that are not finite"
        return f"a {self.operation} in {self.dtype} is off by {self.error:.2g}"

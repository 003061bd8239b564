"""Lists of values to choose from in a file of settings.

Apart from ``configs.py``, since that is imported where there is torch and no pydantic (`make gpu-check`).
"""

from typing import Annotated, TypeVar

from pydantic import AfterValidator, Field

_Value = TypeVar("_Value")


def require_distinct(values: tuple[_Value, ...]) -> tuple[_Value, ...]:
    """Returns the values unchanged.

    Raises:
        ValueError: a value occurs twice.
    """
    if len(set(values)) != len(values):
        raise ValueError("a value stands there twice; keep one of them")
    return values


UniqueTuple = Annotated[tuple[_Value, ...], Field(min_length=1), AfterValidator(require_distinct)]
"""At least one value, without duplicates."""

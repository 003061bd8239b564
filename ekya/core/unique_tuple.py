"""Lists of values to choose from in a file of settings, and keys that must differ."""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, Field

_Value = TypeVar("_Value")


def require_distinct(values: tuple[_Value, ...]) -> tuple[_Value, ...]:
    """Returns the values unchanged.

    Raises:
        ValueError: a value occurs twice, or two names differ in capitals only.
    """
    known = {str(value).casefold(): value for value in values}
    for value in values if len(known) < len(values) else ():
        if (other := known[str(value).casefold()]) != value:
            raise ValueError(f"'{value}' and '{other}' differ in capitals only; keep one of them")
    if len(known) < len(values):
        raise ValueError("a value stands there twice; keep one of them")
    return values


def require_distinct_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an object of JSON, as an ``object_pairs_hook``; ``json`` alone keeps the last of equal keys.

    Raises:
        ValueError: a key occurs twice.
    """
    for key, count in Counter(key for key, _ in pairs).items():
        if count > 1:
            raise ValueError(f"the key '{key}' stands there twice; keep one of them")
    return dict(pairs)


UniqueTuple = Annotated[tuple[_Value, ...], Field(min_length=1), AfterValidator(require_distinct)]
"""At least one value, without duplicates."""

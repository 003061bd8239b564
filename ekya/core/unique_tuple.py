"""Lists of values to choose from in a file of settings, and keys and names that must differ.

Apart from ``configs.py``, since that is imported where there is torch and no pydantic (`make gpu-check`).
"""

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

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


def require_distinct_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an object of JSON, as an ``object_pairs_hook``; ``json`` alone keeps the last of equal keys.

    Raises:
        ValueError: a key occurs twice.
    """
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key '{twice}' stands there twice; keep one of them")
    return dict(pairs)


def require_distinct_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the names unchanged.

    Raises:
        ValueError: two of them are equal, or differ in capitals only.
    """
    known: dict[str, str] = {}
    for name in require_distinct(names):
        other = known.setdefault(name.casefold(), name)
        if other != name:
            raise ValueError(f"'{other}' and '{name}' differ in capitals only; keep one of them")
    return names


UniqueTuple = Annotated[tuple[_Value, ...], Field(min_length=1), AfterValidator(require_distinct)]
"""At least one value, without duplicates."""

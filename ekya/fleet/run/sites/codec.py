"""Codec: values between sites as msgpack, which unlike pickle carries data only: no peer can run code."""

import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any

import msgpack
import numpy as np

MOST_BYTES = 1 << 30
"""Size of the largest value that is sent or received."""

BIG_BYTES = 1_000_000
"""Size from which an event loop leaves unpacking to a thread."""

_SET, _ARRAY, _OBJECT = 1, 2, 3

_DTYPES = frozenset(np.dtype(code).str for code in "?bhilqBHILQefd")

_DEEPEST = 32
"""Sets, arrays and objects inside each other. Each level takes some 40 kB of the stack to unpack."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """A class that is sent.

    Attributes:
        made: the class.
        sent: names of the fields that are sent.
        kept: values of the others.
    """

    made: type
    sent: tuple[str, ...]
    kept: Mapping[str, object]


class Codec:
    """Packs None, bool, int (64 bits), float, str, bytes, and what is made of them. Thread-safe.

    That is tuples, lists, dicts, sets, numpy arrays and scalars of numbers, and the given dataclasses. Lists
    arrive as tuples, sets as frozensets, scalars and enums of str as Python's, arrays as writable copies.

    Args:
        types: frozen dataclasses. Their constructors make them again, so what these check is checked.
        later: further ones, imported when a value of an unknown class comes.
        kept: fields that are not sent, by class, and their values in what arrives.

    Raises:
        ValueError: a class is no frozen dataclass, or two have one name.
    """

    def __init__(
        self,
        types: Iterable[type],
        later: Callable[[], Iterable[type]] = tuple,
        kept: Mapping[type, Mapping[str, object]] | None = None,
    ) -> None:
        self._kinds: dict[str, _Kind] = {}
        self._later, self._kept = later, kept or {}
        self._add(types)

    def pack_value(self, value: Any) -> bytes:
        """Returns a value as bytes.

        Raises:
            ValueError: in one line: it, or something in it, cannot be sent.
        """
        try:
            packed = self._packed(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"this cannot be sent to another site: {_line(error)}") from error
        _check_size(packed)
        return packed

    def unpack_value(self, packed: bytes) -> Any:
        """Returns the value of these bytes.

        Raises:
            ValueError: in one line: they are no value, or of a class that is not expected.
        """
        _check_size(packed)
        try:
            return self._unpacked(packed, 0)
        except Exception as error:  # Anything may be wrong with bytes from elsewhere.
            raise ValueError(f"this is no message between sites: {_line(error)}") from error

    def _add(self, types: Iterable[type]) -> None:
        for made in types:
            if not is_dataclass(made) or not made.__dataclass_params__.frozen:  # type: ignore[attr-defined]
                raise ValueError(f"{made.__qualname__} is no frozen dataclass")
            kept = self._kept.get(made, {})
            sent = tuple(one.name for one in fields(made) if one.init and one.name not in kept)
            if self._kinds.setdefault(made.__name__, _Kind(made, sent, kept)).made is not made:
                raise ValueError(f"two classes that are sent have the name {made.__name__}")

    def _kind(self, name: str) -> _Kind | None:
        if name not in self._kinds:
            self._add(self._later())
        return self._kinds.get(name)

    def _packed(self, value: Any) -> bytes:
        packed: bytes = msgpack.packb(value, default=self._extended)
        return packed

    def _extended(self, value: Any) -> Any:
        """Returns what msgpack does not know as what it knows."""
        if isinstance(value, set | frozenset):
            return msgpack.ExtType(_SET, self._packed(tuple(value)))
        if isinstance(value, np.ndarray | np.generic) and value.dtype.str in _DTYPES:
            if isinstance(value, np.generic):
                return value.item()
            return msgpack.ExtType(_ARRAY, self._packed((value.dtype.str, value.shape, value.tobytes())))
        kind = self._kind(type(value).__name__) if is_dataclass(value) else None
        if kind is None or kind.made is not type(value):
            raise TypeError(f"{reprlib.repr(value)} of type {type(value).__name__}")
        sent = {name: getattr(value, name) for name in kind.sent}
        return msgpack.ExtType(_OBJECT, self._packed((type(value).__name__, sent)))

    def _unpacked(self, packed: bytes, depth: int) -> Any:
        if depth > _DEEPEST:
            raise ValueError("it is nested too deeply")
        return msgpack.unpackb(
            packed, use_list=False, strict_map_key=False, ext_hook=partial(self._made, depth + 1)
        )

    def _made(self, depth: int, code: int, packed: bytes) -> Any:
        content = self._unpacked(packed, depth)
        if code == _SET:
            return frozenset(content)
        if code == _ARRAY:
            dtype, shape, numbers = content
            if dtype not in _DTYPES:
                raise ValueError(f"an array of {reprlib.repr(dtype)}")
            return np.frombuffer(numbers, dtype).reshape(shape).copy()
        if code != _OBJECT:
            raise ValueError(f"an unknown kind {code} of value")
        name, sent = content
        kind = self._kind(name)
        if kind is None:
            raise ValueError(f"an unknown class {reprlib.repr(name)}")
        if sent.keys() != set(kind.sent):
            raise ValueError(f"wrong fields of {name}: {reprlib.repr(sorted(sent.keys() ^ set(kind.sent)))}")
        return kind.made(**sent, **kind.kept)


def _check_size(packed: bytes) -> None:
    if len(packed) > MOST_BYTES:
        raise ValueError(f"{len(packed)} bytes are more than the {MOST_BYTES} that may be sent")


def _line(error: Exception) -> str:
    """Returns an error in one line."""
    return " ".join(str(error).split()) or type(error).__name__

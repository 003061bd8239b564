"""Values as bytes: round trips, what is refused, and which classes cross sites."""

import inspect
import math
from dataclasses import dataclass, field, is_dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from types import GenericAlias
from typing import Any, Literal, NewType, get_args, get_origin, get_type_hints

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ekya.core.units import StreamId
from ekya.fleet.policy.places import SiteName
from ekya.fleet.run.calls import Handle
from ekya.fleet.run.doctor import HostDoctor
from ekya.fleet.run.lending import Peer
from ekya.fleet.run.live.site import Site
from ekya.fleet.run.live.site_run import SiteRun
from ekya.fleet.run.server import AboveServers
from ekya.fleet.run.sites.client import COORDINATION, SiteHandle, training_types, wire_codec
from ekya.fleet.run.sites.codec import MOST_BYTES, Codec
from ekya.fleet.run.training.actors import TrainingActor
from ekya.fleet.run.training.protocol import EpochOutcome
from ekya.models.training.frames import LabelledFrames
from ekya.models.training.labelled import Examples, LabelledCrops, no_crops
from ekya.models.training.trainer import EpochResult


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: object = None

    def __post_init__(self):
        if self.x < 0:
            raise ValueError("x must not\nbe negative")


@dataclass(frozen=True)
class Secretive:
    name: str
    secret: str = field(repr=False)


@dataclass
class Mutable:
    x: int


class Colour(StrEnum):
    RED = "red"


CODEC = Codec([Point])

keys = st.integers(-(2**63), 2**63 - 1) | st.text() | st.tuples(st.text(), st.integers(0, 9))
leaves = (
    st.none()
    | st.booleans()
    | keys
    | st.floats(allow_nan=False)
    | st.binary()
    | st.frozensets(keys, max_size=1)
    | st.builds(Point, st.integers(0, 9))
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.tuples(inner, inner)
        | st.dictionaries(keys, inner, max_size=3)
        | st.builds(Point, st.integers(0, 9), inner)
    ),
    max_leaves=12,
)


@given(values)
def test_values_arrive_as_they_were(value) -> None:
    arrived = CODEC.unpack_value(CODEC.pack_value(value))
    assert arrived == value
    assert repr(arrived) == repr(value)  # 1, 1.0 and True are equal


@given(
    hnp.arrays(
        hnp.boolean_dtypes()
        | hnp.integer_dtypes(endianness="<")
        | hnp.unsigned_integer_dtypes(endianness="<")
        | hnp.floating_dtypes(endianness="<", sizes=(16, 32, 64)),
        hnp.array_shapes(min_dims=0, min_side=0),
    ),
    st.booleans(),
)
def test_arrays_arrive_writable_and_in_order(array, turned) -> None:
    array = array.T if turned else array
    (arrived,) = CODEC.unpack_value(CODEC.pack_value([array]))
    assert (arrived.dtype, arrived.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(arrived, array)
    assert arrived.flags.writeable
    assert arrived.flags.c_contiguous


def test_some_types_arrive_as_simpler_ones() -> None:
    sent = [
        [1],
        {2},
        Colour.RED,
        np.float32(0.5),
        np.int64(3),
        np.bool_(True),
        np.float64(math.pi),
        bytearray(b"x"),
    ]
    arrived = CODEC.unpack_value(CODEC.pack_value(sent))
    assert arrived == ((1,), frozenset({2}), "red", 0.5, 3, True, math.pi, b"x")
    assert [type(one) for one in arrived] == [tuple, frozenset, str, float, int, bool, float, bytes]
    assert arrived[2] == Colour.RED


def test_fields_that_are_kept_are_not_sent() -> None:
    codec = Codec([Secretive], kept={Secretive: {"secret": "theirs"}})
    packed = codec.pack_value(Secretive("a", "ours"))
    assert b"ours" not in packed
    assert codec.unpack_value(packed) == Secretive("a", "theirs")


def test_later_types_are_asked_for_only_when_they_come() -> None:
    asked = []
    codec = Codec([Point], lambda: asked.append(1) or [Secretive])
    assert codec.unpack_value(codec.pack_value(Point(1, (Point(2),)))).y[0].x == 2
    assert not asked
    assert codec.unpack_value(codec.pack_value(Secretive("a", "b"))) == Secretive("a", "b")
    assert asked


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (Path("a"), "PosixPath"),
        (Secretive("a", "b"), "Secretive"),
        (Point, "type type"),
        (object(), "type object"),
        (datetime(2026, 1, 31, tzinfo=UTC), "datetime"),
        (2**64, "type int"),
        (1j, "complex"),
        (np.array(["a"]), "ndarray"),
        (np.array([object()]), "ndarray"),
        (np.zeros(1, [("a", "i4")]), "ndarray"),
        (np.datetime64(0, "s"), "datetime64"),
        ("\ud800", "surrogate"),
        (test_values_arrive_as_they_were, "function"),
    ],
)
def test_what_cannot_be_sent_is_refused_in_one_line(value, words) -> None:
    for holds in (value, [{"a": value}], Point(1, value)):
        with pytest.raises(ValueError, match=rf"^this cannot be sent to another site: .*{words}"):
            CODEC.pack_value(holds)


def test_endless_nesting_is_refused() -> None:
    deep = []
    deep.append(deep)
    with pytest.raises(ValueError, match="cannot be sent"):
        CODEC.pack_value(deep)
    for nest in (lambda inner: Point(1, inner), lambda inner: frozenset([inner])):
        value = 0
        for _ in range(300):
            value = nest(value)
        with pytest.raises(ValueError, match="nested too deeply"):
            CODEC.unpack_value(CODEC.pack_value(value))


def of_kind(code, content):
    return msgpack.packb(msgpack.ExtType(code, msgpack.packb(content)))


@pytest.mark.parametrize(
    ("packed", "words"),
    [
        (b"", "incomplete"),
        (b"\xc1", ""),
        (CODEC.pack_value((1, 2)) + b"\x00", "extra data"),
        (of_kind(9, 1), "unknown kind 9"),
        (of_kind(2, ("|O", (1,), bytes(8))), "array of '|O'"),
        (of_kind(2, ("<M8[s]", (1,), bytes(8))), "array of '<M8"),
        (of_kind(2, ({}, (1,), bytes(8))), "unhashable"),
        (of_kind(2, ("<i4", (3,), bytes(8))), "reshape"),
        (of_kind(2, ("<i4", (2,))), "not enough values"),
        (of_kind(3, ("Mutable", {"x": 1})), "unknown class 'Mutable'"),
        (of_kind(3, ("Path", {"x": 1})), "unknown class 'Path'"),
        (of_kind(3, ("Point", {"x": 1})), "wrong fields of Point: .'y'"),
        (of_kind(3, ("Point", {"x": 1, "y": 1, "z": 1})), "wrong fields of Point: .'z'"),
        (of_kind(3, ("Point", {"x": -1, "y": 1})), "x must not be negative$"),
        (of_kind(3, ("Point", {"x": "a", "y": 1})), "not supported"),
        (of_kind(3, ("Point", 1)), "no attribute"),
        (of_kind(1, ({},)), "unhashable"),
    ],
)
def test_bytes_that_are_no_value_are_refused_in_one_line(packed, words) -> None:
    with pytest.raises(ValueError, match=rf"^this is no message between sites: .*{words}") as raised:
        CODEC.unpack_value(packed)
    assert "\n" not in str(raised.value)


@given(values, st.data())
def test_truncated_bytes_are_refused(value, data) -> None:
    packed = CODEC.pack_value((value,))
    cut = data.draw(st.integers(0, len(packed) - 1))
    with pytest.raises(ValueError, match="no message between sites"):
        CODEC.unpack_value(packed[:cut])


@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_refused(packed) -> None:
    try:
        CODEC.unpack_value(packed)
    except ValueError as error:
        assert str(error).startswith("this is no message")


def test_more_than_the_limit_is_refused_before_it_is_read() -> None:
    class Long(bytes):
        def __len__(self):
            return MOST_BYTES + 1

    with pytest.raises(ValueError, match="more than the 1073741824"):
        CODEC.unpack_value(Long())


def test_types_must_be_frozen_dataclasses_of_different_names() -> None:
    with pytest.raises(ValueError, match="Mutable is no frozen dataclass"):
        Codec([Mutable])
    with pytest.raises(ValueError, match="int is no frozen dataclass"):
        Codec([int])
    other = dataclass(frozen=True)(type("Point", (), {}))
    with pytest.raises(ValueError, match="have the name Point"):
        Codec([Point, other])


PLAIN = {None, type(None), Any, object, bool, int, float, str, bytes, Handle, ...}
"""Sent without more, a handle as ``SiteHandle``; of ``Any`` and ``object`` the callers know what it is."""

BEHIND = {Examples: (LabelledCrops, LabelledFrames)}
"""Protocols in signatures, and what implements them."""


def dataclasses_in(hints, found=None):
    """Returns all dataclasses in type hints, recursively; fails on a type that is neither sent nor known."""
    found = set() if found is None else found
    for hint in hints:
        if isinstance(hint, NewType):
            dataclasses_in([hint.__supertype__], found)
        elif get_origin(hint) is Literal or get_origin(hint) is np.ndarray or hint in PLAIN:
            continue
        elif get_args(hint):
            dataclasses_in(get_args(hint), found)
        elif hint in BEHIND:
            dataclasses_in(BEHIND[hint], found)
        else:
            assert is_dataclass(hint), f"{hint} is neither sent nor known here"
            if hint not in found:
                found.add(hint)
                dataclasses_in(get_type_hints(hint).values(), found)
    return found


def hints_of(served):
    public = [one for name, one in inspect.getmembers(served, inspect.isfunction) if name[0] != "_"]
    assert len(public) > 3
    return [hint for method in public for hint in get_type_hints(method).values()]


def test_all_of_coordination_is_sent_and_nothing_else() -> None:
    told = [
        *hints_of(AboveServers),
        *hints_of(Peer),
        *hints_of(Site),
        *hints_of(SiteRun),
        *hints_of(HostDoctor),
    ]
    assert dataclasses_in(told) == set(COORDINATION)


def test_all_of_trainings_is_sent_and_nothing_else() -> None:
    assert dataclasses_in(hints_of(TrainingActor)) - set(COORDINATION) == set(training_types())


def test_no_two_classes_have_one_name() -> None:
    Codec([SiteHandle, *COORDINATION, *training_types()])


def test_the_walk_finds_what_is_nested_and_fails_on_what_is_unknown() -> None:
    nested = GenericAlias(dict, (StreamId, GenericAlias(tuple, (EpochOutcome | None, ...))))
    assert dataclasses_in([nested]) == {EpochOutcome, EpochResult}
    with pytest.raises(AssertionError, match="Peer"):
        dataclasses_in([GenericAlias(list, (Peer,))])


def test_trainings_and_handles_arrive() -> None:
    ours, theirs = wire_codec("ours" * 9), wire_codec("theirs" * 9)
    outcome, handle = (
        EpochOutcome(EpochResult(1, 0.9, 0.1), 30, 2.5, True),
        SiteHandle("west:1", "trains", "ours" * 9),
    )
    packed = ours.pack_value((handle, outcome, {SiteName("a"): no_crops(8)}))
    assert b"ours" not in packed
    handle, again, named = theirs.unpack_value(packed)
    assert handle == SiteHandle("west:1", "trains", "") and handle.token == "theirs" * 9
    assert again == outcome
    assert named["a"].side == 8

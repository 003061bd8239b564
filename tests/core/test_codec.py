"""Journal codec: facts are decoded as they were encoded, and anything else is refused."""

import json
from dataclasses import fields, is_dataclass
from enum import Enum
from types import UnionType
from typing import Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ekya.core import events as ev
from ekya.core.commands import Command
from ekya.core.configs import InferenceConfig
from ekya.core.events import Event
from ekya.core.plan import Plan
from ekya.core.profile import FamilyCurve
from ekya.core.speed import SpeedCurve
from ekya.core.state import FleetState
from ekya.core.units import StreamId
from ekya.results.storage.journal import decode_fact, encode_fact

KINDS = (*get_args(Event), *get_args(Command), Plan)

# A few characters of each kind that JSON or UTF-8 treats differently:
# a table of all of Unicode takes seconds to make.
CHARACTERS = 'ab0 "\\/\n\t\x00\x7fé\u2028🚲'

PLAIN = {
    int: st.integers(-(2**53), 2**53),
    # Minus zero equals the default 0.0, which the journal leaves out; no event has it.
    float: st.floats(allow_nan=False, allow_infinity=False).map(lambda number: number + 0.0),
    str: st.text(CHARACTERS, max_size=12),
    bool: st.booleans(),
    # Arbitrary points do not make a curve.
    SpeedCurve: st.builds(
        lambda speed: SpeedCurve(((0, 0.0), (300, speed), (1000, 1.0))), st.floats(0.0, 1.0)
    ),
}


def values_of(hint):
    """Any value that an annotation of a fact allows."""
    while hasattr(hint, "__supertype__"):
        hint = hint.__supertype__
    if hint in PLAIN:
        return PLAIN[hint]
    if hint is type(None):
        return st.none()
    if get_origin(hint) in (UnionType, Union):
        return st.one_of([values_of(one) for one in get_args(hint)])
    if get_origin(hint) is tuple:
        return st.lists(values_of(get_args(hint)[0]), max_size=3).map(tuple)
    if issubclass(hint, Enum):
        return st.sampled_from(hint)
    assert is_dataclass(hint), hint
    hints = get_type_hints(hint)
    return st.builds(hint, **{field.name: values_of(hints[field.name]) for field in fields(hint)})


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=8)
@given(data=st.data())
def test_decode_of_encoded_fact_is_equal(kind, data):
    fact = data.draw(values_of(kind))
    back = decode_fact(json.loads(json.dumps(encode_fact(fact))))
    assert back == fact
    # Equality does not distinguish an int from a float, or an enum from a string.
    assert repr(back) == repr(fact)


def test_kinds_have_unique_names():
    assert len({kind.__name__ for kind in KINDS}) == len(KINDS)


def test_encode_gives_plain_json_with_kind():
    event = ev.ShareMeasured(5, StreamId("cam"), ev.Role.RETRAINING, 250)
    expected = {"kind": "ShareMeasured", "t_us": 5, "stream": "cam", "role": "retraining", "share_milli": 250}
    assert encode_fact(event) == expected


@pytest.mark.parametrize("name", ["InferenceConfig", "RetrainJob", "os.system", "", None, 3])
def test_decode_unknown_kind_raises(name):
    with pytest.raises(ValueError, match="unknown kind"):
        decode_fact({"kind": name, "t_us": 0})


def test_decode_without_kind_raises():
    with pytest.raises(ValueError, match="unknown kind"):
        decode_fact({"t_us": 0, "index": 1})


@pytest.mark.parametrize(
    "values",
    [
        {"kind": "WindowClosed", "t_us": 0},
        {"kind": "WindowClosed", "t_us": "soon", "index": 1},
        {"kind": "WindowClosed", "t_us": 0.5, "index": 1},
        {"kind": "WorkerBack", "t_us": 0, "stream": "cam", "role": "cook"},
    ],
)
def test_decode_invalid_values_raises(values):
    with pytest.raises(ValueError, match="validation error"):
        decode_fact(values)


@pytest.mark.parametrize(
    "thing", [InferenceConfig(1, 32), FleetState(), FamilyCurve(8, 0, 0, 1, (), 0.0, 0.0), "WindowClosed"]
)
def test_encode_of_other_type_raises(thing):
    with pytest.raises(TypeError, match="not a kind"):
        encode_fact(thing)


def test_decode_leaves_input_unchanged():
    values = encode_fact(ev.WindowClosed(7, 2))
    decode_fact(values)
    assert values["kind"] == "WindowClosed"

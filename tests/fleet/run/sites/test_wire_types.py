"""All dataclasses in the signatures of what other sites call are sent, and no others."""

import inspect
from dataclasses import is_dataclass
from types import GenericAlias
from typing import Any, Literal, NewType, get_args, get_origin, get_type_hints

import numpy as np
import pytest

from ekya.core.units import StreamId
from ekya.fleet.policy.places import SiteName
from ekya.fleet.run.calls import Handle
from ekya.fleet.run.doctor import HostDoctor
from ekya.fleet.run.lending import Peer
from ekya.fleet.run.live.site import Site
from ekya.fleet.run.live.site_run import SiteRun
from ekya.fleet.run.server import AboveServers
from ekya.fleet.run.sites.client import COORDINATION, SiteHandle, training_types, wire_codec
from ekya.fleet.run.sites.codec import Codec
from ekya.fleet.run.training.actors import TrainingActor
from ekya.fleet.run.training.material import Push
from ekya.fleet.run.training.server import REMOTE_METHODS, ParameterServer
from ekya.fleet.run.training.workers import WorkerId
from ekya.models.training.frames import LabelledFrames
from ekya.models.training.labelled import Examples, LabelledCrops, no_crops

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
    served = [get_type_hints(getattr(ParameterServer, method)) for method in REMOTE_METHODS]
    told = [*hints_of(TrainingActor), *(hint for hints in served for hint in hints.values())]
    assert dataclasses_in(told) - set(COORDINATION) == set(training_types())


def test_no_two_classes_have_one_name() -> None:
    Codec([SiteHandle, *COORDINATION, *training_types()])


def test_the_walk_finds_what_is_nested_and_fails_on_what_is_unknown() -> None:
    nested = GenericAlias(dict, (StreamId, GenericAlias(tuple, (WorkerId | None, ...))))
    assert dataclasses_in([nested]) == {WorkerId}
    with pytest.raises(AssertionError, match="Peer"):
        dataclasses_in([GenericAlias(list, (Peer,))])


def test_trainings_and_handles_arrive() -> None:
    ours, theirs = wire_codec("ours" * 9), wire_codec("theirs" * 9)
    worker, crops = WorkerId("west", 1), no_crops(8)
    push = Push(np.arange(3, dtype=np.float32), 0.5, 4, 4, True)
    handle = SiteHandle("west:1", "trains", "ours" * 9)
    packed = ours.pack((handle, (3, 1), worker, push, {SiteName("a"): crops}, {worker: (1, 2)}))
    assert b"ours" not in packed
    handle, token, worker, push, named, moved = theirs.unpack(packed)
    assert handle == SiteHandle("west:1", "trains", "") and handle.token == "theirs" * 9
    assert (token, worker, moved) == ((3, 1), WorkerId("west", 1), {WorkerId("west", 1): (1, 2)})
    np.testing.assert_array_equal(push.gradient, np.arange(3, dtype=np.float32))
    assert named["a"].side == 8

"""Data that hosts keep from former loans."""

import pytest
from loan_cases import HOME, NOW_US, links, offer, room

from ekya.core.units import ModelVersion
from ekya.fleet.policy.already_there import KeptModels, left_behind
from ekya.fleet.policy.brokering import alone
from ekya.fleet.policy.names import SiteName
from ekya.fleet.policy.offers import AlreadyThere
from ekya.fleet.policy.splitting import Splitter

A, B = SiteName("a"), SiteName("b")
V0, V1, V2, V3 = map(ModelVersion, range(4))
MODEL = AlreadyThere(model_mb=45.0)


def by(site):
    return alone(NOW_US, offer(), room(site, [0.0]), 1, links(), "")


def split():
    return Splitter()(NOW_US, offer(), [room("a", [0.0, 0.0]), room("b", [0.0, 0.0])], links())


def already_there(kept, version, stream="cam"):
    return kept.already_there(stream, version, 45.0)


def test_a_host_keeps_the_model_that_it_was_sent() -> None:
    kept = KeptModels()
    assert already_there(kept, V0) == {}
    kept.begins(split(), V0)
    assert already_there(kept, V0) == {A: MODEL, B: MODEL}
    assert (already_there(kept, V1), already_there(kept, V0, "another")) == ({}, {})


def test_what_came_of_a_loan_lies_where_its_parameter_server_was_once_it_serves() -> None:
    kept, loan = KeptModels(), split()
    kept.begins(loan, V0)
    kept.serves("cam", V1, 3)
    assert already_there(kept, V1) == {}  # Not all epochs have arrived yet, so the loan still runs there.
    kept.arrived("cam", 3)
    kept.serves("cam", V0, 3)
    kept.serves("cam", V1, 3)
    assert already_there(kept, V1) == {loan.server: MODEL}
    assert already_there(kept, V0) == {({A, B} - {loan.server}).pop(): MODEL}
    kept.serves("cam", V2, 3)
    assert already_there(kept, V2) == {loan.server: MODEL}, "V1 was of an epoch before the best"
    kept.serves("cam", V3, 4)
    assert already_there(kept, V3) == {}


def test_an_epoch_that_served_before_the_last_and_is_the_best_lies_there_too() -> None:
    kept = KeptModels()
    kept.begins(by(A), V0)
    kept.serves("cam", V1, 3)
    kept.arrived("cam", 3)
    kept.serves("cam", V1, 3)
    kept.serves("cam", V1, 4)
    assert already_there(kept, V1) == {A: MODEL}


def test_weights_that_did_not_serve_in_their_window_are_nobody_s_start() -> None:
    kept = KeptModels()
    kept.begins(by(A), V0)
    kept.arrived("cam", 3)
    kept.serves("cam", V0, 4)
    kept.serves("cam", V1, 4)
    assert (already_there(kept, V0), already_there(kept, V1)) == ({A: MODEL}, {})


def test_who_goes_on_for_another_begins_with_a_snapshot() -> None:
    kept = KeptModels()
    kept.begins(by(A), V0)
    kept.goes_on(by(B))
    assert already_there(kept, V0) == {A: MODEL}
    kept.arrived("cam", 3)
    kept.serves("cam", V1, 3)
    assert already_there(kept, V1) == {B: MODEL}


def test_when_a_host_is_gone_the_others_have_their_crops() -> None:
    loan = split()
    parts = {part.host: part.crops for part in loan.parts}
    assert left_behind(loan, A) == {B: AlreadyThere(crops_mb=pytest.approx(1.2 * parts[B]))}
    assert left_behind(by(A), A) == {}
    assert sum(parts.values()) == pytest.approx(1.0)
    assert loan.offer.site == HOME

"""Tests of the check of clients of MPS: each finding must be able to fail."""

import importlib

import pytest

pytest.importorskip("cuda.bindings")
mps = importlib.import_module("gpu_check_mps")


def place(ran_on, granted):
    return {"ids": list(range(ran_on)), "granted_sms": granted}


def test_mps_ids_that_begin_at_0_in_each_client_are_met():
    finding = mps.places_finding([place(88, 88), place(44, 44)])
    assert (finding.met, finding.measured) == (True, "88 of 88 and 44 of 44")


@pytest.mark.parametrize("ran_on", [0, 43, 132])
def test_mps_other_number_than_granted_is_unmet(ran_on):
    assert not mps.places_finding([place(88, 88), place(ran_on, 44)]).met


@pytest.mark.parametrize(
    ("together", "met"), [([99.0, 91.0], True), ([99.0, 60.0], False), ([75.0, 50.0], False)]
)
def test_mps_clients_on_their_own_multiprocessors_keep_their_speed(together, met):
    assert mps.apart_finding([100.0, 100.0], together).met is met


@pytest.mark.parametrize(
    ("together", "met"), [([50.0, 50.0], True), ([99.0, 99.0], False), ([60.0, 65.0], False)]
)
def test_mps_clients_on_the_same_multiprocessors_share_the_speed(together, met):
    assert mps.same_finding(100.0, together).met is met

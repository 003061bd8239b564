"""Configurations that are ruled out when a γ finds too little memory."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekya.core.configs import RetrainConfig
from ekya.core.gpus import DidNotFit
from ekya.core.profile import Family

GAMMA = RetrainConfig(epochs=8, batch_size=16, head_width=64, trainable_blocks=2, data_fraction=0.5)

gammas = st.builds(
    RetrainConfig,
    st.integers(1, 3),
    st.sampled_from([8, 16, 32]),
    st.sampled_from([0, 64]),
    st.integers(0, 3),
    st.sampled_from([0.1, 0.5, 1.0]),
)


@pytest.mark.parametrize(
    ("change", "ruled_out"),
    [
        ({}, True),
        ({"epochs": 1}, True),
        ({"trainable_blocks": 3}, True),
        ({"trainable_blocks": 1}, False),
        ({"batch_size": 8}, False),
        ({"head_width": 0}, False),
        ({"data_fraction": 0.25}, False),
        ({"data_fraction": 0.25, "trainable_blocks": 3}, False),
    ],
)
def test_what_needs_as_much_is_ruled_out_and_what_needs_less_of_anything_is_not(change, ruled_out):
    assert DidNotFit.of(GAMMA).rules_out(replace(GAMMA, **change)) is ruled_out


def test_a_micro_profile_rules_its_family_out_whatever_the_data():
    tried = DidNotFit(Family(2, 64, 16), 0.0)
    assert tried.rules_out(replace(GAMMA, data_fraction=0.01))
    assert not tried.rules_out(replace(GAMMA, trainable_blocks=1))


@given(gammas, gammas, gammas)
def test_ruling_out_goes_on_from_one_to_the_next(small, middle, large):
    if DidNotFit.of(small).rules_out(middle) and DidNotFit.of(middle).rules_out(large):
        assert DidNotFit.of(small).rules_out(large)

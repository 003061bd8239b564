"""What is ruled out when memory is too little."""

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
def test_did_not_fit_rules_out_same_or_larger_gamma(change, ruled_out):
    assert DidNotFit.from_config(GAMMA).rules_out(replace(GAMMA, **change)) is ruled_out


def test_did_not_fit_of_profile_rules_out_family():
    tried = DidNotFit(Family(2, 64, 16), 0.0)
    assert tried.rules_out(replace(GAMMA, data_fraction=0.01))
    assert not tried.rules_out(replace(GAMMA, trainable_blocks=1))


@given(gammas, gammas, gammas)
def test_did_not_fit_is_transitive(small, middle, large):
    if DidNotFit.from_config(small).rules_out(middle) and DidNotFit.from_config(middle).rules_out(large):
        assert DidNotFit.from_config(small).rules_out(large)

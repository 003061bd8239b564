from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ekya.core.configs import RetrainConfig
from ekya.core.profile import family_of
from ekya.planning.profiling.history import Observation, ProfileHistory
from ekya.planning.profiling.pruning import RETRY_EVERY, pareto_distances, select_families

BASE = RetrainConfig(epochs=4, batch_size=16, head_width=0, trainable_blocks=0, data_fraction=1.0)
CHEAP, GOOD, WASTE = (replace(BASE, trainable_blocks=blocks) for blocks in (0, 1, 4))


def history(*rows, window=0):
    found = ProfileHistory()
    for config, gain, gpu_s in rows:
        found = found.with_observation(Observation(window, config, gain, gpu_s))
    return found


SEEN = history((CHEAP, 0.10, 1.0), (GOOD, 0.20, 4.0), (WASTE, 0.10, 16.0))


def test_pareto_distance_is_zero_on_front():
    distances = pareto_distances([CHEAP, GOOD, WASTE], SEEN)
    assert distances[CHEAP] == distances[GOOD] == 0.0
    # To be as good as CHEAP, WASTE must cost 1/16, the whole spread of costs; to be as good as GOOD,
    # it must gain 0.1 more, the whole spread of gains, and cost a quarter, half the spread.
    assert distances[WASTE] == pytest.approx(1.0)


def test_select_retries_far_family_every_fourth_window():
    configs = [CHEAP, GOOD, WASTE]
    wasted = [family_of(WASTE) in select_families(configs, SEEN, window) for window in range(8)]
    assert sum(wasted) == 2
    assert all(family_of(GOOD) in select_families(configs, SEEN, window) for window in range(8))


def test_select_of_untried_families_is_cheapest_first():
    families = select_families([WASTE, GOOD, CHEAP, replace(CHEAP, batch_size=32)], ProfileHistory(), 1)
    assert [(f.trainable_blocks, f.batch_size) for f in families] == [(0, 32), (0, 16), (1, 16), (4, 16)]


def test_select_sorts_by_measured_cost():
    dear_head = history((CHEAP, 0.1, 9.0), (GOOD, 0.2, 4.0))
    assert select_families([CHEAP, GOOD], dear_head, 0)[0] == family_of(GOOD)


def test_select_keeps_family_with_one_good_gamma():
    long = replace(WASTE, epochs=12)
    kept = history((CHEAP, 0.1, 1.0), (WASTE, 0.1, 16.0), (long, 0.4, 48.0))
    assert family_of(WASTE) in select_families([CHEAP, WASTE, long], kept, 2)


gammas = st.builds(
    RetrainConfig,
    st.sampled_from([2, 8]),
    st.just(16),
    st.sampled_from([0, 64]),
    st.integers(0, 4),
    st.just(1.0),
)


@settings(max_examples=50)
@given(
    st.lists(gammas, min_size=1, max_size=12),
    st.lists(st.tuples(gammas, st.floats(-0.3, 0.5), st.floats(0.0, 50.0)), max_size=12),
    st.integers(0, 20),
)
def test_select_is_never_empty_and_covers_all(configs, rows, window):
    known = history(*rows)
    chosen = select_families(configs, known, window)
    assert chosen
    assert len(set(chosen)) == len(chosen)
    assert select_families(list(reversed(configs)), known, window) == chosen
    seen = {
        family for w in range(window, window + RETRY_EVERY) for family in select_families(configs, known, w)
    }
    assert seen == {family_of(config) for config in configs}

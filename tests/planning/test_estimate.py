from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ekya.core.configs import RetrainConfig
from ekya.core.profile import FamilyCost, FamilyCurve, family_of
from ekya.core.units import StreamId
from ekya.planning.profiling.estimate import (
    estimate_as_in_the_paper,
    estimate_by_outcomes,
    reestimated_accuracy,
)
from ekya.planning.profiling.history import MEMORY_WINDOWS, Observation, ProfileHistory
from ekya.planning.profiling.learning_curve import fit_optimus
from ekya.planning.profiling.outcomes import DATA_EXPONENT, EPOCHS_EXPONENT
from ekya.planning.profiling.pruning import RETRY_EVERY, in_need, pareto_distances, select_families

SHORT = RetrainConfig(epochs=4, batch_size=16, head_width=0, trainable_blocks=1, data_fraction=0.5)
LONG = replace(SHORT, epochs=12, data_fraction=1.0)
OTHER = replace(SHORT, trainable_blocks=3)
A, B = StreamId("a"), StreamId("b")
COST = FamilyCost(family_of(SHORT), 0.002, 0.005)


def promised(*configs, serving=0.5, error=0.3, cost=COST, crops=100):
    options = estimate_by_outcomes(configs, [cost], crops, serving, lambda _: error)
    return {option.config: option for option in options}


def test_options_cost_what_the_card_says():
    options = promised(SHORT, LONG, OTHER)
    assert set(options) == {SHORT, LONG}, "a family without a cost is not offered"
    assert options[SHORT].gpu_s == pytest.approx(50 * (0.002 + 4 * 0.005))
    assert options[LONG].gpu_s == pytest.approx(100 * (0.002 + 12 * 0.005))


def test_options_promise_more_with_epochs_and_less_with_half_the_labels_twice():
    """The model sees the same number of crops; the error grows by 2^0.35, less the effect of more epochs."""
    half = replace(SHORT, epochs=2 * SHORT.epochs, data_fraction=SHORT.data_fraction / 2)
    error_of = {config: 1.0 - one.accuracy_after for config, one in promised(SHORT, LONG, half).items()}
    assert error_of[LONG] < error_of[SHORT]
    assert error_of[half] / error_of[SHORT] == pytest.approx(2 ** (DATA_EXPONENT - EPOCHS_EXPONENT))


def test_options_early_part_excludes_preparation():
    (plain,) = promised(LONG).values()
    (late,) = promised(LONG, cost=replace(COST, prepare_gpu_s=12 * COST.epoch_gpu_s)).values()
    assert 0.0 < late.early_part == pytest.approx(plain.early_part * 0.5 * (62 / 60), rel=1e-6)
    assert promised(SHORT, serving=0.99)[SHORT].early_part == 0.0, "it gains nothing"


configs = st.builds(
    RetrainConfig,
    st.sampled_from([1, 4, 32]),
    st.just(16),
    st.just(0),
    st.just(1),
    st.sampled_from([0.25, 1.0]),
)


@given(st.sets(configs, min_size=1), st.floats(0, 1), st.floats(0, 2), st.integers(1, 500))
def test_options_stay_in_range_and_rise_with_work(asked, serving, error, crops):
    options = promised(*asked, serving=serving, error=error, crops=crops)
    assert list(options) == sorted(asked)
    for config, option in options.items():
        assert 0.0 <= option.accuracy_after <= 1.0
        assert 0.0 <= option.early_part < 1.0
        for more in options:
            if more.epochs >= config.epochs and more.data_fraction >= config.data_fraction:
                assert options[more].accuracy_after >= option.accuracy_after - 1e-9


CURVE = FamilyCurve(16, 0, 1, 64, (0.5, 0.58, 0.63, 0.66), epoch_gpu_s=0.5, prepare_gpu_s=0.2)
TIMED = FamilyCurve(16, 0, 3, 16, (), 0.5, 0.2, None, 0.3, 0.1)
"""Blocks that were only timed."""


def test_options_of_the_paper_are_the_plain_curve():
    """No estimate for a family without a curve."""
    options = estimate_as_in_the_paper([CURVE, TIMED], [SHORT, OTHER], 64)
    assert [option.config for option in options] == [SHORT]
    curve = fit_optimus([64.0 * epoch for epoch in range(4)], CURVE.accuracies)
    assert options[0].accuracy_after == curve.accuracy_at(4 * 32)


def test_options_of_the_paper_cost_in_proportion_to_crops_and_epochs():
    fixed = replace(CURVE, fixed_prepare_gpu_s=0.3, fixed_epoch_gpu_s=0.1)
    short, long = estimate_as_in_the_paper([fixed], [SHORT, LONG], 128)
    assert short.gpu_s == pytest.approx(0.3 + 4 * 0.1 + 0.2 + 4 * 0.5)
    assert long.gpu_s == pytest.approx(0.3 + 12 * 0.1 + 2 * (0.2 + 12 * 0.5))


def test_options_of_the_paper_need_one_curve_a_family_and_a_crop():
    with pytest.raises(ValueError, match="two curves"):
        estimate_as_in_the_paper([CURVE, CURVE], [SHORT], 128)
    with pytest.raises(ValueError, match="at least one crop"):
        estimate_as_in_the_paper([CURVE], [SHORT], 0)


def test_with_observation_replaces_and_forgets_old_windows():
    found = ProfileHistory()
    for window in range(8):
        found = found.with_observation(Observation(window, SHORT, 0.3, 1.0))
    found = found.with_observation(Observation(7, SHORT, 0.1, 2.0, predicted_gain=0.3))
    assert [(o.window, o.gain) for o in found.observations][-2:] == [(6, 0.3), (7, 0.1)]
    assert len(found.observations) == MEMORY_WINDOWS


def test_comparison_on_later_labels_takes_the_place_of_the_newest_measured_gain():
    retrained = Observation(1, SHORT, 0.3, 1.0, before=0.5, validation_crops=4)
    found = ProfileHistory((retrained,)).with_comparison(0.6, 0.65, 15)
    (again,) = found.observations
    assert (again.before, again.gain, again.validation_crops) == (0.6, pytest.approx(0.05), 15)
    profiled = ProfileHistory((Observation(1, SHORT, 0.3, 1.0),))
    assert profiled.with_comparison(0.6, 0.65, 15) == profiled
    assert ProfileHistory().with_comparison(0.6, 0.65, 15) == ProfileHistory()


def test_reestimate_of_a_flat_retraining_falls_with_each_epoch():
    expected = [reestimated_accuracy(LONG, 0.8, [0.55] * done) for done in (1, 3, 6, 12)]
    assert 0.55 < expected[0] < 0.8
    assert expected == sorted(expected, reverse=True)
    assert expected[-1] == pytest.approx(0.55, abs=1e-6)


def test_reestimate_of_a_falling_retraining_keeps_its_best_epoch():
    assert reestimated_accuracy(LONG, 0.8, [0.9, 0.7]) == 0.9


def test_reestimate_with_more_epochs_than_gamma_has_raises():
    with pytest.raises(ValueError, match="13 epochs"):
        reestimated_accuracy(LONG, 0.8, [0.5] * 13)


BASE = RetrainConfig(epochs=4, batch_size=16, head_width=0, trainable_blocks=0, data_fraction=1.0)
CHEAP, GOOD, WASTE = (replace(BASE, trainable_blocks=blocks) for blocks in (0, 1, 4))


def profiled_before(*rows, window=0):
    found = ProfileHistory()
    for config, gain, gpu_s in rows:
        found = found.with_observation(Observation(window, config, gain, gpu_s))
    return found


SEEN = profiled_before((CHEAP, 0.10, 1.0), (GOOD, 0.20, 4.0), (WASTE, 0.10, 16.0))


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
    dear_head = profiled_before((CHEAP, 0.1, 9.0), (GOOD, 0.2, 4.0))
    assert select_families([CHEAP, GOOD], dear_head, 0)[0] == family_of(GOOD)


def test_select_keeps_family_with_one_good_gamma():
    long = replace(WASTE, epochs=12)
    kept = profiled_before((CHEAP, 0.1, 1.0), (WASTE, 0.1, 16.0), (long, 0.4, 48.0))
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
    known = profiled_before(*rows)
    chosen = select_families(configs, known, window)
    assert chosen
    assert len(set(chosen)) == len(chosen)
    assert select_families(list(reversed(configs)), known, window) == chosen
    seen = {
        family for w in range(window, window + RETRY_EVERY) for family in select_families(configs, known, w)
    }
    assert seen == {family_of(config) for config in configs}


def test_in_need_sorts_worst_first_and_skips_accurate():
    accuracies = {A: 0.9, B: 1.0, StreamId("c"): 0.4, StreamId("d"): 0.95}
    assert in_need(accuracies) == ("c", "a")

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ekya.core.configs import RetrainConfig
from ekya.core.profile import FamilyCurve, Profiler, family_of
from ekya.core.units import StreamId
from ekya.core.view import RetrainOption
from ekya.planning.profiling.estimate import (
    DATA_EXPONENT,
    EPOCHS_EXPONENT,
    estimate_options,
    outcome_sd,
    reestimated_accuracy,
    served_after,
)
from ekya.planning.profiling.history import MEMORY_WINDOWS, Observation, ProfileHistory, bias_correction
from ekya.planning.profiling.learning_curve import fit_optimus
from ekya.planning.profiling.pruning import RETRY_EVERY, in_need, pareto_distances, select_families

SHORT = RetrainConfig(epochs=4, batch_size=16, head_width=0, trainable_blocks=1, data_fraction=0.5)
LONG = replace(SHORT, epochs=12, data_fraction=1.0)
OTHER = replace(SHORT, trainable_blocks=3)
CURVE = FamilyCurve(16, 0, 1, 64, (0.5, 0.58, 0.63, 0.66), epoch_gpu_s=0.5, prepare_gpu_s=0.2)


def test_options_gpu_seconds_scale_with_crops_and_epochs():
    by_config = {o.config: o for o in estimate_options([CURVE], [SHORT, LONG, OTHER], 128)}
    assert set(by_config) == {SHORT, LONG}, "a family that was not profiled has no estimate"
    assert by_config[SHORT].gpu_s == pytest.approx(0.2 + 4 * 0.5)
    assert by_config[LONG].gpu_s == pytest.approx(2 * (0.2 + 12 * 0.5))


def test_options_early_part_of_steep_curve_excludes_preparation():
    longer = replace(SHORT, epochs=40)
    steep, (early,) = (estimate_options([CURVE], [config], 128) for config in (SHORT, longer))
    assert 0.0 < steep[0].early_part < early.early_part < 1.0
    prepared = replace(CURVE, prepare_gpu_s=40 * CURVE.epoch_gpu_s)
    (late,) = estimate_options([prepared], [longer], 128)
    assert late.accuracy_after == early.accuracy_after
    assert late.early_part < 0.52 * early.early_part
    (flat,) = estimate_options([replace(CURVE, accuracies=(0.99, 0.3, 0.3))], [SHORT], 128)
    assert flat.early_part == 0.0


def test_options_with_more_epochs_promise_more():
    longer = replace(SHORT, epochs=4 * SHORT.epochs)
    few, many = (of.accuracy_after for of in estimate_options([CURVE], [SHORT, longer], 128))
    assert few < many < 0.95


def test_options_with_half_the_labels_twice_promise_less():
    """The model sees the same number of crops; the error grows by 2^0.35, less the effect of more epochs."""
    half = replace(SHORT, epochs=2 * SHORT.epochs, data_fraction=SHORT.data_fraction / 2)
    by_config = {o.config: o for o in estimate_options([CURVE], [SHORT, half], 128)}
    error_of = {config: 1.0 - option.accuracy_after for config, option in by_config.items()}
    assert 2 ** (DATA_EXPONENT - EPOCHS_EXPONENT) <= error_of[half] / error_of[SHORT] <= 2**DATA_EXPONENT
    assert by_config[half].gpu_s == pytest.approx(by_config[SHORT].gpu_s, rel=0.05)


ALL_LABELS = FamilyCurve(16, 0, 0, 64, (0.4, 0.55, 0.6, 0.62, 0.63, 0.64), 0.1, 0.2, validation_crops=100)
"""A curve of the head; 100 crops are behind each point."""

TIMED = FamilyCurve(16, 0, 1, 16, (), 0.5, 0.2, None, 0.3, 0.1)
"""Blocks that were only timed."""


def test_options_of_timed_family_follow_other_families():
    head = replace(SHORT, trainable_blocks=0)
    low, high = (
        {
            o.config: o
            for o in estimate_options([replace(ALL_LABELS, accuracies=points), TIMED], [head, SHORT], 64)
        }
        for points in ((0.4, 0.5, 0.5), (0.4, 0.7, 0.75))
    )
    assert low[SHORT].accuracy_after < high[SHORT].accuracy_after
    assert low[head].accuracy_after < low[SHORT].accuracy_after
    assert low[SHORT].accuracy_sd > low[head].accuracy_sd > 0.0
    assert low[SHORT].gpu_s == pytest.approx(0.3 + 2 * 0.2 + 4 * (0.1 + 2 * 0.5))


def test_options_with_more_crops_have_smaller_sd():
    few, many = (
        estimate_options(
            [replace(ALL_LABELS, validation_crops=crops)], [replace(SHORT, trainable_blocks=0)], 64
        )[0]
        for crops in (16, 1600)
    )
    assert many.accuracy_sd < few.accuracy_sd


def test_options_of_blocks_gain_with_more_objects():
    head = replace(SHORT, trainable_blocks=0)
    ratios = []
    for crops in (15, 30, 120):
        promised = estimate_options([replace(ALL_LABELS, validation_crops=crops), TIMED], [head, SHORT], 64)
        by_config = {o.config: 1.0 - o.accuracy_after for o in promised}
        ratios.append(by_config[SHORT] / by_config[head])
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[-1] < 0.8 * ratios[0]


def test_options_after_surprises_have_larger_sd():
    surprised, confirmed = history(0.4, -0.4, 0.4, -0.4), history(0.0, 0.0, 0.0, 0.0)
    sds = [
        estimate_options([CURVE], [SHORT], 128, history=of)[0].accuracy_sd for of in (confirmed, surprised)
    ]
    assert sds[0] < sds[1]


def test_outcome_sd_shrinks_with_objects_not_gain():
    none, option = history(), RetrainOption(SHORT, 0.6, 1.0)
    sds = [outcome_sd(none, objects) for objects in (5, 15, 60, 6000)]
    assert sds[0] == sds[1] > sds[2] > sds[3] > 0.0
    served = [
        served_after(replace(option, accuracy_sd=(sd**2 + 0.1**2) ** 0.5), 0.6, none, objects)
        for sd, objects in ((sds[1], 15), (sds[2], 60))
    ]
    assert served[0] == pytest.approx(served[1])


@given(accuracy=st.integers(0, 20), serving=st.integers(0, 20), sd=st.integers(0, 6))
def test_served_after_is_at_least_both_accuracies(accuracy, serving, sd):
    """The expected accuracy afterwards is neither below the serving weights' nor below the new weights'."""
    now, none = serving / 20, history()
    option = RetrainOption(SHORT, accuracy / 20, 1.0, accuracy_sd=sd / 20)
    served = served_after(option, now, none)
    if option.accuracy_sd <= outcome_sd(none):
        assert served == option.accuracy_after, "what only the next window will tell is no chance to gain"
    else:
        assert max(now, option.accuracy_after) < served + 1e-9
        surer = replace(option, accuracy_sd=(sd - 1) / 20)
        assert surer.accuracy_sd <= outcome_sd(none) or served_after(surer, now, none) <= served + 1e-9


@given(
    points=st.lists(st.integers(0, 20), min_size=1, max_size=9),
    crops=st.sampled_from([8, 64, None]),
    timed=st.booleans(),
)
def test_options_stay_in_range_and_rise_with_work(points, crops, timed):
    curve = replace(ALL_LABELS, accuracies=tuple(point / 20 for point in points), validation_crops=crops)
    asked = [
        RetrainConfig(epochs, 16, 0, blocks, part)
        for blocks in (0, 1)
        for part in (0.25, 1.0)
        for epochs in (1, 4, 32)
    ]
    curves = [curve, TIMED] if timed else [curve]
    promised = {o.config: o for o in estimate_options(curves, asked, 60, validation_crops=15)}
    assert len(promised) == (12 if timed else 6)
    for config, option in promised.items():
        assert 0.0 <= option.accuracy_after <= 1.0
        for more in (replace(config, epochs=32), replace(config, data_fraction=1.0)):
            assert promised[more].accuracy_after >= option.accuracy_after - 1e-9


def test_options_of_paper_profiler_are_the_plain_curve():
    """The paper's version: no uncertainty, and no estimate for a family without a curve."""
    promised = estimate_options(
        [ALL_LABELS, TIMED], [SHORT, replace(SHORT, trainable_blocks=0)], 64, profiler=Profiler.PAPER
    )
    assert [option.config.trainable_blocks for option in promised] == [0]
    curve = fit_optimus([64.0 * epoch for epoch in range(6)], ALL_LABELS.accuracies)
    assert promised[0].accuracy_after == curve.accuracy_at(4 * 32)
    assert promised[0].accuracy_sd == 0.0


def history(*errors, config=SHORT):
    found = ProfileHistory()
    for window, error in enumerate(errors):
        found = found.with_observation(Observation(window, config, 0.1 + error, 1.0, predicted_gain=0.1))
    return found


def test_options_correct_lasting_bias_not_one_surprise():
    lasting, single = history(-0.1, -0.1, -0.1, -0.1, -0.1), history(-0.1)
    plain = estimate_options([CURVE], [SHORT], 128)[0].accuracy_after
    after_many = estimate_options([CURVE], [SHORT], 128, history=lasting)[0].accuracy_after
    after_one = estimate_options([CURVE], [SHORT], 128, history=single)[0].accuracy_after
    assert -0.1 < after_many - plain < -0.06
    assert -0.05 < after_one - plain < 0.0


def test_bias_correction_ignores_one_outlier():
    assert bias_correction(history(0.0, 0.0, 0.5, 0.0, 0.0)).correction_for_family(family_of(SHORT)) == 0.0


def test_bias_correction_without_history_uses_all():
    bias = bias_correction(history(-0.1, -0.1, -0.1))
    assert bias.correction_for_family(family_of(OTHER)) == pytest.approx(-0.05)
    assert bias.correction_for_family(family_of(SHORT)) < bias.correction_for_family(family_of(OTHER))


def test_options_with_two_curves_of_a_family_raise():
    with pytest.raises(ValueError, match="two curves"):
        estimate_options([CURVE, CURVE], [SHORT], 128)


def test_with_observation_replaces_and_forgets_old_windows():
    found = ProfileHistory()
    for window in range(8):
        found = found.with_observation(Observation(window, SHORT, 0.3, 1.0))
    found = found.with_observation(Observation(7, SHORT, 0.1, 2.0, predicted_gain=0.3))
    assert [(o.window, o.gain) for o in found.observations][-2:] == [(6, 0.3), (7, 0.1)]
    assert len(found.observations) == MEMORY_WINDOWS


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
    accuracies = {StreamId("a"): 0.9, StreamId("b"): 1.0, StreamId("c"): 0.4, StreamId("d"): 0.95}
    assert in_need(accuracies) == ("c", "a")

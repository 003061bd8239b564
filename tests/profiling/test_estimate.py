from dataclasses import replace

import pytest

from ekya.core.configs import RetrainConfig
from ekya.core.profile import FamilyCurve, family_of
from ekya.core.view import RetrainOption
from ekya.profiling.estimate import bias_correction, options
from ekya.profiling.history import Observation, ProfileHistory
from ekya.profiling.progress import reestimate

SHORT = RetrainConfig(epochs=4, batch_size=16, head_width=0, trainable_blocks=1, data_fraction=0.5)
LONG = replace(SHORT, epochs=12, data_fraction=1.0)
OTHER = replace(SHORT, trainable_blocks=3)
CURVE = FamilyCurve(16, 0, 1, 64, (0.5, 0.58, 0.63, 0.66), epoch_gpu_s=0.5, prepare_gpu_s=0.2)


def test_gpu_seconds_scale_with_crops_and_epochs():
    by_config = {o.config: o for o in options([CURVE], [SHORT, LONG, OTHER], 128)}
    assert set(by_config) == {SHORT, LONG}, "a family that was not profiled has no estimate"
    assert by_config[SHORT].gpu_s == pytest.approx(0.2 + 4 * 0.5)
    assert by_config[LONG].gpu_s == pytest.approx(2 * (0.2 + 12 * 0.5))


def test_more_crops_seen_promise_more():
    longer = replace(SHORT, epochs=4 * SHORT.epochs)
    few, many = (of.accuracy_after for of in options([CURVE], [SHORT, longer], 128))
    assert few < many < 0.95


def test_half_of_the_labels_seen_twice_are_not_all_of_them():
    """The same crops pass through the model; the error grows by 2^0.35."""
    half = replace(SHORT, epochs=2 * SHORT.epochs, data_fraction=SHORT.data_fraction / 2)
    by_config = {o.config: o for o in options([CURVE], [SHORT, half], 128)}
    error_of = {config: 1.0 - option.accuracy_after for config, option in by_config.items()}
    assert error_of[half] / error_of[SHORT] == pytest.approx(2**0.35)
    assert by_config[half].gpu_s == pytest.approx(by_config[SHORT].gpu_s, rel=0.05)


def history(*errors, config=SHORT):
    found = ProfileHistory()
    for window, error in enumerate(errors):
        found = found.with_observation(Observation(window, config, 0.1 + error, 1.0, predicted_gain=0.1))
    return found


def test_a_lasting_bias_is_corrected_a_single_surprise_hardly():
    lasting, single = history(-0.1, -0.1, -0.1, -0.1, -0.1), history(-0.1)
    plain = options([CURVE], [SHORT], 128)[0].accuracy_after
    after_many = options([CURVE], [SHORT], 128, history=lasting)[0].accuracy_after
    after_one = options([CURVE], [SHORT], 128, history=single)[0].accuracy_after
    assert -0.1 < after_many - plain < -0.06
    assert -0.05 < after_one - plain < 0.0


def test_one_outlier_among_many_changes_nothing():
    assert bias_correction(history(0.0, 0.0, 0.5, 0.0, 0.0)).of(family_of(SHORT)) == 0.0


def test_a_family_without_a_history_gets_what_holds_for_all():
    bias = bias_correction(history(-0.1, -0.1, -0.1))
    assert bias.of(family_of(OTHER)) == pytest.approx(-0.05)
    assert bias.of(family_of(SHORT)) < bias.of(family_of(OTHER))


def test_two_curves_of_one_family_are_refused():
    with pytest.raises(ValueError, match="two curves"):
        options([CURVE, CURVE], [SHORT], 128)


def test_a_measurement_replaces_the_profile_of_its_window_and_old_windows_are_forgotten():
    found = ProfileHistory(memory_windows=2)
    for window in range(4):
        found = found.with_observation(Observation(window, SHORT, 0.3, 1.0))
    found = found.with_observation(Observation(3, SHORT, 0.1, 2.0, predicted_gain=0.3))
    assert [(o.window, o.gain) for o in found.observations] == [(2, 0.3), (3, 0.1)]


PROMISED = RetrainOption(LONG, 0.8, 12.0)


def test_a_retraining_that_disappoints_is_expected_to_give_less_and_more_so_each_epoch():
    flat = [(epoch, 0.55) for epoch in range(13)]
    expected = [reestimate(PROMISED, flat[: done + 1], float(done)).accuracy_after for done in (0, 3, 6, 12)]
    assert expected[0] == 0.8
    assert expected == sorted(expected, reverse=True)
    assert expected[-1] == pytest.approx(0.55, abs=1e-6)


def test_a_retraining_that_outdoes_its_promise_is_expected_to_keep_what_it_has():
    rising_then_worse = [(0, 0.5), (1, 0.9), (2, 0.7)]
    assert reestimate(PROMISED, rising_then_worse, 2.0).accuracy_after == 0.9
    started_high = [(0, 0.95), (1, 0.6)]
    assert reestimate(PROMISED, started_high, 1.0).accuracy_after < 0.95


def test_what_is_left_goes_by_the_measured_pace():
    """Promised 1 GPU-second an epoch, measured 2."""
    assert reestimate(PROMISED, [(0, 0.5), (3, 0.6)], 6.0).gpu_s == pytest.approx(18.0)
    assert reestimate(PROMISED, [(0, 0.5)], 2.0).gpu_s == pytest.approx(10.0)
    assert reestimate(PROMISED, [], 20.0).gpu_s == 0.0


def test_more_epochs_than_gamma_has_are_refused():
    with pytest.raises(ValueError, match="13 epochs"):
        reestimate(PROMISED, [(13, 0.5)], 1.0)

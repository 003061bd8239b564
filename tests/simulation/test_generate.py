"""Tests of generated traces: seeded, complete, and distributed as in the paper."""

from dataclasses import replace
from itertools import pairwise, product
from statistics import pstdev

import pytest

from ekya.core.trace import BASE_WINDOW, Origin
from ekya.simulation.trace.generate import generate_trace
from ekya.simulation.trace.generator_parameters import MEASURED_SPEED, GeneratorParameters

STREAMS, WINDOWS = 12, 4


@pytest.fixture(scope="module")
def trace():
    return generate_trace(7, STREAMS, WINDOWS)


def outcomes(trace, window):
    """Yields for each stream a list of (γ, start accuracy, accuracy after, GPU-seconds)."""
    for stream in trace.streams:
        here = stream.windows[window]
        start = here.start_of(Origin(window - 1)).served_accuracy
        found = []
        for config in trace.retrain_configs:
            epoch = here.best_training(config, Origin(window - 1)).epochs[config.epochs - 1]
            found.append((config, start, epoch.standings[0].served_accuracy, epoch.gpu_s))
        yield found


def test_generate_trace_depends_on_the_seed_alone(trace):
    assert generate_trace(7, STREAMS, WINDOWS) == trace
    assert generate_trace(8, STREAMS, WINDOWS) != trace


def test_generate_stream_does_not_depend_on_their_number(trace):
    few = generate_trace(7, 3, WINDOWS)
    assert [stream.windows for stream in few.streams] == [stream.windows for stream in trace.streams[:3]]


def test_generate_window_does_not_depend_on_later_ones(trace):
    short = generate_trace(7, STREAMS, WINDOWS - 1)
    for window in range(1, WINDOWS - 1):
        assert list(outcomes(short, window)) == list(outcomes(trace, window))


def test_generate_default_has_18_gammas_of_wide_cost(trace):
    assert len(trace.retrain_configs) == 18
    for found in outcomes(trace, 1):
        costs = [gpu_s for *_, gpu_s in found]
        assert max(costs) / min(costs) == pytest.approx(210)


def test_generate_epochs_gain_less_and_less():
    exact = generate_trace(7, STREAMS, 2, GeneratorParameters(training_noise=0.0))
    for stream in exact.streams:
        for training in stream.windows[1].trainings:
            reached = [epoch.standings[0].served_accuracy for epoch in training.epochs]
            gains = [abs(after - before) for before, after in pairwise(reached)]
            assert all(later <= earlier + 1e-12 for earlier, later in pairwise(gains))


def test_generate_curves_of_two_families_cross(trace):
    """With few epochs the head alone is better, with many it is worse."""
    crossing = 0
    for stream in trace.streams:
        for window in stream.windows[1:]:
            head, blocks = (
                next(
                    t
                    for t in window.trainings
                    if t.family.trainable_blocks == depth and t.data_fraction == 1.0
                )
                for depth in (0, 2)
            )
            ahead = [
                h.standings[0].served_accuracy > b.standings[0].served_accuracy
                for h, b in zip(head.epochs, blocks.epochs, strict=True)
            ]
            crossing += ahead[0] and not ahead[-1]
    assert crossing > STREAMS // 4


def test_generate_gains_differ_between_streams(trace):
    best = [
        max(after for _, _, after, _ in found) - found[0][1]
        for window in (2, 3)
        for found in outcomes(trace, window)
    ]
    assert min(best) < 0.03
    assert max(best) > 0.2


def test_generate_higher_cost_is_not_always_better(trace):
    assert any(
        after < other
        for found in outcomes(trace, 1)
        for _, _, after, gpu_s in found
        for _, _, other, less in found
        if less < gpu_s
    )


def test_generate_accuracy_falls_with_distance_of_scenes(trace):
    for stream in trace.streams:
        for training in stream.windows[1].trainings:
            for epoch in training.epochs:
                first, *later = epoch.standings
                assert first.window == 1
                assert all(standing.served_accuracy <= first.served_accuracy for standing in later)


def test_generate_windows_have_starts_of_all_older_models(trace):
    for stream in trace.streams:
        for window in stream.windows:
            starts = [start.origin.trained_in for start in window.starts]
            assert starts == [BASE_WINDOW, *range(1, window.window)]


def test_generate_windows_try_every_family_from_every_start(trace):
    families = {shape.family for shape in GeneratorParameters().families}
    for stream in trace.streams:
        for window in stream.windows:
            tried = {(trial.family, trial.started_from) for trial in window.trials}
            starts = [start.origin for start in window.starts] if window.window else []
            assert tried == set(product(families, starts))
            for trial in window.trials:
                assert all(0.0 <= accuracy <= 1.0 for accuracy in trial.curve.accuracies)


def test_generate_trials_change_nothing_that_is_true(trace):
    fewer = generate_trace(7, STREAMS, WINDOWS, GeneratorParameters(objects=10))
    assert fewer != trace
    assert without_trials(fewer) == without_trials(trace)


def without_trials(trace):
    return [[replace(window, trials=()) for window in stream.windows] for stream in trace.streams]


def test_generate_trials_measure_closer_on_more_objects():
    """The first point of a trial is the accuracy of the model that serves, as few objects show it."""

    def spread(objects):
        trace = generate_trace(7, STREAMS, 2, GeneratorParameters(objects=objects, training_noise=0.0))
        return pstdev(
            trial.curve.accuracies[0] - window.start_of(trial.started_from).served_accuracy
            for stream in trace.streams
            for window in stream.windows
            for trial in window.trials
        )

    assert spread(10_000) < 0.01
    assert 0.03 < spread(100) < spread(10)


def test_generate_validation_is_exact_without_noise(trace):
    def apart(trace):
        return max(
            abs(epoch.standings[0].validation_accuracy - epoch.standings[0].accuracy)
            for stream in trace.streams
            for training in stream.windows[1].trainings
            for epoch in training.epochs
        )

    assert apart(trace) == 0.0
    assert apart(generate_trace(7, 2, 2, GeneratorParameters(validation_noise=0.05))) > 0.05


def test_measured_speed_a_tenth_runs_at_36_percent():
    assert MEASURED_SPEED.speed_at(100) == pytest.approx(0.36, abs=0.005)

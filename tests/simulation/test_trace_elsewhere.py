"""Tests of traces with weights that are not trained locally, and of the truth that an oracle receives."""

from dataclasses import replace

import pytest

from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.configs import RetrainConfig
from ekya.core.profile import family_of
from ekya.core.trace import Origin
from ekya.core.weights import CachedModel
from ekya.planning.schedulers.registry import make_scheduler
from ekya.results.metrics.run_history import summarize_steps
from ekya.simulation.trace.generate import generate_trace
from ekya.simulation.trace.generator_parameters import GeneratorParameters
from ekya.simulation.trace.simulate import Conditions, simulate

SMALL = GeneratorParameters(
    epochs=(2, 6), data_fractions=(0.5, 1.0), window_s=60.0, dearest_gpu_s=(20.0, 40.0)
)
TRACE = generate_trace(11, 3, 4, SMALL)
CONDITIONS = Conditions(gpus=1.5)


def played(name, trace=TRACE, **conditions):
    return simulate(trace, make_scheduler(name), replace(CONDITIONS, **conditions))


def of(run, kind, list_name="events"):
    return [one for turn in run.steps for one in getattr(turn, list_name) if isinstance(one, kind)]


def window_of(event, run):
    return int(event.t_us // run.options.window_us)


def test_cloud_model_arrives_in_time_with_best_epoch():
    run = played("cloud:up=20:down=100")
    started = {one.job: one for one in of(run, cmd.StartRetraining, "commands")}
    assert all(one.share_milli == 0 for one in started.values())
    progress = {one.job: one for one in of(run, ev.RetrainProgress)}
    arrived = of(run, ev.RetrainFinished)
    assert len(arrived) == 9
    for event in arrived:
        command = started[event.job]
        assert event.t_us == command.elsewhere.arrives_us
        stream = next(one for one in TRACE.streams if one.stream == event.stream)
        training = stream.windows[command.window].best_training(
            command.config, Origin(command.window - 1, family_of(command.config))
        )
        told = [one.standings[0].validation_accuracy for one in training.epochs]
        assert progress[event.job].validation_accuracy == max(told[: command.config.epochs])
    assert {event.job for event in of(run, ev.ModelSwapped)} == set(started)
    assert not of(run, ev.LabelsReady)


def test_cloud_model_that_never_arrives_changes_nothing():
    late, never = played("cloud:up=0.01:down=0.01"), played("no-retrain")
    assert len(of(late, cmd.StartRetraining, "commands")) == 3
    assert not of(late, ev.RetrainFinished)
    assert late.accuracy == never.accuracy


def test_cloud_model_that_comes_late_serves_from_then_on():
    run = played("cloud:up=2:down=4")
    started = {one.job: one for one in of(run, cmd.StartRetraining, "commands")}
    late = [one for one in of(run, ev.ModelSwapped) if window_of(one, run) > started[one.job].window]
    assert late
    assert all(one.t_us >= started[one.job].elsewhere.arrives_us for one in late)


def test_cloud_more_bandwidth_gives_higher_accuracy():
    accuracies = [played(f"cloud:up={mbps}:down={4 * mbps}").mean_accuracy for mbps in (2, 8, 100)]
    assert accuracies == sorted(accuracies)
    assert accuracies[-1] > played("no-retrain").mean_accuracy


def test_reuse_keeps_one_model_of_each_earlier_window():
    run = played("reuse")
    kept = of(run, ev.ModelCached)
    assert len(kept) == 3 * 2
    thorough = RetrainConfig(6, *_dearest_family(), 1.0)
    for event in kept:
        model, stream = event.model, next(one for one in TRACE.streams if one.stream == event.stream)
        assert window_of(event, run) == model.trained_in + 1
        before = stream.windows[model.trained_in - 1].class_histogram
        assert model == CachedModel(thorough, model.trained_in, before)


def _dearest_family():
    families = {family_of(config) for config in TRACE.retrain_configs}
    dearest = max(families, key=lambda family: (family.trainable_blocks, family.head_width))
    return dearest.batch_size, dearest.head_width, dearest.trainable_blocks


def test_reuse_most_similar_model_serves_with_trace_accuracy():
    run = played("reuse")
    started = {one.job: one for one in of(run, cmd.StartRetraining, "commands")}
    told = {one.job: one for one in of(run, ev.RetrainProgress)}
    assert started
    for job, command in started.items():
        stream = next(one for one in TRACE.streams if one.stream == command.stream)
        trained_in = command.elsewhere.trained_in
        today = _part(stream.windows[command.window - 1].class_histogram)
        distances = {
            window: sum((a - b) ** 2 for a, b in zip(today, _part(mix.class_histogram), strict=True))
            for window, mix in enumerate(stream.windows[: command.window - 1], start=1)
        }
        assert trained_in == min(distances, key=lambda window: (round(distances[window], 12), -window))
        training = stream.windows[trained_in].best_training(
            command.config, Origin(trained_in - 1, family_of(command.config))
        )
        best = max(training.epochs, key=lambda e: (e.standings[0].validation_accuracy, e.epoch))
        standing = training.standing_in(best.epoch, command.window)
        assert told[job].validation_accuracy == standing.validation_accuracy
    assert run.mean_accuracy > played("no-retrain").mean_accuracy


def _part(counts):
    return [count / sum(counts) for count in counts]


def test_reuse_trace_without_histograms_reuses_nothing():
    streams = tuple(
        replace(stream, windows=tuple(replace(window, class_histogram=()) for window in stream.windows))
        for stream in TRACE.streams
    )
    run = played("reuse", replace(TRACE, streams=streams))
    assert not of(run, cmd.StartRetraining, "commands")


def test_kept_models_are_reported_only_if_needed():
    assert not of(played("uniform"), ev.ModelCached)


NOISY = generate_trace(11, 3, 4, replace(SMALL, validation_noise=0.1))


def test_oracle_knows_every_gamma_at_no_cost():
    run = played("oracle", NOISY)
    seen = {(one.stream, one.window): set() for one in of(run, ev.LabelsReady)}
    for event in of(run, ev.RetrainProfiled):
        stream = next(one for one in NOISY.streams if one.stream == event.stream)
        window = stream.windows[event.window]
        assert event.gpu_s == 0.0
        for option in event.options:
            epochs = window.best_training(option.config, Origin(event.window - 1)).epochs
            assert option.accuracy_after == epochs[option.config.epochs - 1].standings[0].accuracy
            seen[event.stream, event.window].add(option.config)
    assert all(known == set(NOISY.retrain_configs) for known in seen.values())
    told = summarize_steps(run.steps)
    assert told.profiling_gpu_s == pytest.approx(0.0)
    assert told.labelling_gpu_s == pytest.approx(9 * SMALL.labelling_gpu_s)
    assert {one.window for one in of(run, ev.InferenceProfiled)} == {1, 2, 3}


def test_oracle_is_better_than_noisy_estimates():
    assert played("oracle", NOISY).mean_accuracy > played("ekya", NOISY, error_sd=0.3).mean_accuracy

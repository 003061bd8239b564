"""Tests of the trace world: recorded outcomes happen at the speed of their share."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optimum.problems import view_of
from starts import start_retraining

from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.plan import Assignment, Phase
from ekya.core.profile import Family, FamilyCurve, Profiler, family_of
from ekya.core.shares import inference_holder, retraining_holder
from ekya.core.speed import LINEAR
from ekya.core.trace import (
    BASE,
    Epoch,
    Origin,
    Predicted,
    RecordedStart,
    RecordedTraining,
    Standing,
    StreamTrace,
    StreamWindow,
    Trace,
    Trial,
)
from ekya.core.units import US_PER_S, JobId, StreamId
from ekya.core.view import InferenceOption, WindowView
from ekya.core.weights import Elsewhere
from ekya.planning.schedulers.objective import evaluate_phases
from ekya.simulation.executor import VirtualExecutor
from ekya.simulation.trace.estimates import Estimates
from ekya.simulation.trace.generate import generate_trace
from ekya.simulation.trace.generator_parameters import MEASURED_SPEED, GeneratorParameters
from ekya.simulation.trace.simulate import Conditions
from ekya.simulation.trace.world import TraceWorld

CAM = StreamId("cam-1")
FAMILY = Family(1, 64, 16)
GAMMA = RetrainConfig(2, 16, 64, 1, 1.0)
LAMBDA = InferenceConfig(1, 32)
HALF = InferenceConfig(2, 32)
S = US_PER_S


def standing(window, accuracy, validation=None):
    return Standing(window, accuracy if validation is None else validation, accuracy)


def training(window=1, started_from=BASE):
    """Returns two epochs of 4 GPU-seconds, from accuracy 0.4 to 0.6 and 0.8; 0.1 less per later window."""
    return RecordedTraining(
        FAMILY,
        1.0,
        started_from,
        tuple(
            Epoch(
                epoch,
                4.0 * epoch,
                tuple(standing(at, 0.4 + 0.2 * epoch - 0.1 * (at - window)) for at in range(window, 3)),
            )
            for epoch in (1, 2)
        ),
    )


def stream_window(index, **changes):
    plain = StreamWindow(
        window=index,
        class_histogram=(),
        training_crops=80 if index else 0,
        validation_crops=20 if index else 0,
        labelling_gpu_s=1.0,
        inference_gpu_s=0.5,
        inference=(InferenceOption(LAMBDA, 1.0, 400), InferenceOption(HALF, 0.7, 200)),
        inference_profiled=(),
        starts=(RecordedStart(BASE, standing(index, 0.4, 0.35)),),
        trainings=(training(),) if index == 1 else (),
        trials=(Trial(FAMILY, 2.0),) if index else (),
    )
    return replace(plain, **changes)


def trace_of(*windows):
    return Trace(
        window_us=20 * S,
        gpu="a device",
        classes=(),
        retrain_configs=(GAMMA,),
        inference_configs=(LAMBDA, HALF),
        streams=(StreamTrace(CAM, 10.0, windows),),
    )


TRACE = trace_of(stream_window(0), stream_window(1), stream_window(2))


def executor_of(trace=TRACE, estimates=None, **conditions):
    options = Conditions(**{"gpus": 2.0, "checkpoint_delay_us": S, **conditions}).loop_options(trace)
    executor = VirtualExecutor(
        TraceWorld(trace, options, estimates or Estimates()), options.checkpoint_delay_us
    )
    executor.wait(0)
    return executor


def events_until(executor, until_us, kind=object):
    """Returns the events until then, without resized shares."""
    found = []
    while executor.now_us < until_us:
        found += executor.wait(until_us).events
    return [event for event in found if isinstance(event, kind) and not isinstance(event, ev.ShareResized)]


def start(share_milli=500):
    return start_retraining(CAM, GAMMA, share_milli=share_milli)


def test_trace_training_advances_at_speed_of_share():
    executor = executor_of()
    executor.wait(20 * S)
    executor.execute_commands([start(500)])
    told = events_until(executor, 40 * S)
    assert [(event.t_us, type(event).__name__) for event in told] == [
        (28 * S, "RetrainProgress"),
        (36 * S, "RetrainProgress"),
        (36 * S, "RetrainFinished"),
    ]
    assert [event.validation_accuracy for event in told[:2]] == pytest.approx([0.6, 0.8])
    assert told[-1].gpu_s == 8.0


def test_trace_resize_keeps_finished_part():
    executor = executor_of()
    executor.wait(20 * S)
    executor.execute_commands([start(500)])
    executor.wait(24 * S)
    executor.execute_commands([cmd.ResizeRetraining(CAM, JobId(1), 1000)])
    progress = events_until(executor, 40 * S, ev.RetrainProgress)
    assert [event.t_us for event in progress] == [26 * S, 30 * S]


def test_trace_training_without_share_pauses():
    executor = executor_of()
    executor.wait(20 * S)
    executor.execute_commands([start(0)])
    assert events_until(executor, 40 * S) == []


def test_trace_checkpoint_delays_training_its_end_does_not():
    executor = executor_of()
    executor.wait(20 * S)
    executor.execute_commands([start(1000)])
    executor.wait(40 * S)
    executor.execute_commands([cmd.ServeModel(CAM, JobId(1), 1)])
    assert executor.wait(40 * S).events[0].validation_accuracy == pytest.approx(0.6)
    progress = executor.wait(40 * S).events[0]
    assert progress.t_us == 29 * S


AWAY = replace(start(0), elsewhere=Elsewhere(36 * S))


def test_trace_snapshot_may_serve_before_the_rest():
    executor = executor_of()
    executor.wait(22 * S)
    executor.receive(AWAY, 1, False)
    executor.execute_commands([cmd.ServeModel(CAM, JobId(1), 1)])
    progress, swapped = executor.wait(22 * S).events
    assert (progress.epoch, progress.validation_accuracy, progress.gpu_s) == (1, pytest.approx(0.6), 0.0)
    assert (type(swapped), swapped.validation_accuracy) == (ev.ModelSwapped, pytest.approx(0.6))
    assert events_until(executor, 36 * S) == []
    # It continues from its own initial weights, independent of the serving ones.
    executor.receive(AWAY, 2, True)
    progress, finished = executor.wait(36 * S).events
    assert (progress.epoch, progress.validation_accuracy) == (2, pytest.approx(0.8))
    assert (type(finished), finished.gpu_s) == (ev.RetrainFinished, 0.0)


def test_trace_snapshot_serves_when_the_rest_is_lost():
    executor = executor_of()
    executor.wait(22 * S)
    executor.receive(AWAY, 1, False)
    executor.receive(AWAY, 1, True)
    executor.execute_commands([cmd.ServeModel(CAM, JobId(1), 1), cmd.StopRetraining(CAM, JobId(1))])
    told = [type(event) for event in executor.wait(22 * S).events]
    assert told == [ev.RetrainProgress, ev.ModelSwapped]


def test_trace_last_snapshot_has_best_unsent_epoch():
    better, worse = training().epochs
    falling = replace(
        training(),
        epochs=(replace(better, standings=worse.standings), replace(worse, standings=better.standings)),
    )
    window = stream_window(1, trainings=(falling,))
    executor = executor_of(trace_of(stream_window(0), window, stream_window(2)))
    executor.wait(36 * S)
    executor.receive(AWAY, 2, True)
    progress, _ = executor.wait(36 * S).events
    assert (progress.epoch, progress.validation_accuracy) == (1, pytest.approx(0.8))


def test_trace_unknown_remote_training_fails_at_its_end():
    executor = executor_of(trace_of(stream_window(0), stream_window(1, trainings=()), stream_window(2)))
    executor.wait(36 * S)
    executor.receive(AWAY, 1, False)
    assert executor.wait(36 * S).events == ()
    executor.receive(AWAY, 2, True)
    assert [type(event) for event in executor.wait(36 * S).events] == [ev.RetrainFailed]


def test_trace_accuracy_is_integral_over_time():
    executor = executor_of()
    executor.wait(20 * S)
    executor.execute_commands([cmd.SetInference(CAM, LAMBDA, 200), start(1000)])
    executor.wait(24 * S)
    executor.wait(28 * S)
    executor.execute_commands([cmd.ServeModel(CAM, JobId(1), 2)])
    executor.wait(30 * S)
    executor.wait(30 * S)
    executor.execute_commands([cmd.SetInference(CAM, HALF, 200)])
    executor.wait(60 * S)
    # At half the share 8 s of the base model and 2 s of the new one; then 10 s at the λ that keeps up.
    assert executor.world.mean_accuracy(CAM, 1) == pytest.approx(
        (8 * 0.4 * 0.5 + 2 * 0.8 * 0.5 + 10 * 0.8 * 0.7) / 20
    )
    # In the next window the same weights are 0.1 worse.
    assert executor.world.mean_accuracy(CAM, 2) == pytest.approx(0.7 * 0.7)
    assert executor.world.mean_accuracy(CAM, 0) == 0.0


def test_trace_accuracy_by_part_is_weighted_by_objects():
    first, *later = training().epochs
    falling = replace(standing(1, 0.6), by_part=(0.8, 0.6, 0.4, 0.2))
    trained = replace(training(), epochs=(replace(first, standings=(falling, *first.standings[1:])), *later))
    window = stream_window(
        1,
        starts=(RecordedStart(BASE, replace(standing(1, 0.4), by_part=(0.7, 0.1))),),
        trainings=(trained,),
        objects_by_part=(10, 20, 0, 10),
    )
    executor = executor_of(trace_of(stream_window(0), window, stream_window(2)))
    executor.wait(20 * S)
    executor.execute_commands([cmd.SetInference(CAM, LAMBDA, 400), start(1000)])
    executor.wait(24 * S)
    executor.wait(26 * S)
    executor.execute_commands([cmd.ServeModel(CAM, JobId(1), 1)])
    executor.wait(26 * S)
    executor.wait(60 * S)
    executor.wait(60 * S)
    # A fifth of the 20 objects between second 25 and second 30 comes before the hot swap.
    expected = (10 * 0.7 + 4 * 0.7 + 16 * 0.6 + 10 * 0.2) / 40
    assert executor.world.mean_accuracy(CAM, 1) == pytest.approx(expected)
    assert executor.world.mean_accuracy(CAM, 2) == pytest.approx(0.5)


def prepare(executor, share_milli=500):
    executor.wait(20 * S)
    prepared = cmd.PrepareStream(CAM, (LAMBDA, HALF), (FAMILY,))
    executor.execute_commands([cmd.BeginPreparation(1, share_milli, (prepared,))])
    return events_until(executor, 40 * S)


def test_trace_preparation_is_charged_at_its_share():
    told = prepare(executor_of())
    assert [(type(event).__name__, event.t_us) for event in told] == [
        ("LabelsReady", 22 * S),
        ("RetrainProfiled", 26 * S),
        ("InferenceProfiled", 27 * S),
        ("PreparationEnded", 27 * S),
    ]
    assert told[0].serving_accuracy == 0.35
    assert told[0].gpu_s + told[1].gpu_s + told[2].gpu_s == 3.5
    assert [(o.config, o.accuracy_after, o.gpu_s) for o in told[1].options] == [
        (GAMMA, pytest.approx(0.8), 8.0)
    ]


def test_trace_preparation_ended_early_drops_the_rest():
    executor = executor_of()
    executor.wait(20 * S)
    executor.execute_commands([cmd.BeginPreparation(1, 500, (cmd.PrepareStream(CAM, (), (FAMILY,)),))])
    executor.wait(22 * S)
    executor.execute_commands([cmd.EndPreparation(1)])
    assert events_until(executor, 40 * S) == []


def test_trace_oracle_gets_true_accuracies():
    told = prepare(executor_of(estimates=Estimates(error_sd=0.5, exact=True)))
    assert told[0].serving_accuracy == 0.4
    assert told[1].options[0].accuracy_after == pytest.approx(0.8)
    # Mean gain: 0.1 in the first of two equal epochs, 0.3 in the second; 0.4 in the end.
    assert told[1].options[0].early_part == pytest.approx(0.5)


def test_trace_recorded_estimates_used_without_error():
    curve = FamilyCurve(16, 64, 1, 64, (0.3, 0.5), 0.1, 0.2)
    said = Predicted(GAMMA, 0.9, 7.0)
    for trial, kind in (
        (Trial(FAMILY, 2.0, curve), ev.ProfileReady),
        (Trial(FAMILY, 2.0, None, (said,)), ev.RetrainProfiled),
    ):
        trace = trace_of(stream_window(0), stream_window(1, trials=(trial,)))
        told = prepare(executor_of(trace))[1]
        assert isinstance(told, kind)
        if isinstance(told, ev.ProfileReady):
            assert told.curve == curve
        else:
            (option,) = told.options
            assert (option.accuracy_after, option.gpu_s) == (0.9, 7.0)
        wrong = prepare(executor_of(trace, Estimates(error_sd=0.0)))[1]
        assert wrong.options[0].accuracy_after == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("recorded", "used"),
    [
        ((Profiler.EKYA, Profiler.PAPER), {Profiler.EKYA: 1.0, Profiler.PAPER: 2.0}),
        ((Profiler.PAPER, Profiler.EKYA), {Profiler.EKYA: 2.0, Profiler.PAPER: 1.0}),
        ((Profiler.EKYA, Profiler.EKYA), {Profiler.EKYA: 1.0, Profiler.PAPER: 1.0}),
        ((None, None), {Profiler.EKYA: 1.0, Profiler.PAPER: 1.0}),
    ],
)
def test_trace_trials_of_both_profilers_each_sees_its_own(recorded, used):
    trials = tuple(
        Trial(FAMILY, gpu_s, FamilyCurve(16, 64, 1, 64, (0.3, 0.5), 0.1, 0.2), profiler=profiler)
        for gpu_s, profiler in zip((1.0, 2.0), recorded, strict=True)
    )
    trace = trace_of(stream_window(0), stream_window(1, trials=trials))
    for profiler, gpu_s in used.items():
        told = prepare(executor_of(trace, Estimates(profiler=profiler)))[1]
        assert (type(told), told.gpu_s) == (ev.ProfileReady, gpu_s)


def test_trace_trial_of_another_model_begins_with_the_one_that_serves():
    curve = FamilyCurve(16, 64, 1, 64, (0.8, 0.9), 0.1, 0.2)
    starts = tuple(
        RecordedStart(origin, standing(1, accuracy)) for origin, accuracy in ((BASE, 0.35), (Origin(0), 0.8))
    )
    window = stream_window(1, starts=starts, trials=(Trial(FAMILY, 2.0, curve, started_from=Origin(0)),))
    labels, told, *_ = prepare(executor_of(trace_of(stream_window(0), window)))
    assert told.curve == replace(curve, accuracies=(labels.serving_accuracy, 0.9))


def test_trace_larger_error_is_the_same_scaled():
    told = [
        prepare(executor_of(estimates=Estimates(error_sd=sd, seed=3)))[1].options[0].accuracy_after - 0.8
        for sd in (0.01, 0.02)
    ]
    assert told[0] != 0.0
    assert told[1] == pytest.approx(2 * told[0])
    off = prepare(executor_of(estimates=Estimates(relative_error=0.1)))[1].options[0].accuracy_after
    assert abs(off - 0.8) == pytest.approx(0.08)


def test_trace_unknown_gamma_fails_predicted_one_ends():
    known_nothing = trace_of(stream_window(0), stream_window(1, trainings=()))
    executor = executor_of(known_nothing)
    executor.wait(20 * S)
    executor.execute_commands([start()])
    told = executor.wait(40 * S).events
    assert [one.share_milli for one in told if isinstance(one, ev.ShareResized)] == [500, 0]
    assert isinstance(told[-1], ev.RetrainFailed)
    said = Trial(FAMILY, 2.0, None, (Predicted(GAMMA, 0.9, 6.0),))
    executor = executor_of(trace_of(stream_window(0), stream_window(1, trainings=(), trials=(said,))))
    executor.wait(20 * S)
    executor.execute_commands([start(1000)])
    told = events_until(executor, 40 * S)
    assert [(event.t_us, event.validation_accuracy) for event in told[:2]] == [(23 * S, 0.35), (26 * S, 0.9)]


def test_trace_training_from_nearer_start_is_used():
    from_base = training(2)
    from_first = replace(
        from_base,
        started_from=Origin(1),
        epochs=tuple(replace(e, gpu_s=e.gpu_s / 2) for e in from_base.epochs),
    )
    window = stream_window(2, trainings=(from_base, from_first))
    assert window.best_training(GAMMA, BASE) is from_base
    assert window.best_training(GAMMA, Origin(1)) is from_first
    assert window.best_training(replace(GAMMA, epochs=3), Origin(1)) is None


EXACT = GeneratorParameters(training_noise=0.0, epochs=(1, 2, 4), data_fractions=(0.5, 1.0), window_s=50.0)
GENERATED = {speed: generate_trace(5, 3, 2, EXACT, speed) for speed in (LINEAR, MEASURED_SPEED)}


@st.composite
def one_phase_plans(draw):
    """Draws a window at its opening, with any shares, γ and λ for its streams."""
    trace = GENERATED[draw(st.sampled_from([LINEAR, MEASURED_SPEED]))]
    view = view_of(trace, 1, 3000)
    assignments = []
    for stream in view.streams:
        option = draw(st.sampled_from([None, *stream.retrain_options]))
        share = 50 * draw(st.integers(1, 10)) if option else 0
        assignments.append(
            Assignment(
                stream.stream,
                option.config if option else None,
                share,
                draw(st.sampled_from(stream.inference_options)).config,
                50 * draw(st.integers(0, 10)),
                below_min=False,
                reason="",
            )
        )
    return trace, view, Phase(tuple(assignments))


def played(trace: Trace, view: WindowView, phase: Phase) -> list[float]:
    """Returns each stream's accuracy when the trace world runs one phase unchanged until the window's end."""
    executor = executor_of(trace, gpus=3.0)
    executor.wait(view.now_us)
    for job, a in enumerate(phase.assignments):
        executor.execute_commands([cmd.SetInference(a.stream, a.inference, a.inference_share_milli)])
        if a.retrain is not None:
            executor.execute_commands(
                [start_retraining(a.stream, a.retrain, job=job, share_milli=a.retrain_share_milli)]
            )
    before = {stream.stream: stream.accuracy for stream in view.streams}
    best: dict[StreamId, tuple[float, int]] = {}
    while executor.now_us < view.window_end_us:
        for event in executor.wait(view.window_end_us).events:
            if isinstance(event, ev.RetrainProgress):
                best[event.stream] = max(
                    best.get(event.stream, (0.0, 0)), (event.validation_accuracy, event.epoch)
                )
            if isinstance(event, ev.RetrainFinished) and best[event.stream][0] >= before[event.stream]:
                executor.execute_commands([cmd.ServeModel(event.stream, event.job, best[event.stream][1])])
    return [executor.world.mean_accuracy(a.stream, 1) for a in phase.assignments]


@settings(max_examples=60)
@given(one_phase_plans())
def test_trace_true_estimates_reach_objective_value(drawn):
    trace, view, phase = drawn
    promised = [value for _, value in evaluate_phases(view, [phase]).per_stream]
    # Epoch ends are rounded to a whole microsecond.
    assert played(trace, view, phase) == pytest.approx(promised, abs=1e-6)


def test_trace_generated_offers_every_gamma():
    view = view_of(GENERATED[LINEAR], 1, 3000)
    assert {family_of(option.config) for option in view.streams[0].retrain_options} == {
        shape.family for shape in EXACT.families
    }


def test_trace_share_changes_come_with_the_next_event():
    executor = executor_of()
    executor.wait(20 * S)
    executor.execute_commands([cmd.SetInference(CAM, LAMBDA, 400), start(1000)])
    told = executor.wait(30 * S).events
    assert [(one.holder, one.share_milli) for one in told if isinstance(one, ev.ShareResized)] == [
        (inference_holder(CAM), 400),
        (retraining_holder(CAM, JobId(1)), 1000),
    ]
    assert isinstance(told[-1], ev.RetrainProgress)
    executor.execute_commands([cmd.SetInference(CAM, LAMBDA, 1000)])
    with pytest.raises(ValueError, match="there are not 700 thousandths"):
        executor.execute_commands([cmd.BeginPreparation(1, 700, ())])


def test_trace_finished_training_frees_its_share():
    executor = executor_of()
    executor.wait(20 * S)
    executor.execute_commands([start(1000)])
    events_until(executor, 40 * S)
    executor.execute_commands([cmd.BeginPreparation(1, 2000, (cmd.PrepareStream(CAM, (), ()),))])

"""Effect of each event on the state of the loop."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekya.core import events as ev
from ekya.core import requests as rq
from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.effects import MOST_FORGOTTEN, apply_event
from ekya.core.profile import FamilyCurve
from ekya.core.state import (
    FleetState,
    RetrainJob,
    RunningPreparation,
    StreamState,
    WindowLabels,
    WindowProfiles,
)
from ekya.core.stream_faults import DEATHS_WITHIN_US, TOGETHER_US, Faults, Status
from ekya.core.units import BASE_VERSION, US_PER_S, JobId, ModelVersion, StreamId
from ekya.core.view import InferenceOption, RetrainOption

A, B = StreamId("a"), StreamId("b")
GAMMA = RetrainConfig(epochs=4, batch_size=16, head_width=0, trainable_blocks=1, data_fraction=1.0)
LAMBDA = InferenceConfig(1, 32)
OPTIONS = (InferenceOption(LAMBDA, 1.0, 300),)
CURVE = FamilyCurve(16, 0, 1, 64, (0.4, 0.5), 1.0, 0.5)
ESTIMATE = RetrainOption(GAMMA, 0.8, 10.0)
JOB = RetrainJob(JobId(3), GAMMA, 2, 400, 0.8, 0.8, 10.0, accuracies=(0.5, 0.7), gpu_s=4.0)


def in_window_2(**changes) -> FleetState:
    """Two streams in window 2; ``a`` retrains and serves, with ``changes`` applied."""
    first = StreamState(
        A,
        OPTIONS,
        accuracy=0.6,
        labels=WindowLabels(80, 20),
        profiles=WindowProfiles((CURVE,)),
        inference=LAMBDA,
        inference_share_milli=300,
        job=JOB,
    )
    second = StreamState(B, OPTIONS, inference=LAMBDA, inference_share_milli=200)
    return FleetState(
        (replace(first, **changes), second),
        window=2,
        window_open_us=20,
        window_end_us=30,
        preparation=RunningPreparation(20, 500),
    )


def after(state, *events) -> StreamState:
    for event in events:
        state = apply_event(state, event)
    return state.stream(A)


def test_streams_are_sorted_by_id():
    state = apply_event(
        apply_event(FleetState(), ev.StreamAdded(0, B, OPTIONS)), ev.StreamAdded(0, A, OPTIONS)
    )
    assert [stream.stream for stream in state.streams] == [A, B]
    assert state.stream(A).version == BASE_VERSION
    assert state.stream(A).accuracy is None
    with pytest.raises(KeyError):
        state.stream(StreamId("c"))


def test_removed_streams_are_remembered_the_newest_of_many():
    state, names = in_window_2(), [StreamId(f"gone-{number}") for number in range(MOST_FORGOTTEN + 2)]
    for at, name in enumerate(names):
        state = apply_event(state, ev.StreamAdded(30 + at, name, OPTIONS))
        state = apply_event(
            apply_event(state, rq.StreamRemoved(30 + at, name)), ev.WindowOpened(31 + at, 3 + at, 32 + at)
        )
    assert [stream.stream for stream in state.streams] == [A, B]
    assert state.forgotten == tuple(names[2:])
    again = apply_event(state, ev.StreamAdded(10_000, names[7], OPTIONS))
    assert again.forgotten == (*names[2:7], *names[8:])


def test_opened_window_resets_labels_profiles_and_jobs():
    state = apply_event(
        in_window_2(finished=JOB, labels=WindowLabels(80, 20, new_classes=True)), ev.WindowOpened(30, 3, 40)
    )
    assert (state.window, state.window_open_us, state.window_end_us) == (3, 30, 40)
    assert state.stream(A) == StreamState(
        A, OPTIONS, accuracy=0.6, inference=LAMBDA, inference_share_milli=300
    )


@pytest.mark.parametrize(
    ("labels", "finished", "accuracy"),
    [
        (WindowLabels(6, 1, accuracy_on_all=0.7), None, 0.7),
        (WindowLabels(6, 1), None, 0.6),
        (WindowLabels(6, 1, accuracy_on_all=0.7), JOB, 0.6),
        (WindowLabels(6, 1, new_classes=True, accuracy_on_all=0.7), None, 0.6),
    ],
)
def test_window_opens_with_the_accuracy_on_all_labels(labels, finished, accuracy):
    """Unless it is of weights that do not serve any more: a single frame may have validated."""
    state = apply_event(in_window_2(labels=labels, finished=finished), ev.WindowOpened(30, 3, 40))
    assert state.stream(A).accuracy == accuracy


@pytest.mark.parametrize(
    "event",
    [
        ev.LabelsReady(21, A, 1, 10, 5, 0.1, True, 0.2),
        ev.InferenceProfiled(21, A, 1, (InferenceOption(LAMBDA, 0.5, 100),), 0.2),
        ev.InferenceProfiled(21, A, 2, (), 0.2),
        ev.ProfileReady(21, A, 1, CURVE, 0.2),
        ev.RetrainProfiled(21, A, 1, (ESTIMATE,), 0.2),
        ev.PreparationEnded(21, 1),
        ev.WindowClosed(30, 2),
        ev.RetrainProgress(21, A, JobId(2), 1, 0.99, 9.0),
        ev.RetrainFinished(21, A, JobId(2), 9.0),
        ev.RetrainFailed(21, A, JobId(2), "late"),
        ev.RetrainFinished(21, B, JobId(3), 9.0),
    ],
    ids=lambda event: type(event).__name__,
)
def test_outdated_events_change_nothing(event):
    assert apply_event(in_window_2(), event) == in_window_2()


def test_labels_and_profiles_of_open_window_count():
    stream = after(
        in_window_2(),
        ev.LabelsReady(21, A, 2, 50, 12, 0.45, True, 0.2),
        ev.ProfileReady(22, A, 2, CURVE, 0.2),
        ev.RetrainProfiled(22, A, 2, (ESTIMATE,), 0.2),
        ev.InferenceProfiled(23, A, 2, (InferenceOption(LAMBDA, 0.9, 250),), 0.1),
    )
    assert stream.labels == WindowLabels(50, 12, new_classes=True, until_us=20)
    assert stream.accuracy == 0.45
    assert stream.profiles == WindowProfiles((CURVE, CURVE), (ESTIMATE,))
    assert stream.inference_options[0].share_needed_milli == 250


def test_labels_without_validation_keep_accuracy():
    before = in_window_2().stream(A)
    stream = after(in_window_2(), ev.LabelsReady(21, A, 2, 50, 0, 0.0, False, 0.2))
    assert stream.labels == WindowLabels(50, 0, until_us=20)
    assert stream.accuracy == before.accuracy is not None


def test_preparation_ended_of_open_window_counts():
    assert not apply_event(in_window_2(), ev.PreparationEnded(21, 2)).preparing


def test_progress_counts_for_running_job_only():
    stream = after(in_window_2(), ev.RetrainProgress(21, A, JobId(3), 3, 0.65, 6.0))
    assert stream.job is not None
    assert stream.job.accuracies == (0.5, 0.7, 0.65)
    assert stream.job.gpu_s == 6.0
    assert (stream.job.best_epoch, stream.job.best_accuracy) == (2, 0.7)
    assert stream.accuracy == 0.6


def test_best_epoch_of_equals_is_the_last():
    assert replace(JOB, accuracies=(0.5, 0.7, 0.7, 0.6)).best_epoch == 3
    assert (replace(JOB, accuracies=()).best_epoch, replace(JOB, accuracies=()).best_accuracy) == (0, 0.0)


def test_skipped_epochs_count_but_are_never_best():
    stream = after(in_window_2(), ev.RetrainProgress(21, A, JobId(3), 5, 0.65, 0.0))
    assert stream.job.accuracies == (*JOB.accuracies, *(0.0,) * (4 - len(JOB.accuracies)), 0.65)


def test_finished_retraining_sets_best_accuracy():
    stream = after(in_window_2(), ev.RetrainFinished(21, A, JobId(3), 8.0))
    assert stream.job is None
    assert stream.finished == replace(JOB, gpu_s=8.0)
    assert stream.accuracy == 0.7


def test_finished_worse_retraining_keeps_accuracy():
    assert after(in_window_2(accuracy=0.9), ev.RetrainFinished(21, A, JobId(3), 8.0)).accuracy == 0.9


def test_failed_retraining_blocks_another():
    stream = after(in_window_2(), ev.RetrainFailed(21, A, JobId(3), "no memory"))
    assert (stream.job, stream.finished, stream.accuracy) == (None, JOB, 0.6)


def test_swapped_model_sets_version_and_accuracy():
    stream = after(in_window_2(), ev.ModelSwapped(21, A, ModelVersion(4), JobId(3), 0.72, 900))
    assert (stream.version, stream.accuracy) == (4, 0.72)


def test_need_measured_keeps_the_latest():
    first, last = (ev.NeedMeasured(t_us, A, LAMBDA, 100 + t_us) for t_us in (21, 26))
    assert (in_window_2().stream(A).need, after(in_window_2(), first, last).need) == (None, last)


def died(role=ev.Role.INFERENCE, reason="out of memory", t_us=21):
    return ev.WorkerDied(t_us, A, role, reason)


def test_dead_inference_stops_serving_until_back():
    stream = after(in_window_2(), died())
    assert (stream.status, stream.reason, stream.faults.deaths_us) == (
        Status.RESTARTING,
        "out of memory",
        (21,),
    )
    assert (stream.inference, stream.inference_share_milli) == (None, 0)
    assert stream.job == JOB
    back = after(in_window_2(), died(), ev.WorkerBack(22, A, ev.Role.INFERENCE))
    assert (back.status, back.reason, back.faults.deaths_us) == (Status.SERVING, "", (21,))


def test_dead_retraining_loses_job_keeps_inference():
    stream = after(in_window_2(), died(ev.Role.RETRAINING))
    assert stream.status is Status.SERVING
    assert (stream.job, stream.finished) == (None, JOB)
    assert (stream.inference, stream.inference_share_milli) == (LAMBDA, 300)


def test_dead_idle_retraining_keeps_finished_job():
    state = in_window_2(job=None, finished=JOB)
    assert after(state, died(ev.Role.RETRAINING)).finished == JOB


@pytest.mark.parametrize("last", list(ev.Role))
def test_third_death_sets_aside(last):
    back = ev.WorkerBack(22, A, ev.Role.INFERENCE)
    twice = [died(), back, died(ev.Role.RETRAINING, t_us=2 * TOGETHER_US), back]
    assert after(in_window_2(), *twice).status is Status.SERVING
    stream = after(in_window_2(), *twice, died(last, "segmentation fault", 4 * TOGETHER_US))
    assert stream.status is Status.SET_ASIDE
    assert len(stream.faults.deaths_us) == 3
    assert "3 times" in stream.reason
    assert "segmentation fault" in stream.reason
    assert stream.inference_share_milli == 0


@given(st.lists(st.tuples(st.integers(1, 1500), st.booleans()), max_size=12).map(sorted))
def test_three_charged_deaths_within_ten_minutes_set_aside(deaths):
    events = [replace(died(t_us=at_s * US_PER_S), charged=charged) for at_s, charged in deaths]
    times_us = [at_s * US_PER_S for at_s, charged in deaths if charged]
    too_many = any(
        last_us - first_us < DEATHS_WITHIN_US
        for first_us, last_us in zip(times_us, times_us[2:], strict=False)
    )
    assert (after(in_window_2(), *events).status is Status.SET_ASIDE) == too_many


@pytest.mark.parametrize("back", [ev.WorkerBack(23, A, ev.Role.INFERENCE), ev.StreamBack(23, A)])
def test_set_aside_or_ended_stream_never_returns(back):
    aside = after(in_window_2(faults=Faults(deaths_us=(11, 12))), died(), back)
    assert aside.status is Status.SET_ASIDE
    assert after(in_window_2(), ev.StreamEnded(22, A), back).status is Status.ENDED


def test_lost_camera_frees_share_and_may_return():
    lost = after(in_window_2(), ev.StreamLost(21, A, "no signal"))
    assert (lost.status, lost.reason) == (Status.LOST, "no signal")
    assert (lost.inference, lost.inference_share_milli) == (None, 0)
    assert lost.job == JOB
    back = after(in_window_2(), ev.StreamLost(21, A, "no signal"), ev.StreamBack(22, A))
    assert (back.status, back.reason) == (Status.SERVING, "")


LOST, FOUND, END = ev.StreamLost(21, A, "no signal"), ev.StreamBack(22, A), ev.StreamEnded(21, A)
BACK = {role: ev.WorkerBack(22, A, role) for role in ev.Role}
BOTH_DIED = (died(), died(ev.Role.RETRAINING))


@pytest.mark.parametrize(
    ("events", "status"),
    [
        ((LOST, died(ev.Role.RETRAINING), BACK[ev.Role.RETRAINING]), Status.LOST),
        ((LOST, died(), BACK[ev.Role.INFERENCE]), Status.LOST),
        ((LOST, died(), BACK[ev.Role.INFERENCE], FOUND), Status.SERVING),
        ((LOST, died(), FOUND), Status.RESTARTING),
        ((died(), FOUND), Status.RESTARTING),
        ((*BOTH_DIED, BACK[ev.Role.RETRAINING]), Status.RESTARTING),
        ((*BOTH_DIED, BACK[ev.Role.INFERENCE]), Status.SERVING),
        ((END, died()), Status.ENDED),
        ((END, died(), BACK[ev.Role.INFERENCE]), Status.ENDED),
        ((END, died(), died(), died()), Status.ENDED),
    ],
)
def test_stream_serves_with_camera_and_inference_only(events, status):
    stream = after(in_window_2(), *events)
    assert stream.status is status
    assert (stream.reason == "") == (status is Status.SERVING)


def test_reason_names_the_remaining_fault():
    assert after(in_window_2(), LOST, died(), BACK[ev.Role.INFERENCE]).reason == "no signal"
    assert after(in_window_2(), LOST, died(), FOUND).reason == "out of memory"


def test_event_changes_only_its_stream():
    before = in_window_2()
    for event in (died(), ev.StreamLost(21, A, ""), ev.RetrainFinished(21, A, JobId(3), 1.0)):
        assert apply_event(before, event).stream(B) == before.stream(B)

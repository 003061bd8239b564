"""Facts about a run from its steps, in a journal written by hand."""

from dataclasses import asdict

import pytest

from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.commands import StepRecord
from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.plan import Assignment, Phase, Plan
from ekya.core.profile import FamilyCurve
from ekya.core.units import JobId, ModelVersion, StreamId
from ekya.results.metrics.run_history import (
    LostSpan,
    ShareSample,
    Swap,
    WindowSpan,
    profile_rows,
    summarize_steps,
    warnings_of,
)
from ekya.results.metrics.window_outcomes import list_outcomes

A, B = StreamId("a"), StreamId("b")
GAMMA = RetrainConfig(4, 16, 0, 1, 1.0)
OTHER = RetrainConfig(2, 16, 0, 0, 0.5)
EVERY, SECOND = InferenceConfig(1, 32), InferenceConfig(2, 32)
CURVE = FamilyCurve(16, 0, 1, 64, (0.4, 0.5), 1.0, 0.5)
S = 1_000_000


def plan(*reasons):
    assignments = tuple(Assignment(stream, None, 0, EVERY, 300, False, reason) for stream, reason in reasons)
    return Plan((Phase(assignments),), 0.5)


def turn(now_s, *happened, because=None):
    """Returns a step with its events and commands; ``because`` adds a plan with these reasons."""
    return StepRecord(
        now_s * S,
        tuple(one for one in happened if hasattr(one, "t_us")),
        plan(*because) if because else None,
        tuple(one for one in happened if not hasattr(one, "t_us")),
    )


def start(stream, job, window, config=GAMMA, share_milli=400):
    return cmd.StartRetraining(stream, JobId(job), window, config, share_milli, 0.8, 12.0)


def progress(now_s, stream, job, epoch, accuracy, gpu_s):
    return ev.RetrainProgress(now_s * S, stream, JobId(job), epoch, accuracy, gpu_s)


def swap(now_s, stream, version, job, stall_us=900):
    return ev.ModelSwapped(now_s * S, stream, ModelVersion(version), JobId(job), 0.7, stall_us)


TURNS = [
    turn(
        0,
        ev.StreamAdded(0, B, ()),
        ev.StreamAdded(0, A, ()),
        ev.WindowOpened(0, 0, 10 * S),
        cmd.SetInference(A, EVERY, 600),
        cmd.SetInference(B, EVERY, 400),
        because=[(A, "first a"), (B, "first b")],
    ),
    turn(
        10,
        ev.WindowClosed(10 * S, 0),
        ev.WindowOpened(10 * S, 1, 20 * S),
        cmd.SetInference(A, SECOND, 200),
        because=[(A, "border a"), (B, "border b")],
    ),
    turn(
        11,
        ev.LabelsReady(11 * S, A, 1, 80, 20, 0.5, False, 0.25, golden_gpu_s=0.125),
        ev.LabelsReady(11 * S, B, 1, 20, 4, 0.5, False, 0.5, golden_calls=24, objects=70),
        ev.InferenceProfiled(11 * S, A, 1, (), 0.125, 0.0625, 3),
        ev.ProfileReady(11 * S, A, 1, CURVE, 2.0),
    ),
    turn(
        12,
        ev.PreparationEnded(12 * S, 1),
        start(A, 1, 1),
        start(B, 2, 1, OTHER, 300),
        because=[(A, "starts a"), (B, "starts b")],
    ),
    turn(13, progress(13, A, 1, 1, 0.7, 2.5), cmd.ServeModel(A, JobId(1), 1)),
    turn(14, swap(14, A, 1, 1)),
    turn(
        15,
        progress(15, A, 1, 2, 0.6, 5.0),
        ev.RetrainFinished(15 * S, A, JobId(1), 5.0),
        cmd.ResizeRetraining(B, JobId(2), 700),
        because=[(A, "later a"), (B, "later b")],
    ),
    turn(
        20,
        ev.WindowClosed(20 * S, 1),
        ev.WindowOpened(20 * S, 2, 30 * S),
        cmd.StopRetraining(B, JobId(2)),
        cmd.SetInference(A, EVERY, 500),
        because=[(A, "border a"), (B, "border b")],
    ),
    turn(22, start(A, 3, 2), start(B, 4, 2), because=[(A, "again a"), (B, "again b")]),
    turn(23, progress(23, B, 4, 1, 0.6, 3.0)),
    turn(
        24,
        ev.RetrainFailed(24 * S, B, JobId(4), "no memory"),
        cmd.SetAside(B, "its workers died 3 times"),
        cmd.SetInference(A, SECOND, 800),
    ),
    turn(26, swap(26, A, 2, 3, 1100)),
]

TOLD = summarize_steps(TURNS)
OUTCOMES = {(one.stream, one.index): one for one in list_outcomes(TURNS, TOLD)}


def test_summarize_lists_streams_and_windows():
    assert TOLD.streams == (A, B)
    assert TOLD.windows == (
        WindowSpan(0, 0, 10 * S),
        WindowSpan(1, 10 * S, 20 * S),
        WindowSpan(2, 20 * S, 26 * S),
    )


def test_summarize_window_opened_at_the_end_is_listed():
    assert summarize_steps(TURNS[:2]).windows[-1] == WindowSpan(1, 10 * S, 10 * S + 1)


def test_summarize_retrainings_have_their_ends():
    runs = TOLD.retrainings
    ends = [(run.stream, run.job, run.window, run.start_us // S, run.end_us // S, run.ended) for run in runs]
    assert ends == [
        (A, 1, 1, 12, 15, "finished"),
        (B, 2, 1, 12, 20, "stopped"),
        (A, 3, 2, 22, 26, "stopped"),
        (B, 4, 2, 22, 24, "failed"),
    ]
    assert [(run.best_accuracy, run.gpu_s) for run in runs] == [
        (0.7, 5.0),
        (None, 0.0),
        (None, 0.0),
        (0.6, 3.0),
    ]
    assert TOLD.retraining_counts() == {"started": 4, "finished": 1, "failed": 1}


def test_summarize_lost_span_ends_with_return_stream_or_run():
    lost = summarize_steps(
        [
            turn(0, ev.StreamAdded(0, A, ()), ev.StreamAdded(0, B, ())),
            turn(3, ev.StreamLost(2 * S, A, "no signal"), ev.StreamLost(3 * S, A, "still none")),
            turn(5, ev.StreamBack(5 * S, A), ev.StreamLost(5 * S, B, "its decoder died")),
            turn(6, ev.StreamEnded(6 * S, B), ev.StreamBack(6 * S, B)),
            turn(8, ev.StreamLost(7 * S, A, "no signal")),
        ]
    ).lost
    assert lost == (
        LostSpan(A, 2 * S, 5 * S),
        LostSpan(B, 5 * S, 6 * S),
        LostSpan(A, 7 * S, 8 * S),
    )


def test_outcomes_stream_added_late_lacks_earlier_windows():
    turns = [
        turn(0, ev.StreamAdded(0, A, ()), ev.WindowOpened(0, 0, 10 * S)),
        turn(
            10, ev.StreamAdded(10 * S, B, ()), ev.WindowClosed(10 * S, 0), ev.WindowOpened(10 * S, 1, 20 * S)
        ),
        turn(20, ev.WindowClosed(20 * S, 1)),
    ]
    assert [(one.stream, one.index) for one in list_outcomes(turns, summarize_steps(turns))] == [
        (A, 0),
        (A, 1),
        (B, 1),
    ]


def test_summarize_has_swaps_costs_and_set_aside_streams():
    assert TOLD.swaps == (Swap(14 * S, A, ModelVersion(1)), Swap(26 * S, A, ModelVersion(2)))
    assert TOLD.served == {JobId(1), JobId(3)}
    assert TOLD.labelling_gpu_s == 0.75
    assert TOLD.golden_gpu_s == 0.1875
    assert TOLD.labellings == 2
    assert (TOLD.golden_calls, TOLD.labelled_frames) == (27, 24)
    assert TOLD.span_us == 26 * S
    assert TOLD.profiling_gpu_s == 2.125
    assert TOLD.set_aside == ((B, "its workers died 3 times"),)


def test_summarize_shares_are_sampled_at_changes():
    assert [sample for sample in TOLD.shares if sample.stream == A] == [
        ShareSample(0, A, 0, 600),
        ShareSample(10 * S, A, 0, 200),
        ShareSample(12 * S, A, 400, 200),
        ShareSample(15 * S, A, 0, 200),
        ShareSample(20 * S, A, 0, 500),
        ShareSample(22 * S, A, 400, 500),
        ShareSample(24 * S, A, 400, 800),
    ]


def test_outcomes_every_stream_and_window_has_one():
    assert set(OUTCOMES) == {(stream, index) for stream in (A, B) for index in range(3)}


@pytest.mark.parametrize(
    ("stream", "index", "retrain_milli", "inference_milli"),
    [
        (A, 0, 0, 600),
        (B, 0, 0, 400),
        # 3 of 10 s at 400.
        (A, 1, 120, 200),
        # 3 s at 300 and 5 s at 700.
        (B, 1, 440, 400),
        # Of 6 s: 4 s at 400; 4 s at 500 and 2 s at 800.
        (A, 2, 267, 600),
    ],
)
def test_outcomes_shares_are_averaged_over_the_window(stream, index, retrain_milli, inference_milli):
    outcome = OUTCOMES[stream, index]
    assert (outcome.retrain_share_milli, outcome.inference_share_milli) == (retrain_milli, inference_milli)


def test_outcomes_retrained_only_if_a_model_served():
    assert {where for where, outcome in OUTCOMES.items() if outcome.retrained} == {(A, 1), (A, 2)}
    assert [OUTCOMES[B, index].gamma for index in range(3)] == [None, OTHER, GAMMA]
    assert OUTCOMES[A, 0].gamma is None


def test_outcomes_inference_is_the_longest_held_lambda():
    assert [OUTCOMES[A, index].inference for index in range(3)] == [EVERY, SECOND, EVERY]
    assert [OUTCOMES[B, index].inference for index in range(3)] == [EVERY] * 3


def test_outcomes_lambda_time_before_window_does_not_count():
    """SECOND held for 13 s, but for only 3 s of this window."""
    turns = [
        turn(0, ev.StreamAdded(0, A, ()), ev.WindowOpened(0, 0, 10 * S), cmd.SetInference(A, SECOND, 1)),
        turn(10, ev.WindowClosed(10 * S, 0), ev.WindowOpened(10 * S, 1, 20 * S)),
        turn(13, cmd.SetInference(A, EVERY, 1)),
        turn(20, ev.WindowClosed(20 * S, 1)),
    ]
    assert [one.inference for one in list_outcomes(turns, summarize_steps(turns))] == [SECOND, EVERY]


def test_outcomes_stream_that_never_served_has_no_lambda():
    turns = [turn(0, ev.StreamAdded(0, A, ()), ev.WindowOpened(0, 0, 10 * S)), turn(10)]
    (outcome,) = list_outcomes(turns, summarize_steps(turns))
    assert (outcome.inference, outcome.retrain_share_milli, outcome.inference_share_milli) == (None, 0, 0)
    assert outcome.reason == ""


def test_outcomes_reason_is_of_plan_that_started_retraining():
    assert [OUTCOMES[A, index].reason for index in range(3)] == ["first a", "starts a", "again a"]
    assert OUTCOMES[B, 1].reason == "starts b"


def test_outcomes_without_retraining_has_the_last_reason():
    turns = [*TURNS[:3], turn(13, because=[(A, "no gain"), (B, "no gain")]), turn(19)]
    reasons = {
        one.stream: one.reason for one in list_outcomes(turns, summarize_steps(turns)) if one.index == 1
    }
    assert reasons == {A: "no gain", B: "no gain"}


def test_outcomes_validation_accuracy_belongs_to_labels_window():
    assert [OUTCOMES[A, index].validation_accuracy for index in range(3)] == [None, 0.5, None]


def test_outcomes_labels_without_validation_give_no_accuracy():
    labels = ev.LabelsReady(11 * S, A, 1, 80, 0, 0.0, False, 0.25)
    turns = [*TURNS[:3], turn(11, labels), turn(19)]
    bare = [
        turn for turn in turns if not any(isinstance(e, ev.LabelsReady) and e != labels for e in turn.events)
    ]
    assert {one.validation_accuracy for one in list_outcomes(bare, summarize_steps(bare))} == {None}


def test_profile_rows_hold_expected_and_achieved_accuracy():
    first, second, *_ = profile_rows(TOLD)
    known = {"window": 1, "stream": A, "kind": "retraining", **asdict(GAMMA)}
    assert first == {**known, "predicted": 0.8, "achieved": 0.7, "gpu_s": 5.0}
    assert second["achieved"] is None


@pytest.mark.parametrize(
    "event",
    [
        ev.StreamEnded(5 * S, A),
        ev.StreamLost(5 * S, A, "no signal"),
        ev.WorkerDied(5 * S, A, ev.Role.INFERENCE, "killed"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_outcomes_silent_stream_has_no_share_from_then_on(event):
    turns = [TURNS[0], turn(5, event), turn(10, ev.WindowClosed(10 * S, 0))]
    assert list_outcomes(turns, summarize_steps(turns))[0].inference_share_milli == 300


@pytest.mark.parametrize(
    ("happened", "ended"),
    [
        (
            (ev.WorkerDied(5 * S, A, ev.Role.RETRAINING, "killed"), cmd.RestartWorker(A, ev.Role.RETRAINING)),
            "failed",
        ),
        ((ev.WorkerDied(5 * S, A, ev.Role.INFERENCE, "killed"), cmd.SetAside(A, "three deaths")), "stopped"),
    ],
    ids=["its worker dies", "its stream is set aside"],
)
def test_summarize_retraining_ends_with_its_worker_or_stream(happened, ended):
    turns = [
        turn(0, ev.StreamAdded(0, A, ()), ev.WindowOpened(0, 0, 10 * S), start(A, 1, 0)),
        turn(5, *happened),
        turn(10, ev.WindowClosed(10 * S, 0), ev.WindowOpened(10 * S, 1, 20 * S)),
        turn(20, ev.WindowClosed(20 * S, 1)),
    ]
    told = summarize_steps(turns)
    assert [(run.end_us, run.ended) for run in told.retrainings] == [(5 * S, ended)]
    assert [one.retrain_share_milli for one in list_outcomes(turns, told)] == [200, 0]


def test_summarize_no_steps_is_empty():
    assert summarize_steps([]).windows == ()
    assert list_outcomes([], summarize_steps([])) == ()


def test_summarize_roll_back_is_a_swap_to_the_next_version():
    told = summarize_steps(
        [
            turn(1, ev.StreamAdded(0, A, ()), start(A, 1, 1), cmd.ServeModel(A, JobId(1), 2)),
            turn(2, swap(2, A, 1, 1), cmd.RollBack(A, "worse")),
            turn(5, ev.RolledBack(5 * S, A, ModelVersion(2), ModelVersion(0), 70), start(A, 2, 2)),
            turn(6, cmd.ServeModel(A, JobId(2), 2)),
            turn(8, swap(8, A, 3, 2)),
        ]
    )
    assert [(one.t_us, one.version) for one in told.swaps] == [(2 * S, 1), (5 * S, 2), (8 * S, 3)]
    assert told.swap_delays_us == (S, 3 * S, 2 * S)
    assert told.served == {JobId(1), JobId(2)}


def test_warnings_same_text_is_listed_once_with_all_sources():
    said = [("inference/a", "memory is short"), ("scheduler", "slow"), ("inference/b", "memory is short")]
    turns = [turn(at_s, ev.Warned(at_s * S, *one)) for at_s, one in enumerate([*said, said[0]])]
    assert warnings_of(turns) == {
        "memory is short": ["inference/a", "inference/b"],
        "slow": ["scheduler"],
    }


def test_summarize_drifts_are_told_in_order():
    first, second = (ev.DriftDetected(at_s * S, A, 0, at_s * S - 1, "why") for at_s in (3, 5))
    assert summarize_steps([turn(3, first), turn(5, second)]).drifts == (first, second)

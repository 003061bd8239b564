"""Health of streams, from journals written by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.commands import StepRecord
from ekya.core.configs import GOLDEN_RESOLUTION, InferenceConfig, RetrainConfig
from ekya.core.profile import FamilyCurve
from ekya.core.records import FramePrediction, PredictionColumns
from ekya.core.units import JobId, StreamId
from ekya.results.metrics.health import (
    FrameCount,
    Health,
    HealthState,
    WindowHealth,
    counted_frames,
    health_values,
    is_behind,
)
from ekya.results.metrics.health_follower import HealthFollower, health_of

A = StreamId("a")
GAMMA = RetrainConfig(4, 16, 0, 1, 1.0)
EVERY = InferenceConfig(1, 32)
S = 1_000_000
WINDOW_S = 20
ALL = FrameCount(200, 200)


def turn(now_s, *happened):
    """Returns a step with its events and commands."""
    return StepRecord(
        round(now_s * S),
        tuple(one for one in happened if hasattr(one, "t_us")),
        None,
        tuple(one for one in happened if not hasattr(one, "t_us")),
    )


BEGIN = turn(
    0, ev.StreamAdded(0, A, ()), ev.WindowOpened(0, 0, WINDOW_S * S), cmd.SetInference(A, EVERY, 250)
)


def border(index, *commands, asked=(A,)):
    """The window before ``index`` closes, and window ``index`` opens with its preparation."""
    at_us = index * WINDOW_S * S
    return turn(
        index * WINDOW_S,
        ev.WindowClosed(at_us, index - 1),
        ev.WindowOpened(at_us, index, at_us + WINDOW_S * S),
        cmd.BeginPreparation(index, 500, tuple(cmd.PrepareStream(stream, (), ()) for stream in asked)),
        *commands,
    )


def labelled(index, at_s=1.0):
    at_us = round((index * WINDOW_S + at_s) * S)
    return turn(at_us / S, ev.LabelsReady(at_us, A, index, 80, 20, 0.5, False, 0.1))


def prepared(index, *commands, at_s=3.0):
    at_us = round((index * WINDOW_S + at_s) * S)
    return turn(at_us / S, ev.PreparationEnded(at_us, index), cmd.EndPreparation(index), *commands)


def end(index):
    at_us = (index + 1) * WINDOW_S * S
    return turn(at_us / S, ev.WindowClosed(at_us, index))


def start(job, window):
    return cmd.StartRetraining(A, JobId(job), window, GAMMA, 400, 0.8, 12.0)


def curve(at_s, window, *accuracies):
    return turn(
        at_s,
        ev.ProfileReady(round(at_s * S), A, window, FamilyCurve(16, 0, 1, 64, accuracies, 1.0, 0.5), 2.0),
    )


def healths(*turns, frames=None):
    """Health of stream A by window; every frame is analysed unless ``frames`` says otherwise."""
    frames = {0: ALL, 1: ALL, 2: ALL, 3: ALL} | (frames or {})
    return {one.index: one.health for one in health_of([BEGIN, *turns], {A: frames})[A]}


def states(*turns, frames=None):
    return {index: str(one.state) for index, one in healths(*turns, frames=frames).items()}


def test_health_stream_with_all_it_needs_is_ok():
    assert states(border(1), labelled(1), prepared(1), end(1)) == {0: "ok", 1: "ok"}


def test_health_labels_of_frames_without_objects_are_unlabelled():
    def found(objects, frames=24):
        return turn(21, ev.LabelsReady(21 * S, A, 1, frames, 0, 0.0, False, 0.1, objects=objects))

    health = healths(border(1), found(0), prepared(1), end(1))[1]
    assert health.state is HealthState.UNLABELLED
    assert "saw no object" in health.reason
    assert "nothing to learn" in health.line
    assert states(border(1), found(1), prepared(1), end(1))[1] == "ok"
    no_frames = healths(border(1), found(0, frames=0), prepared(1), end(1))[1]
    assert "saw no object" not in no_frames.reason, "none was looked for, as after a resume"


def test_health_over_a_tenth_of_frames_dropped_is_behind():
    run = (border(1), labelled(1), prepared(1), end(1))
    assert states(*run, frames={1: FrameCount(200, 180)})[1] == "ok"
    behind = healths(*run, frames={1: FrameCount(200, 179)})[1]
    assert behind.state is HealthState.BEHIND
    assert "21 of 200 frames" in behind.reason
    assert "25% of a GPU" in behind.reason
    assert "--gpus" in behind.remedy


@given(st.integers(0, 10_000), st.integers(0, 10_000))
def test_health_more_analysed_frames_never_turn_behind(due, analysed):
    assert not (is_behind(FrameCount(due, analysed + 1)) and not is_behind(FrameCount(due, analysed)))
    assert not is_behind(FrameCount(due, due))


def predictions(rows):
    nothing = np.zeros(0)
    return PredictionColumns.from_rows(
        [
            FramePrediction(
                frame,
                frame * S // 10,
                window,
                analysed,
                -1,
                0,
                every,
                32,
                np.zeros((0, 4), np.float32),
                nothing.astype(np.int16),
                nothing.astype(np.float32),
            )
            for frame, window, every, analysed in rows
        ]
    )


def test_frame_count_frames_skipped_by_lambda_are_not_due():
    every_third = [(frame, 0, 3, frame % 3 == 1) for frame in range(30)]
    all_of_them = [(frame, 1, 1, frame % 2 == 0) for frame in range(30, 50)]
    counts = counted_frames(predictions(every_third + all_of_them))
    assert counts == {0: FrameCount(10, 10), 1: FrameCount(20, 10)}
    assert counted_frames(predictions([])) == {}


def test_health_missing_or_late_labels_is_unlabelled():
    missing = healths(border(1), prepared(1), end(1))[1]
    assert missing.state is HealthState.UNLABELLED
    assert "did not come" in missing.reason
    late = healths(border(1), prepared(1), labelled(1, at_s=5.0), end(1))[1]
    assert late.state is HealthState.UNLABELLED
    assert "too late" in late.reason


def test_health_labels_of_second_preparation_are_in_time():
    again = turn(24, ev.ProfilerBack(24 * S), cmd.BeginPreparation(1, 500, (cmd.PrepareStream(A, (), ()),)))
    first = (border(1), prepared(1, at_s=0.1), again)
    assert states(*first, labelled(1, at_s=5.0), prepared(1, at_s=6.0), end(1))[1] == "ok"
    assert states(*first, prepared(1, at_s=6.0), end(1))[1] == "unlabelled"


def test_health_stream_not_chosen_for_labels_is_not_unlabelled():
    assert states(border(1, asked=()), prepared(1), end(1))[1] == "ok"


def test_health_lost_stream_without_labels_is_unlabelled():
    lost = turn(19.5, ev.StreamLost(int(19.5 * S), A, "no signal"))
    back = turn(20.5, ev.StreamBack(int(20.5 * S), A))
    assert states(lost, border(1, asked=()), back, prepared(1), end(1))[1] == "unlabelled"


def test_health_scheduler_without_labels_is_never_unlabelled():
    at_us = WINDOW_S * S
    bare = turn(WINDOW_S, ev.WindowClosed(at_us, 0), ev.WindowOpened(at_us, 1, 2 * at_us))
    assert states(bare, end(1)) == {0: "ok", 1: "ok"}


@pytest.mark.parametrize(
    ("turns", "words"),
    [
        ((turn(25, ev.RetrainFailed(25 * S, A, JobId(1), "out of memory")),), "out of memory"),
        ((turn(25, ev.WorkerDied(25 * S, A, ev.Role.RETRAINING, "killed")),), "killed"),
        ((), "no epoch"),
    ],
)
def test_health_failed_or_unfinished_retraining_is_stale(turns, words):
    run = (border(1), labelled(1), prepared(1, start(1, 1)), *turns, end(1))
    stale = healths(*run)[1]
    assert stale.state is HealthState.STALE
    assert words in stale.reason


def test_health_promising_trial_without_retraining_is_stale():
    promised = (border(1), labelled(1), curve(22, 1, 0.5, 0.55, 0.62))
    stale = healths(*promised, prepared(1), end(1))[1]
    assert stale.state is HealthState.STALE
    assert "12 points" in stale.reason
    progress = turn(25, ev.RetrainProgress(25 * S, A, JobId(1), 1, 0.6, 0.5))
    assert states(*promised, prepared(1, start(1, 1)), progress, end(1))[1] == "ok"
    little = (border(1), labelled(1), curve(22, 1, 0.5, 0.55))
    assert states(*little, prepared(1), end(1))[1] == "ok"
    assert states(*promised, prepared(1), turn(30))[1] == "ok", "the window was cut off: it could still begin"
    golden = cmd.SetInference(A, InferenceConfig(5, GOLDEN_RESOLUTION), 250)
    assert states(*promised, prepared(1, golden), end(1))[1] == "ok", "the edge model does not answer"


def test_health_over_a_tenth_without_answers_is_lost():
    lost = turn(5, ev.StreamLost(5 * S, A, "no signal"))
    for back_s, state in ((6.5, "ok"), (8, "lost")):
        back = turn(back_s, ev.StreamBack(round(back_s * S), A))
        assert states(lost, back, border(1))[0] == state
    died = turn(5, ev.WorkerDied(5 * S, A, ev.Role.INFERENCE, "killed"))
    up = turn(9, ev.WorkerBack(9 * S, A, ev.Role.INFERENCE))
    away = healths(died, up, border(1))[0]
    assert away.state is HealthState.LOST
    assert "4.0 s (killed)" in away.reason


def test_health_lost_stream_stays_lost_in_next_window():
    lost = turn(5, ev.StreamLost(5 * S, A, "no signal"))
    assert states(lost, border(1, asked=()), border(2, asked=()), end(2)) == dict.fromkeys(range(3), "lost")
    aside = turn(5, cmd.SetAside(A, "its workers died 3 times"))
    health = healths(aside, border(1, asked=()), end(1))[1]
    assert health.state is HealthState.LOST
    assert "3 times" in health.reason


def test_health_readmitted_stream_is_well_when_its_inference_is_back():
    aside = turn(5, cmd.SetAside(A, "its workers died 3 times"))
    again = turn(10, ev.StreamReadmitted(10 * S, A))
    back = turn(10.1, ev.WorkerBack(10_100_000, A, ev.Role.INFERENCE))
    told = states(aside, border(1), again, back, border(2), end(2))
    assert {window: state == "lost" for window, state in told.items()} == {0: True, 1: False, 2: False}


def test_health_ended_stream_is_not_judged_broken_off_is_lost():
    ended = turn(15, ev.StreamEnded(15 * S, A))
    assert states(ended, border(1, asked=()), end(1)) == {0: "ok"}
    broke = turn(15, ev.StreamLost(15 * S, A, "decoder died"), ev.StreamEnded(15 * S, A))
    assert states(broke, border(1, asked=()), end(1)) == {0: "lost", 1: "lost"}


def test_health_during_a_run_is_the_present_state():
    follower = HealthFollower()

    def now(*turns):
        for one in turns:
            follower.follow_step(one)
        return follower.present_health()[A]

    def frames(at_s, window, due, analysed):
        return turn(at_s, ev.FramesCounted(round(at_s * S), A, window, due, analysed))

    assert now(BEGIN, frames(5, 0, 50, 20)) == Health(), "a swap or a crowd passes"
    assert now(frames(10, 0, 50, 49)).state is HealthState.BEHIND
    assert now(border(1)).state is HealthState.BEHIND, "nothing has shown yet that it is over"
    assert now(frames(29, 1, 90, 90)).state is HealthState.BEHIND
    assert now(frames(31, 1, 20, 20)).state is HealthState.OK
    assert now(prepared(1, at_s=12.0)).state is HealthState.UNLABELLED
    assert now(border(2)).state is HealthState.UNLABELLED
    assert now(labelled(2), curve(42, 2, 0.3, 0.7), prepared(2)).state is HealthState.OK
    assert now(turn(50, ev.StreamLost(50 * S, A, "no signal"))).state is HealthState.LOST
    assert now(turn(50.5, ev.StreamBack(round(50.5 * S), A))).state is HealthState.OK
    assert now(border(3)).state is HealthState.STALE
    assert now(labelled(3), prepared(3, start(1, 3))).state is HealthState.OK
    follower.follow_step(turn(70, ev.StreamEnded(70 * S, A)))
    assert follower.present_health() == {}


def test_health_follower_keeps_as_many_windows_as_it_is_told():
    few, whole = HealthFollower(windows=2), HealthFollower()
    for step in (BEGIN, *(one for index in range(1, 6) for one in (border(index), prepared(index))), end(5)):
        few.follow_step(step)
        whole.follow_step(step)
        assert few.present_health() == whole.present_health()
    (kept,), (every,) = few.window_facts(), whole.window_facts()
    assert [facts.index for facts in every[1]] == [0, 1, 2, 3, 4, 5]
    assert kept[1] == every[1][-2:]


def test_health_follower_forgets_removed_streams():
    follower, b = HealthFollower(), StreamId("b")
    follower.follow_step(BEGIN)
    follower.follow_step(turn(1, ev.StreamAdded(S, b, ()), ev.StreamLost(S, b, "no signal")))
    assert set(follower.present_health()) == {A, b}
    follower.keep_only([A])
    assert set(follower.present_health()) == {A}
    follower.follow_step(turn(2, ev.StreamAdded(2 * S, b, ())))
    assert follower.present_health()[b].state is HealthState.OK


def windows(*states):
    return [
        WindowHealth(index, Health(HealthState(state), *(("why", "what helps") if state != "ok" else ())))
        for index, state in enumerate(states)
    ]


def test_health_over_half_of_windows_unwell_gives_a_sentence():
    b = StreamId("b")
    half = health_values({A: windows("behind", "behind", "ok"), b: windows("lost", "stale", "ok")})
    assert (half["judged"], half["sentence"]) == (4, None)
    assert half["total"] == {"ok": 2, "stale": 1, "unlabelled": 0, "behind": 1, "lost": 0}
    more = health_values({A: windows("ok", "behind", "behind"), b: windows("ok", "stale", "ok")})
    assert "3 of their 4 windows (1 stale, 2 behind)" in more["sentence"]
    assert "what helps" in more["sentence"]
    assert more["streams"]["b"][1] == {"index": 1, "state": "stale", "reason": "why", "remedy": "what helps"}
    only = health_values({A: windows("behind")})
    assert only["judged"] == 1
    assert only["sentence"] is not None
    assert health_values({A: []})["sentence"] is None

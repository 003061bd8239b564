import json
from dataclasses import replace

import numpy as np
import pytest

from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.events import DriftDetected
from ekya.core.units import JobId, StreamId
from ekya.results.metrics.accuracy import FrameCounts, ScoreSeries, StreamScore, WindowScore
from ekya.results.metrics.retrainings import RetrainRun
from ekya.results.metrics.run_history import LostSpan, ShareSample, WindowSpan, mean_shares, summarize_steps
from ekya.results.metrics.summary import (
    RunFacts,
    SampledAccuracy,
    SummaryHost,
    build_summary,
)
from ekya.results.metrics.window_outcomes import WindowOutcome

A, B = StreamId("a"), StreamId("b")
GAMMA = RetrainConfig(epochs=8, batch_size=16, head_width=64, trainable_blocks=1, data_fraction=0.5)
NOTHING = np.empty(0, np.int64)


def score_of(windows: dict[int, tuple[tuple[int, int], tuple[int, int]]]) -> StreamScore:
    """Windows as ((counted of class 0, correct), (counted of class 1, correct))."""
    return StreamScore(
        windows=tuple(
            WindowScore(index, (first[0], second[0]), (first[1], second[1]))
            for index, (first, second) in windows.items()
        ),
        series=ScoreSeries(NOTHING, NOTHING, NOTHING),
        frames=FrameCounts(arrived=10, analysed=6, skipped=3, lost=1, due=8, late=2),
        excluded_objects=4,
        called_objects=8,
        false_alarms=2,
    )


def outcome(stream: StreamId, index: int, gamma: RetrainConfig | None = None) -> WindowOutcome:
    return WindowOutcome(stream, index, gamma is not None, gamma, InferenceConfig(2, 32), 250, 125, "so")


def run(job: int, ended: str) -> RetrainRun:
    return RetrainRun(
        stream=A,
        job=JobId(job),
        window=1,
        config=GAMMA,
        start_us=0,
        end_us=1,
        ended=ended,
        expected_accuracy=0.5,
        best_accuracy=None,
        gpu_s=0.0,
    )


FACTS = RunFacts(
    world="emulated",
    scheduler="thief",
    seed=7,
    gpus=2,
    window_s=30.0,
    history=replace(
        summarize_steps([]),
        retrainings=(run(1, "finished"), run(2, "failed"), run(3, "stopped")),
        profiling_gpu_s=1.23456789,
        labelling_gpu_s=2.0,
        lost=(LostSpan(B, 1_000_000, 2_000_000), LostSpan(B, 5_000_000, 5_234_560)),
    ),
    damaged={B: 3},
    set_aside={B: "died"},
    analysed_urls={A: "url_detect"},
    host=SummaryHost(planning_ms=(3.0, 1.0, 2.0), others={"wall_s": 12.5}),
    warnings={"short of memory": ["scheduler", "inference/a"]},
)
SCORES = {
    A: score_of({0: ((8, 8), (2, 0)), 1: ((0, 0), (0, 0)), 2: ((10, 4), (0, 0)), 3: ((5, 0), (0, 0))}),
    B: score_of({0: ((4, 4), (4, 4))}),
}
WITHOUT = {A: SampledAccuracy(base=0.1234567, served=0.6234567)}
OUTCOMES = [
    outcome(B, 0),
    outcome(A, 2),
    outcome(A, 1),
    replace(outcome(A, 0, GAMMA), validation_accuracy=0.625),
]


def test_summary_has_exactly_the_documented_fields() -> None:
    summary = build_summary(FACTS, OUTCOMES, SCORES, WITHOUT)
    assert list(summary) == [
        "world",
        "reference",
        "task",
        "scheduler",
        "seed",
        "gpus",
        "window_s",
        "mean_accuracy",
        "accuracy_margin",
        "scored_frames",
        "balanced_accuracy",
        "ap50",
        "streams",
        "frames",
        "retrainings",
        "promises",
        "profiling_gpu_s",
        "labelling_gpu_s",
        "golden_gpu_s",
        "golden",
        "label_budget_gpu_s",
        "adaptation",
        "licences",
        "health",
        "warnings",
        "host",
    ]
    assert summary["health"]["streams"] == {"a": [], "b": []}
    assert summary["health"]["sentence"] is None
    assert summary["warnings"] == [{"text": "short of memory", "from": ["scheduler", "inference/a"]}]
    frames = {"arrived": 20, "analysed": 12, "skipped": 6, "lost": 2, "due": 16}
    assert summary["frames"] == {**frames, "late_host": 4, "late_gpu": None}
    assert summary["retrainings"] == {"started": 3, "finished": 1, "failed": 1}
    assert summary["profiling_gpu_s"] == 1.234568
    assert summary["host"]["planning_ms"] == {"p50": 2.0, "max": 3.0}
    assert summary["host"]["swap_ms"] == {"p50": None, "max": None}
    assert summary["host"]["wall_s"] == 12.5
    first = summary["streams"]["a"]["windows"][0]
    assert first == {
        "index": 0,
        "accuracy": 0.8,
        "retrained": True,
        "gamma": {
            "epochs": 8,
            "batch_size": 16,
            "head_width": 64,
            "trainable_blocks": 1,
            "data_fraction": 0.5,
        },
        "lambda": {"every": 2, "resolution": 32},
        "retrain_share_milli": 250,
        "inference_share_milli": 125,
        "reason": "so",
        "ap50": None,
        "validation_accuracy": 0.625,
    }
    assert summary["streams"]["a"]["validation_accuracy"] == 0.625
    assert summary["streams"]["b"]["validation_accuracy"] is None
    assert summary["streams"]["b"]["damaged_frames"] == 3
    assert summary["streams"]["b"]["set_aside"] == "died"
    assert [summary["streams"][name]["analysed_url"] for name in "ab"] == ["url_detect", None]
    assert [summary["streams"][name]["lost_s"] for name in "ab"] == [0.0, 1.235]
    assert summary["streams"]["b"]["false_alarm_share"] == 0.25
    assert summary["streams"]["a"]["without_retraining"] == 0.123457
    assert summary["streams"]["a"]["gain"] == 0.5
    assert summary["streams"]["b"]["without_retraining"] is None
    assert summary["streams"]["b"]["gain"] is None


def test_summary_of_detectors_counts_objects_and_shows_ap50() -> None:
    found = replace(
        SCORES[B],
        windows=(WindowScore(0, (7, 3), (4, 2), ap50=0.75, boxes=4), WindowScore(1, (2, 0), (0, 0))),
    )
    history = replace(
        FACTS.history,
        windows=(WindowSpan(0, 0, 30_000_000), WindowSpan(1, 30_000_000, 50_000_000)),
        golden_gpu_s=1.5,
        golden_calls=60,
        labelled_frames=24,
    )
    host = replace(FACTS.host, golden_device="cuda:0 (float16)")
    facts = replace(FACTS, detects=True, history=history, host=host, golden_accuracy=(0.91, 0.88, 0.94))
    summary = build_summary(facts, [outcome(B, 0)], {B: found}, {})
    assert summary["task"] == "detect"
    assert summary["ap50"] == summary["streams"]["b"]["ap50"] == 0.75
    window = summary["streams"]["b"]["windows"][0]
    assert (window["accuracy"], window["ap50"]) == (0.6, 0.75)
    assert summary["streams"]["b"]["counted_objects"] == 6 + 2
    # Two GPUs for 50 seconds.
    assert summary["golden"] == {
        "device": "cuda:0 (float16)",
        "accuracy": 0.91,
        "accuracy_interval": [0.88, 0.94],
        "labelled_frames": 24,
        "calls": 60,
        "gpu_s": 1.5,
        "gpu_share": 0.015,
    }


def test_summary_of_classifiers_has_neither_ap50_nor_labelled_frames() -> None:
    summary = build_summary(FACTS, OUTCOMES, SCORES, WITHOUT)
    assert (summary["task"], summary["ap50"]) == ("classify", None)
    assert summary["golden"]["labelled_frames"] is None
    assert summary["golden"]["gpu_share"] is None, "there is no window"
    assert summary["golden"]["accuracy"] is summary["golden"]["accuracy_interval"] is None


def test_summary_swap_delays_only_in_live_world() -> None:
    live = replace(FACTS, host=replace(FACTS.host, swap_delay_ms=(300.0, 100.0)))
    assert "swap_delay_ms" not in build_summary(FACTS, OUTCOMES, SCORES, WITHOUT)["host"]
    assert build_summary(live, OUTCOMES, SCORES, WITHOUT)["host"]["swap_delay_ms"] == {
        "p50": 200.0,
        "max": 300.0,
    }


def test_summary_means_are_over_listed_windows() -> None:
    summary = build_summary(FACTS, OUTCOMES, SCORES, WITHOUT)
    a = summary["streams"]["a"]
    # Window 1 has no object and window 3 no outcome (the run was stopped in it).
    assert [window["accuracy"] for window in a["windows"]] == [0.8, None, 0.4]
    assert a["mean_accuracy"] == 0.6
    assert a["balanced_accuracy"] == pytest.approx((0.5 + 0.4) / 2)
    assert summary["mean_accuracy"] == 0.8
    assert summary["balanced_accuracy"] == pytest.approx((0.45 + 1.0) / 2)


def test_summary_order_of_input_does_not_matter() -> None:
    scores = dict(reversed(SCORES.items()))
    other = build_summary(FACTS, OUTCOMES[::-1], scores, WITHOUT)
    assert json.dumps(other) == json.dumps(build_summary(FACTS, OUTCOMES, SCORES, WITHOUT))


def test_summary_run_without_windows_is_built() -> None:
    summary = build_summary(FACTS, [], SCORES, {})
    assert summary["mean_accuracy"] is None
    assert summary["streams"]["a"]["windows"] == []


def test_mean_shares_are_weighted_by_time() -> None:
    samples = [
        ShareSample(0, A, 0, 400),
        ShareSample(10, B, 900, 900),
        ShareSample(50, A, 600, 200),
        ShareSample(80, A, 0, 200),
    ]
    assert mean_shares(samples, A, 0, 100) == (180, 300)
    assert mean_shares(samples, A, 60, 80) == (600, 200)
    assert mean_shares(samples, A, 200, 300) == (0, 200)
    assert mean_shares(samples, B, 0, 20) == (450, 450)
    assert mean_shares(samples, StreamId("c"), 0, 20) == (0, 0)


def test_summary_drifts_are_listed_with_their_times() -> None:
    drift = DriftDetected(29_000_400, StreamId("a"), 1, 26_500_000, "the picture differs")
    history = replace(FACTS.history, drifts=(drift,))
    summary = build_summary(replace(FACTS, history=history), OUTCOMES, SCORES, WITHOUT)
    assert summary["streams"]["a"]["drifts"] == [
        {"at_s": 29.0, "since_s": 26.5, "reason": "the picture differs"}
    ]
    assert summary["streams"]["b"]["drifts"] == []

import numpy as np

from ekya.core.ids import ModelVersion, StreamId
from ekya.core.units import US_PER_S
from ekya.measuring.accuracy import ScoreSeries
from ekya.measuring.timeline import (
    Curve,
    RetrainSpan,
    RunTimeline,
    ShareSample,
    StreamCurves,
    Swap,
    WindowSpan,
)
from ekya.report.figures import draw_timeline, smoothed, steps_of
from ekya.report.themes import DARK

WINDOW_US = 20 * US_PER_S


def series(accuracy: float) -> ScoreSeries:
    counted = np.full(40, 50)
    return ScoreSeries(np.arange(40) * US_PER_S, counted, (counted * accuracy).astype(np.int64))


def timeline(streams: int, capacity_milli: int = 1000) -> RunTimeline:
    ids = [StreamId(f"cam-{i} $x_1$") for i in range(streams)]
    return RunTimeline(
        windows=(WindowSpan(0, 0, WINDOW_US), WindowSpan(1, WINDOW_US, 2 * WINDOW_US)),
        streams=tuple(StreamCurves(i, Curve(series(0.8), 0.8), Curve(series(0.6), 0.6)) for i in ids),
        shares=tuple(ShareSample(0, i, 100, capacity_milli // streams - 100) for i in ids),
        retrainings=(RetrainSpan(ids[0], WINDOW_US, 2 * WINDOW_US, "8 ep", finished=False),),
        swaps=(Swap(30 * US_PER_S, ids[0], ModelVersion(1)),),
        capacity_milli=capacity_milli,
    )


def size_of(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    return int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")


def test_equal_runs_give_equal_figures_and_the_theme_shows() -> None:
    light = draw_timeline(timeline(1), "a run")
    assert light == draw_timeline(timeline(1), "a run")
    assert light != draw_timeline(timeline(1), "a run", DARK)


def test_many_streams_stand_in_columns() -> None:
    width, height = size_of(draw_timeline(timeline(9, 1800)))
    assert height < width


def test_a_stream_in_which_nothing_was_seen_is_drawn_empty() -> None:
    nothing = ScoreSeries(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64))
    unseen = ScoreSeries(np.arange(3) * US_PER_S, np.zeros(3, np.int64), np.zeros(3, np.int64))
    for empty in (nothing, unseen):
        bare = RunTimeline(
            windows=(WindowSpan(0, 0, WINDOW_US),),
            streams=(StreamCurves(StreamId("cam"), Curve(empty, None)),),
            shares=(),
            retrainings=(),
            swaps=(Swap(US_PER_S, StreamId("cam"), ModelVersion(1)),),
            capacity_milli=1000,
        )
        assert size_of(draw_timeline(bare))[0] > 0


def test_the_line_looks_back_only_and_weighs_objects() -> None:
    seconds = np.array([0, 1, 2, 5, 6]) * US_PER_S
    curve = ScoreSeries(seconds, np.array([10, 30, 0, 0, 4]), np.array([10, 15, 0, 0, 1]))
    times, accuracy = smoothed(curve, 2)
    assert times.tolist() == [1, 2, 3, 6, 7]
    np.testing.assert_array_equal(accuracy, [1.0, 25 / 40, 15 / 30, np.nan, 0.25])


def test_shares_hold_until_the_next_sample() -> None:
    a, b = StreamId("a"), StreamId("b")
    samples = [
        ShareSample(10, a, 1, 2),
        ShareSample(10, b, 9, 9),
        ShareSample(20, a, 3, 4),
        ShareSample(20, a, 5, 6),
    ]
    retrain, inference = steps_of(samples, a, np.array([0, 10, 19, 20, 99]))
    assert retrain.tolist() == [0, 1, 1, 5, 5]
    assert inference.tolist() == [0, 2, 2, 6, 6]
    assert steps_of(samples, StreamId("c"), np.array([5]))[0].tolist() == [0]

from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from ekya.core.configs import RetrainConfig
from ekya.core.units import US_PER_S, JobId, ModelVersion, StreamId
from ekya.results.metrics.accuracy import FrameCounts, ScoreSeries, StreamScore, WindowScore
from ekya.results.metrics.retrainings import RetrainRun
from ekya.results.metrics.run_history import (
    PreparationSpan,
    RunHistory,
    ShareSample,
    Swap,
    WindowSpan,
    summarize_steps,
)
from ekya.results.report.figures import draw_timeline, smoothed
from ekya.results.report.panels import RunTimeline, StreamCurves, draw_shares, prepared_of, steps_of
from ekya.results.report.themes import DARK, LIGHT

WINDOW_US = 20 * US_PER_S


def series(accuracy: float) -> ScoreSeries:
    counted = np.full(40, 50)
    return ScoreSeries(np.arange(40) * US_PER_S, counted, (counted * accuracy).astype(np.int64))


def score(series_: ScoreSeries, accuracy: float = 0.0) -> StreamScore:
    windows = (WindowScore(0, (100,), (round(100 * accuracy),)),) if accuracy else ()
    return StreamScore(
        windows=windows,
        series=series_,
        frames=FrameCounts(arrived=40, analysed=40, skipped=0, lost=0),
        excluded_objects=0,
        called_objects=0,
        false_alarms=0,
    )


def history_of(**known: object) -> RunHistory:
    return replace(summarize_steps([]), **{"windows": (WindowSpan(0, 0, WINDOW_US),), **known})


def timeline(streams: int, capacity_milli: int = 1000, mean: float = 0.8, **known: object) -> RunTimeline:
    ids = [StreamId(f"cam-{i} $x_1$") for i in range(streams)]
    unfinished = RetrainRun(
        stream=ids[0],
        job=JobId(1),
        window=1,
        config=RetrainConfig(8, 16, 0, 1, 1.0),
        start_us=WINDOW_US,
        end_us=2 * WINDOW_US,
        ended="stopped",
        expected_accuracy=0.5,
        best_accuracy=None,
        gpu_s=0.0,
    )
    history = {
        "windows": (WindowSpan(0, 0, WINDOW_US), WindowSpan(1, WINDOW_US, 2 * WINDOW_US)),
        "shares": tuple(ShareSample(0, i, 100, capacity_milli // streams - 100) for i in ids),
        "retrainings": (unfinished,),
        "swaps": (Swap(30 * US_PER_S, ids[0], ModelVersion(1)),),
        **known,
    }
    curves = tuple(
        StreamCurves(i, score(series(0.8), 0.8), score(series(0.6), 0.6), mean=mean, mean_without=0.6)
        for i in ids
    )
    return RunTimeline(history_of(**history), curves, capacity_milli)


def size_of(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    return int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")


def test_timeline_same_run_gives_same_bytes_per_theme() -> None:
    light = draw_timeline(timeline(1), "a run")
    assert light == draw_timeline(timeline(1), "a run")
    assert light != draw_timeline(timeline(1), "a run", DARK)


def test_timeline_names_the_means_of_the_table() -> None:
    assert draw_timeline(timeline(1)) != draw_timeline(timeline(1, mean=0.7))


def test_timeline_many_streams_are_drawn_in_columns() -> None:
    width, height = size_of(draw_timeline(timeline(9, 1800)))
    assert height < width


def test_timeline_stream_without_objects_is_drawn_empty() -> None:
    nothing = ScoreSeries(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64))
    unseen = ScoreSeries(np.arange(3) * US_PER_S, np.zeros(3, np.int64), np.zeros(3, np.int64))
    for empty in (nothing, unseen):
        swaps = (Swap(US_PER_S, StreamId("cam"), ModelVersion(1)),)
        curves = (StreamCurves(StreamId("cam"), score(empty)),)
        bare = RunTimeline(history_of(swaps=swaps), curves, capacity_milli=1000)
        assert size_of(draw_timeline(bare))[0] > 0


def test_smoothed_uses_past_seconds_weighted_by_objects() -> None:
    seconds = np.array([0, 1, 2, 5, 6]) * US_PER_S
    curve = ScoreSeries(seconds, np.array([10, 30, 0, 0, 4]), np.array([10, 15, 0, 0, 1]))
    times, accuracy = smoothed(curve, 2)
    assert times.tolist() == [1, 2, 3, 6, 7]
    np.testing.assert_array_equal(accuracy, [1.0, 25 / 40, 15 / 30, np.nan, 0.25])


def test_share_steps_hold_until_the_next_sample() -> None:
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


def drawn_shares(run: RunTimeline) -> tuple[Axes, np.ndarray]:
    figure = Figure(dpi=200)
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    draw_shares(axes, run, LIGHT)
    canvas.draw()
    return axes, np.asarray(canvas.buffer_rgba())


def color_at(axes: Axes, pixels: np.ndarray, at_s: float, share: float) -> str:
    x, y = axes.transData.transform((at_s, share))
    return to_hex(pixels[len(pixels) - 1 - round(y), round(x)] / 255)


def test_share_panel_falling_shares_keep_every_band() -> None:
    first, second = StreamId("a"), StreamId("b")
    known = timeline(
        2,
        shares=(
            ShareSample(0, first, 0, 500),
            ShareSample(0, second, 0, 500),
            ShareSample(WINDOW_US, first, 0, 200),
            ShareSample(WINDOW_US, second, 0, 200),
            ShareSample(WINDOW_US + 5 * US_PER_S, first, 300, 200),
            ShareSample(WINDOW_US + 5 * US_PER_S, second, 0, 500),
        ),
        preparations=(PreparationSpan(WINDOW_US, WINDOW_US + 5 * US_PER_S, 600),),
    )
    curves = tuple(StreamCurves(stream, score(series(0.8), 0.8)) for stream in (first, second))
    run = replace(known, streams=curves)
    axes, pixels = drawn_shares(run)
    pale_first, pale_second = (color_at(axes, pixels, 10, share) for share in (0.25, 0.75))
    assert len({pale_first, pale_second, LIGHT.page}) == 3
    for at_s in (20.5, 22, 24.5):
        assert color_at(axes, pixels, at_s, 0.1) == pale_first
        assert color_at(axes, pixels, at_s, 0.3) == pale_second
    assert color_at(axes, pixels, 30, 0.1) == pale_first
    assert color_at(axes, pixels, 30, 0.35) == LIGHT.streams[0]
    assert color_at(axes, pixels, 30, 0.75) == pale_second
    # Where shares change there is no line between before and after: it would look like an end.
    assert LIGHT.page not in {color_at(axes, pixels, at_s, 0.35) for at_s in np.arange(19.5, 20.5, 0.02)}
    assert LIGHT.page not in {color_at(axes, pixels, 22, share) for share in np.arange(0.45, 0.95, 0.01)}


def test_share_legend_names_preparation_only_if_present() -> None:
    def named(run: RunTimeline) -> list[str]:
        legend = drawn_shares(run)[0].get_legend()
        return [] if legend is None else [text.get_text() for text in legend.get_texts()]

    span = PreparationSpan(WINDOW_US, WINDOW_US + US_PER_S, 100)
    assert "labelling and profiling" not in named(timeline(2))
    assert "labelling and profiling" in named(timeline(2, preparations=(span,)))


def test_preparation_share_holds_from_start_to_end() -> None:
    spans = [PreparationSpan(10, 20, 300), PreparationSpan(40, 50, 200)]
    held = prepared_of(spans, np.array([0, 10, 19, 20, 39, 40, 50]))
    assert held.tolist() == [0, 300, 300, 0, 0, 200, 0]

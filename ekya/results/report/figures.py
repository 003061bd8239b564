"""Figure of a run: accuracy and shares over time."""

import io
from math import ceil, floor

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MultipleLocator
from numpy.typing import NDArray

from ekya.core.units import US_PER_S, us_to_seconds
from ekya.results.metrics.accuracy import ScoreSeries
from ekya.results.metrics.retrainings import FINISHED
from ekya.results.report.formatting import format_percent
from ekya.results.report.panels import (
    RunTimeline,
    StreamCurves,
    draw_shares,
    has_own_colors,
    plain_axes,
    plain_legend,
)
from ekya.results.report.themes import LIGHT, Theme, mix_color

_DPI = 150
_WIDTH_IN = 11.0
_PANEL_IN = 1.35
_SHARES_IN = 2.1
_HEAD_IN = 0.95
_TITLE_IN = 0.36
_FOOT_IN = 0.6
_ONE_COLUMN_STREAMS = 6
# Part of a window over which accuracy is averaged: smooth, but drift and hot swaps stay visible.
_SMOOTHING = 1 / 8
_DASHES = (0, (3, 1.5))
_DOTS = (0, (1, 1.2))
_BAND = 0.05


def draw_timeline(timeline: RunTimeline, title: str = "", theme: Theme = LIGHT) -> bytes:
    """Draws a PNG: one accuracy panel per stream, and a panel of all shares below.

    The same input gives the same bytes. If there are more streams than colours, the shares are drawn as
    two bands, retraining and inference, and the panels are arranged in several columns.

    Args:
        timeline: at least one window and one stream.
        title: one line; empty if the page around the figure has a title.
        theme: colours.
    """
    streams = timeline.streams
    columns = (
        1 if len(streams) <= _ONE_COLUMN_STREAMS else 2 if len(streams) <= 2 * _ONE_COLUMN_STREAMS else 3
    )
    rows = ceil(len(streams) / columns)
    head = _HEAD_IN if title else _HEAD_IN - _TITLE_IN
    height = head + rows * _PANEL_IN + _SHARES_IN + _FOOT_IN
    figure = Figure(figsize=(_WIDTH_IN, height), dpi=_DPI, facecolor=theme.page)
    FigureCanvasAgg(figure)
    wide = columns == 1
    grid = figure.add_gridspec(
        rows + 1,
        columns,
        height_ratios=[_PANEL_IN] * rows + [_SHARES_IN],
        left=0.065,
        right=0.885 if wide else 0.975,
        top=1 - head / height,
        bottom=_FOOT_IN / height,
        hspace=0.24 if wide else 0.5,
        wspace=0.2,
    )
    lowest = _lowest(timeline)
    for i, curves in enumerate(streams):
        axes = figure.add_subplot(grid[i // columns, i % columns])
        color = theme.streams[i if has_own_colors(theme, timeline) else 0]
        _draw_stream(axes, timeline, curves, lowest=lowest, color=color, theme=theme, wide=wide)
        if i == 0 and wide:
            _number_windows(axes, timeline, theme)
    draw_shares(figure.add_subplot(grid[rows, :]), timeline, theme)
    figure.text(0.012, 1 - 0.26 / height, title, color=theme.ink, fontsize=13, fontweight="bold", va="center")
    _legend(figure, timeline, theme, top=1 - (head - 0.53) / height)
    buffer = io.BytesIO()
    # Without the name of the library's version, so that equal runs give equal files.
    figure.savefig(buffer, format="png", dpi=_DPI, facecolor=theme.page, metadata={"Software": None})
    return buffer.getvalue()


def smoothed(series: ScoreSeries, seconds: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns accuracy over the last ``seconds`` up to the end of each second.

    The average looks back only, so that a jump does not appear before its cause.

    Args:
        series: of one stream.
        seconds: at least 1.

    Returns:
        (S,) time in seconds and (S,) accuracy, NaN where no object counts.
    """
    if len(series.start_us) == 0:
        return np.empty(0), np.empty(0)
    second = series.start_us // US_PER_S
    first = np.searchsorted(second, second - seconds + 1)
    here = np.arange(1, len(second) + 1)
    counted = np.append(0, np.cumsum(series.counted))
    correct = np.append(0, np.cumsum(series.correct))
    objects = counted[here] - counted[first]
    accuracy = np.full(len(second), np.nan)
    np.divide(correct[here] - correct[first], objects, out=accuracy, where=objects > 0)
    return (second + 1).astype(np.float64), accuracy


def _draw_stream(
    axes: Axes,
    timeline: RunTimeline,
    curves: StreamCurves,
    *,
    lowest: float,
    color: str,
    theme: Theme,
    wide: bool,
) -> None:
    plain_axes(axes, timeline, theme)
    for span in timeline.history.retrainings:
        if span.stream == curves.stream:
            hatch = None if span.ended == FINISHED else "////"
            axes.axvspan(
                us_to_seconds(span.start_us),
                us_to_seconds(span.end_us),
                facecolor=mix_color(color, theme.page, 0.2),
                edgecolor=mix_color(color, theme.page, 0.45) if hatch else "none",
                hatch=hatch,
                linewidth=0,
                zorder=1,
            )
    seconds = _smoothing_s(timeline)
    if curves.without_retraining is not None:
        times, accuracy = smoothed(curves.without_retraining.series, seconds)
        axes.plot(times, accuracy, color=theme.quiet, linewidth=1.2, linestyle=_DASHES, zorder=3)
    if curves.student is not None:
        times, accuracy = smoothed(curves.student.series, seconds)
        axes.plot(times, accuracy, color=color, linewidth=1.2, linestyle=_DOTS, zorder=3)
    for golden in timeline.history.by_golden:
        if golden.stream == curves.stream:
            # A band along the bottom: above it, the answers are those of the golden detector.
            begin_s, end_s = us_to_seconds(golden.start_us), us_to_seconds(golden.end_us)
            axes.axvspan(begin_s, end_s, ymax=_BAND, facecolor=_golden_color(theme), linewidth=0, zorder=2)
    times, accuracy = smoothed(curves.measured.series, seconds)
    axes.plot(times, accuracy, color=color, linewidth=1.9 if wide else 1.1, solid_joinstyle="round", zorder=4)
    for swap in timeline.history.swaps:
        if swap.stream == curves.stream and len(times):
            at_s = us_to_seconds(swap.t_us)
            height = np.interp(at_s, times, accuracy)
            axes.plot(
                at_s,
                height,
                marker="D",
                markersize=5.5 if wide else 3.5,
                color=color,
                markeredgecolor=theme.page,
                markeredgewidth=1.2 if wide else 0.6,
                zorder=5,
                clip_on=False,
            )
    # Slightly more than 100 %, so that a line at 100 % is not cut in half.
    axes.set_ylim(lowest, 1.0 + 0.03 * (1.0 - lowest))
    axes.yaxis.set_major_locator(MultipleLocator(0.25 if lowest < 0.4 else 0.2 if lowest < 0.75 else 0.1))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.0f}%"))
    axes.set_xticklabels([])
    _remarks(axes, curves, color=color, theme=theme, wide=wide)


def _golden_color(theme: Theme) -> str:
    return mix_color(theme.ink, theme.page, 0.55)


def _remarks(axes: Axes, curves: StreamCurves, *, color: str, theme: Theme, wide: bool) -> None:
    """Writes the stream's name and means to the right of its panel, or above it in a narrow panel."""
    lines: list[tuple[str, str, str, float]] = [(curves.stream, color, "bold", 10.5)]
    if curves.mean is not None:
        lines.append((f"{format_percent(curves.mean)} mean", theme.ink, "normal", 8.5))
    if curves.mean_without is not None:
        lines.append((f"{format_percent(curves.mean_without)} without", theme.quiet, "normal", 8.5))
    for i, (text, text_color, weight, size) in enumerate(lines):
        axes.annotate(
            _shortened(text),
            (1, 1) if wide else (0.36 * i + 0.02 * (i > 0), 1),
            xytext=(8, -3 - 15 * i) if wide else (0, 5),
            xycoords="axes fraction",
            textcoords="offset points",
            color=text_color,
            fontsize=size,
            fontweight=weight,
            va="top" if wide else "baseline",
            parse_math=False,
        )


def _number_windows(axes: Axes, timeline: RunTimeline, theme: Theme) -> None:
    """Labels the windows above the first panel; of more than 12 only some."""
    every = ceil(len(timeline.history.windows) / 12)
    for window in timeline.history.windows[::every]:
        axes.annotate(
            f"window {window.index}" if len(timeline.history.windows) <= 8 else str(window.index),
            (us_to_seconds((window.start_us + window.end_us) // 2), 1),
            xytext=(0, 5),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            color=theme.quiet,
            fontsize=8.5,
            ha="center",
        )


def _legend(figure: Figure, timeline: RunTimeline, theme: Theme, *, top: float) -> None:
    color = theme.streams[0] if len(timeline.streams) == 1 else theme.quiet
    seconds = _smoothing_s(timeline)
    accuracy = "accuracy" if seconds == 1 else f"accuracy, over the last {seconds} s"
    entries: list[Line2D | Patch] = [Line2D([], [], color=color, linewidth=1.9, label=accuracy)]
    if any(curves.without_retraining for curves in timeline.streams):
        entries.append(
            Line2D([], [], color=theme.quiet, linewidth=1.2, linestyle=_DASHES, label="without retraining")
        )
    if any(curves.student for curves in timeline.streams):
        entries.append(Line2D([], [], color=color, linewidth=1.2, linestyle=_DOTS, label="student alone"))
    if timeline.history.by_golden:
        entries.append(Patch(facecolor=_golden_color(theme), label="golden detector answers"))
    retraining = mix_color(color, theme.page, 0.25)
    entries.append(Patch(facecolor=retraining, label="retraining"))
    if any(span.ended != FINISHED for span in timeline.history.retrainings):
        entries.append(
            Patch(
                facecolor=retraining,
                edgecolor=color,
                hatch="////",
                linewidth=0,
                label="retraining, unfinished",
            )
        )
    entries.append(
        Line2D([], [], color=color, marker="D", markersize=5.5, linestyle="none", label="new model serves")
    )
    plain_legend(figure, entries, theme, (0.006, top))


def _lowest(timeline: RunTimeline) -> float:
    """Returns the lower limit of the accuracy axis: 5 to 15 points below the lowest drawn value."""
    drawn = [
        smoothed(curve.series, _smoothing_s(timeline))[1]
        for curves in timeline.streams
        for curve in (curves.measured, curves.without_retraining, curves.student)
        if curve is not None
    ]
    # With a 1, so that there is a value even where no object counts.
    values = np.concatenate([np.ones(1), *drawn])
    return max(0.0, floor(10 * float(np.nanmin(values)) - 0.5) / 10)


def _smoothing_s(timeline: RunTimeline) -> int:
    window = timeline.history.windows[0]
    return max(1, round(us_to_seconds(window.end_us - window.start_us) * _SMOOTHING))


def _shortened(text: str, letters: int = 18) -> str:
    return text if len(text) <= letters else text[: letters - 1] + "…"

"""The figure of a run: accuracy and shares over time."""

import io
from collections.abc import Sequence
from math import ceil, floor

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator
from numpy.typing import NDArray

from ekya.core.ids import StreamId
from ekya.core.units import FULL_GPU_MILLI, US_PER_S, us_to_seconds
from ekya.measuring.accuracy import ScoreSeries
from ekya.measuring.timeline import RunTimeline, ShareSample, StreamCurves
from ekya.report.themes import LIGHT, Theme
from ekya.report.words import percent

_DPI = 150
_WIDTH_IN = 11.0
_PANEL_IN = 1.35
_SHARES_IN = 2.1
_HEAD_IN = 0.95
_TITLE_IN = 0.36
_FOOT_IN = 0.6
_ONE_COLUMN_STREAMS = 6
# Of a window: the span over which the line is averaged, so that it is calm but still falls and jumps.
_SMOOTHING = 1 / 15
_DASHES = (0, (3, 1.5))


def draw_timeline(timeline: RunTimeline, title: str = "", theme: Theme = LIGHT) -> bytes:
    """A PNG: one panel a stream with its accuracy, and below them who had which share.

    The same input gives the same bytes. With more streams than there are colours, the shares are
    drawn as two bands, retraining and inference, and the panels stand in several columns.

    Args:
        timeline: at least one window and one stream.
        title: one line; empty where the page around the figure has one.
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
        color = theme.streams[i if _has_own_colors(theme, timeline) else 0]
        _draw_stream(axes, timeline, curves, lowest=lowest, color=color, theme=theme, wide=wide)
        if i == 0 and wide:
            _number_windows(axes, timeline, theme)
    _draw_shares(figure.add_subplot(grid[rows, :]), timeline, theme, wide=wide)
    figure.text(0.012, 1 - 0.26 / height, title, color=theme.ink, fontsize=13, fontweight="bold", va="center")
    _legend(figure, timeline, theme, top=1 - (head - 0.53) / height)
    buffer = io.BytesIO()
    # Without the name of the library's version, so that equal runs give equal files.
    figure.savefig(buffer, format="png", dpi=_DPI, facecolor=theme.page, metadata={"Software": None})
    return buffer.getvalue()


def smoothed(series: ScoreSeries, seconds: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Accuracy over the last ``seconds`` up to the end of each second.

    Looking back only, so that a jump does not begin before its cause.

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


def steps_of(
    samples: Sequence[ShareSample], stream: StreamId, times_us: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Retraining and inference share of a stream from each time on; 0 before its first sample.

    Args:
        samples: of any streams, in rising order of time; of two at one time the later counts.
        stream: whose.
        times_us: (K,).

    Returns:
        (K,) and (K,) in thousandths.
    """
    own = [sample for sample in samples if sample.stream == stream]
    at = np.searchsorted([sample.t_us for sample in own], times_us, side="right")
    retrain = np.array([0, *(sample.retrain_share_milli for sample in own)], np.int64)
    inference = np.array([0, *(sample.inference_share_milli for sample in own)], np.int64)
    return retrain[at], inference[at]


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
    _plain_axes(axes, timeline, theme)
    for span in timeline.retrainings:
        if span.stream == curves.stream:
            hatch = None if span.finished else "////"
            axes.axvspan(
                us_to_seconds(span.start_us),
                us_to_seconds(span.end_us),
                facecolor=_mixed(color, theme.page, 0.2),
                edgecolor=_mixed(color, theme.page, 0.45) if hatch else "none",
                hatch=hatch,
                linewidth=0,
                zorder=1,
            )
    seconds = _smoothing_s(timeline)
    if curves.without_retraining is not None:
        times, accuracy = smoothed(curves.without_retraining.series, seconds)
        axes.plot(times, accuracy, color=theme.quiet, linewidth=1.2, linestyle=_DASHES, zorder=3)
    times, accuracy = smoothed(curves.measured.series, seconds)
    axes.plot(times, accuracy, color=color, linewidth=1.9 if wide else 1.1, solid_joinstyle="round", zorder=4)
    for swap in timeline.swaps:
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
    axes.set_ylim(lowest, 1.0)
    axes.yaxis.set_major_locator(MultipleLocator(0.25 if lowest < 0.4 else 0.2 if lowest < 0.75 else 0.1))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.0f}%"))
    axes.set_xticklabels([])
    _remarks(axes, curves, color=color, theme=theme, wide=wide)


def _remarks(axes: Axes, curves: StreamCurves, *, color: str, theme: Theme, wide: bool) -> None:
    """The stream's name and means: to the right of its panel, or above it where there is no room."""
    lines: list[tuple[str, str, str, float]] = [(curves.stream, color, "bold", 10.5)]
    if curves.measured.mean_accuracy is not None:
        lines.append((f"{percent(curves.measured.mean_accuracy)} mean", theme.ink, "normal", 8.5))
    other = curves.without_retraining
    if other is not None and other.mean_accuracy is not None:
        lines.append((f"{percent(other.mean_accuracy)} without", theme.quiet, "normal", 8.5))
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


def _draw_shares(axes: Axes, timeline: RunTimeline, theme: Theme, *, wide: bool) -> None:
    _plain_axes(axes, timeline, theme)
    edges_us = {sample.t_us for sample in timeline.shares} | {timeline.windows[0].start_us, timeline.end_us}
    times_us = np.array(sorted(edges_us), np.int64)
    steps = [steps_of(timeline.shares, curves.stream, times_us) for curves in timeline.streams]
    if _has_own_colors(theme, timeline):
        bands = [
            (share, _mixed(theme.streams[i], theme.page, strength))
            for i, (retrain, inference) in enumerate(steps)
            for share, strength in ((inference, 0.38), (retrain, 1.0))
        ]
    else:
        totals = [np.sum([pair[kind] for pair in steps], axis=0) for kind in (1, 0)]
        bands = [
            (total, _mixed(theme.streams[0], theme.page, strength))
            for total, strength in zip(totals, (0.38, 1.0), strict=True)
        ]
    below = np.zeros(len(times_us))
    for share, color in bands:
        above = below + share / FULL_GPU_MILLI
        axes.fill_between(
            times_us / US_PER_S,
            below,
            above,
            step="post",
            facecolor=color,
            edgecolor=theme.page,
            linewidth=0.6,
            zorder=2,
        )
        below = above
    capacity = timeline.capacity_milli / FULL_GPU_MILLI
    axes.axhline(capacity, color=theme.ink, linewidth=1, zorder=4)
    axes.set_ylim(0, max(capacity, float(below.max(initial=0.0))) * 1.04)
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    axes.set_ylabel(f"share of {capacity:g} GPU{'' if capacity == 1 else 's'}", color=theme.quiet, fontsize=9)
    axes.set_xlabel("seconds", color=theme.quiet, fontsize=9)
    remarks = ["strong: retraining", "pale: inference"]
    for i, text in enumerate(remarks):
        axes.annotate(
            text,
            (1, 1),
            xytext=(8, -20 - 15 * i) if wide else (-110 * i, 5),
            xycoords="axes fraction",
            textcoords="offset points",
            color=theme.quiet,
            fontsize=8.5,
            ha="left" if wide else "right",
            va="top" if wide else "baseline",
        )


def _plain_axes(axes: Axes, timeline: RunTimeline, theme: Theme) -> None:
    axes.set_facecolor(theme.page)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(theme.line)
    axes.tick_params(colors=theme.quiet, labelsize=8.5, length=0)
    axes.grid(axis="y", color=theme.line, linewidth=0.7, zorder=0)
    axes.set_axisbelow(True)
    axes.set_xlim(us_to_seconds(timeline.windows[0].start_us), us_to_seconds(timeline.end_us))
    for window in timeline.windows[1:]:
        axes.axvline(us_to_seconds(window.start_us), color=theme.quiet, linewidth=0.7, alpha=0.55, zorder=2)


def _number_windows(axes: Axes, timeline: RunTimeline, theme: Theme) -> None:
    """Above the first panels. Of very many windows only some are numbered."""
    every = ceil(len(timeline.windows) / 12)
    for window in timeline.windows[::every]:
        axes.annotate(
            f"window {window.index}" if len(timeline.windows) <= 8 else str(window.index),
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
    retraining = _mixed(color, theme.page, 0.25)
    entries.append(Patch(facecolor=retraining, label="retraining"))
    if any(not span.finished for span in timeline.retrainings):
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
    figure.legend(
        handles=entries,
        loc="upper left",
        bbox_to_anchor=(0.006, top),
        ncols=len(entries),
        frameon=False,
        fontsize=8.5,
        labelcolor=theme.quiet,
        handlelength=1.5,
        columnspacing=1.4,
        handletextpad=0.5,
    )


def _lowest(timeline: RunTimeline) -> float:
    """Where the accuracy axis begins: a tenth below what is drawn."""
    drawn = [
        smoothed(curve.series, _smoothing_s(timeline))[1]
        for curves in timeline.streams
        for curve in (curves.measured, curves.without_retraining)
        if curve is not None
    ]
    values = np.concatenate([np.ones(1), *drawn])
    return max(0.0, floor(10 * float(np.nanmin(values)) - 0.5) / 10)


def _smoothing_s(timeline: RunTimeline) -> int:
    window = timeline.windows[0]
    return max(1, round(us_to_seconds(window.end_us - window.start_us) * _SMOOTHING))


def _has_own_colors(theme: Theme, timeline: RunTimeline) -> bool:
    return len(timeline.streams) <= len(theme.streams)


def _mixed(color: str, page: str, strength: float) -> str:
    """A colour as it looks at this opacity on the page, but opaque, so that bands do not mix."""
    parts = [
        round(strength * int(color[i : i + 2], 16) + (1 - strength) * int(page[i : i + 2], 16))
        for i in (1, 3, 5)
    ]
    return "#{:02x}{:02x}{:02x}".format(*parts)


def _shortened(text: str, letters: int = 18) -> str:
    return text if len(text) <= letters else text[: letters - 1] + "…"

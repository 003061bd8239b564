"""Elements that all panels of a figure share, and the panel of the shares over time."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from ekya.core.units import FULL_GPU_MILLI, US_PER_S, StreamId, us_to_seconds
from ekya.results.metrics.accuracy import StreamScore
from ekya.results.metrics.run_history import PreparationSpan, RunHistory, ShareSample
from ekya.results.report.themes import Theme, mix_color


@dataclass(frozen=True, slots=True, eq=False)
class StreamCurves:
    """Scores of one stream in a figure.

    Attributes:
        stream: its id.
        measured: of the run.
        without_retraining: of the base model alone, on sampled frames.
        student: of the adapted models alone, on sampled frames, where the golden detector answered too.
        mean, mean_without: accuracy with and without retraining, as the run's table has them.
    """

    stream: StreamId
    measured: StreamScore
    without_retraining: StreamScore | None = None
    student: StreamScore | None = None
    mean: float | None = None
    mean_without: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class RunTimeline:
    """Data of a figure of a run: at least one window and one stream, in the order of drawing."""

    history: RunHistory
    streams: tuple[StreamCurves, ...]
    capacity_milli: int

    @property
    def span_us(self) -> tuple[int, int]:
        """Start of the first window and end of the last."""
        return self.history.windows[0].start_us, self.history.windows[-1].end_us


def plain_axes(axes: Axes, timeline: RunTimeline, theme: Theme) -> None:
    """Sets up a panel over the whole run, with a light grid and lines between its windows."""
    axes.set_facecolor(theme.page)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(theme.line)
    axes.tick_params(colors=theme.quiet, labelsize=8.5, length=0)
    axes.grid(axis="y", color=theme.line, linewidth=0.7, zorder=0)
    axes.set_axisbelow(True)
    axes.set_xlim(*map(us_to_seconds, timeline.span_us))
    for window in timeline.history.windows[1:]:
        axes.axvline(us_to_seconds(window.start_us), color=theme.quiet, linewidth=0.7, alpha=0.55, zorder=2)


def has_own_colors(theme: Theme, timeline: RunTimeline) -> bool:
    """Returns whether the theme has a distinct colour for every stream."""
    return len(timeline.streams) <= len(theme.streams)


def plain_legend(
    target: Axes | Figure, entries: Sequence[Artist], theme: Theme, place: tuple[float, float]
) -> None:
    """Adds a legend in one row; ``place`` is its lower left corner in a panel, its upper left in a figure."""
    target.legend(
        handles=entries,
        loc="lower left" if isinstance(target, Axes) else "upper left",
        bbox_to_anchor=place,
        ncols=len(entries),
        frameon=False,
        fontsize=8.5,
        labelcolor=theme.quiet,
        handlelength=1.5,
        columnspacing=1.4,
        handletextpad=0.5,
    )


_PALE = 0.38
_HATCH = "////"


@dataclass(frozen=True, slots=True, eq=False)
class _Band:
    """One layer of the stack.

    Attributes:
        shares: (K,) thousandths from each time on.
        color: fill colour.
        hatch: colour of its hatching, or None.
    """

    shares: NDArray[np.int64]
    color: str
    hatch: str | None = None


def draw_shares(axes: Axes, timeline: RunTimeline, theme: Theme) -> None:
    """Draws stacked shares over time: inference and retraining of every stream, preparation on top.

    If there are more streams than colours, all streams are summed.
    """
    plain_axes(axes, timeline, theme)
    edges_us = {sample.t_us for sample in timeline.history.shares} | set(timeline.span_us)
    for span in timeline.history.preparations:
        edges_us |= {span.start_us, span.end_us}
    times_us = np.array(sorted(edges_us), np.int64)
    capacity = timeline.capacity_milli / FULL_GPU_MILLI
    top = _draw_stack(axes, times_us, _bands(timeline, theme, times_us), theme)
    axes.axhline(capacity, color=theme.ink, linewidth=1, zorder=4)
    axes.set_ylim(0, max(capacity, top) * 1.04)
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    axes.set_ylabel(f"share of {capacity:g} GPU{'' if capacity == 1 else 's'}", color=theme.quiet, fontsize=9)
    axes.set_xlabel("seconds", color=theme.quiet, fontsize=9)
    _legend(axes, timeline, theme)


def steps_of(
    samples: Sequence[ShareSample], stream: StreamId, times_us: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the retraining and inference shares of a stream from each time on; 0 before its first sample.

    Args:
        samples: of any streams, in rising order of time; the later of two at the same time counts.
        stream: the stream.
        times_us: (K,).

    Returns:
        (K,) and (K,) in thousandths.
    """
    own = [sample for sample in samples if sample.stream == stream]
    at = np.searchsorted([sample.t_us for sample in own], times_us, side="right")
    retrain = np.array([0, *(sample.retrain_share_milli for sample in own)], np.int64)
    inference = np.array([0, *(sample.inference_share_milli for sample in own)], np.int64)
    return retrain[at], inference[at]


def prepared_of(spans: Sequence[PreparationSpan], times_us: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the (K,) thousandths that labelling and profiling hold from each of the (K,) times on."""
    held = np.zeros(len(times_us), np.int64)
    for span in spans:
        held[(times_us >= span.start_us) & (times_us < span.end_us)] = span.share_milli
    return held


def _bands(timeline: RunTimeline, theme: Theme, times_us: NDArray[np.int64]) -> list[_Band]:
    """Returns the bands from bottom to top."""
    steps = [steps_of(timeline.history.shares, curves.stream, times_us) for curves in timeline.streams]
    if not has_own_colors(theme, timeline):
        steps = [(np.sum([pair[0] for pair in steps], axis=0), np.sum([pair[1] for pair in steps], axis=0))]
    bands = [
        _Band(share, mix_color(theme.streams[i], theme.page, strength))
        for i, (retrain, inference) in enumerate(steps)
        for share, strength in ((inference, _PALE), (retrain, 1.0))
    ]
    if timeline.history.preparations:
        bands.append(_Band(prepared_of(timeline.history.preparations, times_us), *_preparation_colors(theme)))
    return bands


def _draw_stack(axes: Axes, times_us: NDArray[np.int64], bands: Sequence[_Band], theme: Theme) -> float:
    """Draws the bands; returns the height of the stack in GPUs."""
    times_s = times_us / US_PER_S
    below = np.zeros(len(times_us))
    for band in bands:
        above = below + band.shares / FULL_GPU_MILLI
        axes.fill_between(
            times_s,
            below,
            above,
            step="post",
            facecolor=band.color,
            edgecolor=band.hatch or "none",
            hatch=_HATCH if band.hatch else None,
            linewidth=0,
            zorder=2,
        )
        # Bands are separated by horizontal lines only: a vertical line where a share changes would look
        # like the end of a job.
        on = np.flatnonzero((band.shares[:-1] > 0) & (below[:-1] > 0))
        axes.hlines(below[on], times_s[on], times_s[on + 1], color=theme.page, linewidth=0.8, zorder=3)
        below = above
    return float(below.max(initial=0.0))


def _legend(axes: Axes, timeline: RunTimeline, theme: Theme) -> None:
    color = theme.quiet if has_own_colors(theme, timeline) else theme.streams[0]
    entries = [
        Patch(facecolor=color, label="retraining"),
        Patch(facecolor=mix_color(color, theme.page, _PALE), label="inference"),
    ]
    if timeline.history.preparations:
        face, hatch = _preparation_colors(theme)
        entries.append(
            Patch(facecolor=face, edgecolor=hatch, hatch=_HATCH, linewidth=0, label="labelling and profiling")
        )
    plain_legend(axes, entries, theme, (-0.006, 0.97))


def _preparation_colors(theme: Theme) -> tuple[str, str]:
    """Returns the fill colour and the hatch colour."""
    return mix_color(theme.quiet, theme.page, 0.18), mix_color(theme.quiet, theme.page, 0.6)

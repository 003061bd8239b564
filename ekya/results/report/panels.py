"""Elements and colours that all panels of a figure share."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ekya.core.units import StreamId, us_to_seconds
from ekya.results.metrics.accuracy import StreamScore
from ekya.results.metrics.run_history import RunHistory
from ekya.results.report.themes import Theme


@dataclass(frozen=True, slots=True, eq=False)
class StreamCurves:
    """Scores of one stream in a figure: of the run, and of the base model on the sampled frames."""

    stream: StreamId
    measured: StreamScore
    without_retraining: StreamScore | None = None


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

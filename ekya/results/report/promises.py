"""Figure of a run's promises: what retrainings were to gain, and what they gained."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from ekya.results.report.themes import LIGHT, Theme

FEWEST = 3
"""Promises that are worth a figure."""

_SIZE_IN = 4.6
_DPI = 150
_AREA_OF_ONE = 6.0


def draw_promises(promises: Sequence[Mapping[str, Any]], theme: Theme = LIGHT) -> bytes:
    """Draws a PNG: a point for each promise, larger with more objects; on the line what came is as promised.

    Args:
        promises: as in a summary, at least one.
        theme: colours.
    """
    figure = Figure(figsize=(_SIZE_IN, _SIZE_IN), dpi=_DPI, facecolor=theme.page)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_facecolor(theme.page)
    axes.tick_params(colors=theme.quiet, labelsize=8.5, length=0)
    axes.grid(color=theme.line, linewidth=0.7)
    axes.set_axisbelow(True)
    for spine in axes.spines.values():
        spine.set_visible(False)
    promised, came = ([one[key] for one in promises] for key in ("promised", "came"))
    ends = [min(*promised, *came, 0.0) - 0.05, max(*promised, *came, 0.1) + 0.05]
    axes.plot(ends, ends, color=theme.quiet, linewidth=1.0)
    axes.scatter(
        promised,
        came,
        s=[_AREA_OF_ONE * one["objects"] for one in promises],
        color=theme.streams[0],
        alpha=0.6,
        linewidths=0,
    )
    axes.set(xlim=ends, ylim=ends)
    axes.set_xlabel("promised gain in accuracy", color=theme.ink)
    axes.set_ylabel("gain on later labels", color=theme.ink)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    figure.tight_layout()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", facecolor=theme.page, metadata={"Software": None})
    return buffer.getvalue()

"""Formats numbers and configurations of a summary, the same in tables and in the report; makes tables."""

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from ekya.core.configs import InferenceConfig, RetrainConfig

NONE = "–"
"""Shown for a missing value."""


def format_percent(value: float | None) -> str:
    """Formats a fraction as ``81.2%``."""
    return NONE if value is None else f"{100 * value:.1f}%"


def format_share(milli: float) -> str:
    """Formats a share as part of one GPU: ``25%``, or with one digit (``0.5%``) below 10%."""
    return f"{milli / 10:.1f}%" if 0 < milli < 100 and milli % 10 else f"{milli / 10:.0f}%"


def format_gamma(values: Mapping[str, Any] | None) -> str:
    """Returns the name of a γ of the summary."""
    return NONE if values is None else RetrainConfig(**values).name


def format_lambda(values: Mapping[str, Any] | None) -> str:
    """Returns the name of a λ of the summary."""
    return NONE if values is None else InferenceConfig(**values).name


def mean_share(windows: list[dict[str, Any]], field: str) -> float:
    """Returns the mean of a share over a stream's windows, in thousandths."""
    return sum(window[field] for window in windows) / len(windows) if windows else 0.0


def format_points(difference: float | None) -> str:
    """Formats a difference of accuracies in percentage points: ``+12.3``."""
    return NONE if difference is None else f"{100 * difference:+.1f}"


def judged_after_0(health: Mapping[str, Any]) -> bool:
    """Returns whether only windows after window 0 count in the health of a run: unless it has no other."""
    return any(one["index"] > 0 for windows in health["streams"].values() for one in windows)


def make_table(*headings: str, title: str = "", left: int = 1, gap: int = 2) -> Table:
    """Returns a table without rows that wastes no room, so that it fits 80 columns; no word of it is cut off.

    Args:
        headings, title: above its columns, and above them all; empty for none.
        left, gap: number of columns, from the first, that are aligned to the left; spaces between columns.
    """
    table = Table(
        title=Text(title) if title else None,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, gap - 1, 0, 0),
    )
    for at, heading in enumerate(headings):
        table.add_column(Text(heading), justify="left" if at < left else "right", overflow="fold")
    return table

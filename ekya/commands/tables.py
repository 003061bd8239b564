"""Tables for people, from what the machine's version says."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from rich.table import Table

from ekya.core.units import FULL_GPU_MILLI


def run_table(summary: Mapping[str, Any]) -> Table:
    """One row a camera, from a summary (``docs/summary.md``)."""
    table = Table(title=f"{summary['scheduler']}, {summary['world']} world, seed {summary['seed']}")
    table.add_column("camera")
    for heading in (
        "accuracy",
        "without retraining",
        "balanced",
        "retrained",
        "to retraining",
        "to inference",
    ):
        table.add_column(heading, justify="right")
    for stream, entry in summary["streams"].items():
        windows = entry["windows"]
        table.add_row(
            f"{stream} (set aside)" if entry["set_aside"] else stream,
            _percent(entry["mean_accuracy"]),
            _percent(entry.get("without_retraining")),
            _percent(entry["balanced_accuracy"]),
            f"{sum(window['retrained'] for window in windows)} of {len(windows)}",
            _share([window["retrain_share_milli"] for window in windows]),
            _share([window["inference_share_milli"] for window in windows]),
        )
    table.add_section()
    table.add_row(
        "all",
        _percent(summary["mean_accuracy"]),
        _percent(summary.get("without_retraining")),
        _percent(summary["balanced_accuracy"]),
        f"{summary['retrainings']['finished']} finished",
        "",
        "",
        style="bold",
    )
    frames = summary["frames"]
    table.caption = (
        f"{frames['arrived']} frames: {frames['analysed']} analysed, {frames['skipped']} skipped, "
        f"{frames['lost']} lost. Shares are means in GPUs."
    )
    return table


def _percent(part: float | None) -> str:
    return "–" if part is None else f"{part:.1%}"


def _share(milli: Sequence[int]) -> str:
    return f"{fmean(milli) / FULL_GPU_MILLI:.2f}" if milli else "–"

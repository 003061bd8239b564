"""The tables at the end of a run and of a comparison."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from ekya.report.words import gain, mean_share, percent, share


def run_table(summary: Mapping[str, Any]) -> Table:
    """One row a stream and one for all of them.

    Args:
        summary: as ``measuring.summary`` builds it.
    """
    table = Table(title=Text(f"{summary['scheduler']}, {summary['world']}"), title_justify="left")
    table.add_column("Stream")
    for name in ("Accuracy", "Balanced", "Without\nretraining", "Gain", "Retrainings", "Retraining\nshare"):
        table.add_column(name, justify="right")
    table.add_column("Inference\nshare", justify="right")
    for stream, values in summary["streams"].items():
        windows = values["windows"]
        table.add_row(
            Text(stream),
            percent(values["mean_accuracy"]),
            percent(values["balanced_accuracy"]),
            percent(values["without_retraining"]),
            gain(values["mean_accuracy"], values["without_retraining"]),
            str(sum(window["retrained"] for window in windows)),
            share(round(mean_share(windows, "retrain_share_milli"))),
            share(round(mean_share(windows, "inference_share_milli"))),
        )
    table.add_section()
    known = [values["without_retraining"] for values in summary["streams"].values()]
    values_known = [value for value in known if value is not None]
    # A mean over some of the streams only would not be comparable with the mean beside it.
    mean_without = sum(values_known) / len(known) if known and len(values_known) == len(known) else None
    all_windows = [values["windows"] for values in summary["streams"].values()]
    table.add_row(
        "all",
        percent(summary["mean_accuracy"]),
        percent(summary["balanced_accuracy"]),
        percent(mean_without),
        gain(summary["mean_accuracy"], mean_without),
        str(sum(window["retrained"] for windows in all_windows for window in windows)),
        share(round(sum(mean_share(windows, "retrain_share_milli") for windows in all_windows))),
        share(round(sum(mean_share(windows, "inference_share_milli") for windows in all_windows))),
        style="bold",
    )
    frames = summary["frames"]
    table.caption = (
        f"{frames['arrived']} frames arrived, {frames['analysed']} analysed, {frames['skipped']} skipped, "
        f"{frames['lost']} lost"
    )
    table.caption_justify = "left"
    return table


def compare_table(summaries: Sequence[Mapping[str, Any]]) -> Table:
    """One row a scheduler, in the order given; the best value of each column stands in bold.

    Args:
        summaries: of runs over the same frames. Streams that only some of them have show a dash elsewhere.
    """
    streams = sorted({stream for summary in summaries for stream in summary["streams"]})
    table = Table()
    table.add_column("Scheduler")
    for name in ("Mean accuracy", "Balanced", *streams, "Retrainings", "Lost"):
        table.add_column(Text(name), justify="right")
    rows = [
        [
            summary["mean_accuracy"],
            summary["balanced_accuracy"],
            *(summary["streams"].get(stream, {}).get("mean_accuracy") for stream in streams),
        ]
        for summary in summaries
    ]
    best = [max((v for v in column if v is not None), default=None) for column in zip(*rows, strict=True)]
    for summary, row in zip(summaries, rows, strict=True):
        accuracies = (
            Text(percent(value), style="bold" if value is not None and value == top else "")
            for value, top in zip(row, best, strict=True)
        )
        retrainings = summary["retrainings"]
        table.add_row(
            Text(summary["scheduler"]),
            *accuracies,
            f"{retrainings['finished']} of {retrainings['started']}",
            str(summary["frames"]["lost"]),
        )
    return table

"""Result tables of a run, of a comparison, and of the events of a script."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from ekya.core.units import us_to_seconds
from ekya.results.metrics.health import HealthState
from ekya.results.metrics.script_events import Happening, OccurredCue
from ekya.results.report.formatting import (
    format_percent,
    format_points,
    format_share,
    judged_after_0,
    mean_share,
)

_OK = str(HealthState.OK)
_DETECT = "detect"


def run_table(summary: Mapping[str, Any]) -> Table:
    """Builds a table with a row per stream and a row for all of them.

    Args:
        summary: as built by ``results.metrics.summary``.
    """
    table = Table(title=Text(f"{summary['scheduler']}, {summary['world']}"), title_justify="left")
    table.add_column("Stream")
    second = _second_column(summary)
    for name in ("Accuracy", second[0], "Without\nretraining", "Gain", "Retrainings", "Retraining\nshare"):
        table.add_column(name, justify="right")
    table.add_column("Inference\nshare", justify="right")
    after_0 = judged_after_0(summary["health"])
    table.add_column("Ok", justify="right", no_wrap=True)
    for stream, values in summary["streams"].items():
        windows = values["windows"]
        table.add_row(
            Text(stream),
            format_percent(values["mean_accuracy"]),
            format_percent(values[second[1]]),
            format_percent(values["without_retraining"]),
            format_points(values["gain"]),
            str(sum(window["retrained"] for window in windows)),
            format_share(round(mean_share(windows, "retrain_share_milli"))),
            format_share(round(mean_share(windows, "inference_share_milli"))),
            _windows_ok(summary["health"]["streams"][stream], after_0),
        )
    table.add_section()
    all_windows = [values["windows"] for values in summary["streams"].values()]
    table.add_row(
        "all",
        format_percent(summary["mean_accuracy"]),
        format_percent(summary[second[1]] if second[1] in summary else _mean(summary, second[1])),
        format_percent(_mean(summary, "without_retraining")),
        format_points(_mean(summary, "gain")),
        str(sum(window["retrained"] for windows in all_windows for window in windows)),
        format_share(round(sum(mean_share(windows, "retrain_share_milli") for windows in all_windows))),
        format_share(round(sum(mean_share(windows, "inference_share_milli") for windows in all_windows))),
        _windows_ok([one for windows in summary["health"]["streams"].values() for one in windows], after_0),
        style="bold",
    )
    frames = summary["frames"]
    table.caption = (
        f"{frames['arrived']} frames arrived, {frames['analysed']} analysed, {frames['skipped']} skipped, "
        f"{frames['lost']} lost"
    )
    if after_0:
        table.caption += "\nOk: of the windows after window 0"
    if summary["task"] == _DETECT:
        table.caption += f"\n{_meaning_of(summary)} {_golden_sentence(summary['golden'])}"
    table.caption_justify = "left"
    return table


def _second_column(summary: Mapping[str, Any]) -> tuple[str, str]:
    """Returns title and field of the column beside accuracy."""
    # A live camera's frames cannot be scored afterwards; only the labels of its windows are available.
    if any(values["mean_accuracy"] is None for values in summary["streams"].values()):
        return "On its\nlabels", "validation_accuracy"
    return _beside_accuracy(summary)


def _beside_accuracy(summary: Mapping[str, Any]) -> tuple[str, str]:
    return ("AP50", "ap50") if summary["task"] == _DETECT else ("Balanced", "balanced_accuracy")


def _meaning_of(summary: Mapping[str, Any]) -> str:
    """Returns what the accuracy of detectors is."""
    of = "" if summary["reference"] is None else f"agreement with {summary['reference']}, as "
    margin, frames = summary["accuracy_margin"], summary["scored_frames"]
    sampled = (
        "" if margin is None else f", from {frames} frames: ± {100 * margin:.1f} points with 95% confidence"
    )
    return f"Accuracy is {of}F1 at an IoU of 0.5{sampled}."


def _golden_sentence(golden: Mapping[str, Any]) -> str:
    share = format_percent(golden["gpu_share"])
    return (
        f"The golden detector saw {golden['calls']} frames for labels and profiles, with {share} of the GPUs."
    )


def health_lines(summary: Mapping[str, Any]) -> list[str]:
    """Returns one line per stream and state other than ``ok``, and one per warning."""
    lines = [
        _student_line(stream, values)
        for stream, values in summary["streams"].items()
        if values.get("golden_part")
    ]
    if summary["adaptation"]["sentence"] is not None:
        lines.append(f"warning: {summary['adaptation']['sentence']}")
    for stream, windows in summary["health"]["streams"].items():
        for state in dict.fromkeys(one["state"] for one in windows if one["state"] != _OK):
            such = [one for one in windows if one["state"] == state]
            where = f"window{'' if len(such) == 1 else 's'} {', '.join(str(one['index']) for one in such)}"
            lines.append(f"{stream} was {state} in {where}: {such[-1]['reason']}; {such[-1]['remedy']}")
    lines += [f"warning of {', '.join(one['from'])}: {one['text']}" for one in summary["warnings"]]
    return lines


def _student_line(stream: str, values: Mapping[str, Any]) -> str:
    by_golden, student, base = (
        format_percent(values[name])
        for name in ("golden_part", "student_accuracy", "student_without_retraining")
    )
    return (
        f"{stream}: the golden detector answered {by_golden} of the frames, and agrees with itself; the "
        f"student alone reaches {student}, without retraining {base}"
    )


def _windows_ok(windows: Sequence[Mapping[str, Any]], after_0: bool) -> str:
    states = [one["state"] for one in windows if one["index"] > 0 or not after_0]
    return f"{states.count(_OK)}/{len(states)}"


def _mean(summary: Mapping[str, Any], name: str) -> float | None:
    """Returns the mean over all streams; None if a stream lacks the value, since means would not compare."""
    values = [stream[name] for stream in summary["streams"].values()]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def compare_table(summaries: Sequence[Mapping[str, Any]]) -> Table:
    """Builds a table with a row per scheduler in the given order; the best value per column is bold.

    Args:
        summaries: of runs over the same frames. A stream that a run lacks shows a dash.
    """
    streams = sorted({stream for summary in summaries for stream in summary["streams"]})
    title, field = _beside_accuracy(summaries[0])
    table = Table()
    table.add_column("Scheduler")
    for name in ("Mean accuracy", title, *streams, "Retrainings", "Lost"):
        table.add_column(Text(name), justify="right")
    rows = [
        [
            summary["mean_accuracy"],
            summary[field],
            *(summary["streams"].get(stream, {}).get("mean_accuracy") for stream in streams),
        ]
        for summary in summaries
    ]
    best = [max((v for v in column if v is not None), default=None) for column in zip(*rows, strict=True)]
    for summary, row in zip(summaries, rows, strict=True):
        accuracies = (
            Text(format_percent(value), style="bold" if value is not None and value == top else "")
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


def difference_lines(pairs: Sequence[Mapping[str, Any]], scheduler: str) -> list[str]:
    """Returns a sentence for each difference between a scheduler and another one, by several seeds."""
    return [
        f"{one['above']} less {one['below']}: {100 * one['difference']:+.1f} points "
        f"(95% interval {100 * one['low']:+.1f} to {100 * one['high']:+.1f})"
        for one in pairs
        if one["above"] == scheduler and one["low"] is not None
    ]


_WORDS = {
    Happening.JOINS: "joins",
    Happening.LOST: "is lost",
    Happening.BACK: "is back",
    Happening.NIGHT: "has night",
    Happening.BURST: "has a burst",
}


def cue_line(occurred: OccurredCue) -> str:
    """Returns the log line of an event."""
    at_s = us_to_seconds(occurred.t_us)
    return f"{at_s:.1f} s: {occurred.cue.stream} {_what(occurred)}; {share_changes(occurred)}"


def cue_table(cues: Sequence[OccurredCue]) -> Table:
    """Builds a table of all events with the share changes."""
    table = Table(title="The script, and shares in thousandths of a GPU (inference + retraining)")
    table.add_column("At", justify="right")
    for name in ("Stream", "What happens", "Shares"):
        table.add_column(name)
    for one in cues:
        at = f"{us_to_seconds(one.t_us):.1f} s"
        table.add_row(at, one.cue.stream, _what(one), share_changes(one))
    return table


def share_changes(occurred: OccurredCue) -> str:
    """Returns the streams whose share (inference and retraining) changed, before and after."""
    changes = []
    for stream in sorted({*occurred.before, *occurred.after}):
        before, after = sum(occurred.before.get(stream, (0, 0))), sum(occurred.after.get(stream, (0, 0)))
        if before != after:
            changes.append(f"{stream} {before} → {after}")
    return ", ".join(changes) or "shares stay"


def _what(occurred: OccurredCue) -> str:
    until_us = occurred.cue.until_us
    how_long = "" if until_us is None else f" for {us_to_seconds(until_us - occurred.cue.t_us):g} s"
    return _WORDS[occurred.cue.happens] + how_long

"""Result tables of a run, of a comparison, and of the events of a script."""

from collections.abc import Iterator, Mapping, Sequence
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
    make_table,
    mean_share,
)

_OK = str(HealthState.OK)
_DETECT = "detect"

_ABREAST = 5  # schedulers in a table


def run_table(summary: Mapping[str, Any]) -> Table:
    """Builds a table with a row per stream and a row for all of them.

    Args:
        summary: as built by ``results.metrics.summary``.
    """
    second, after_0 = _second_column(summary), judged_after_0(summary["health"])
    headings = f"Stream|Accuracy|{second[0]}|Base\nmodel|Gain|Trained|Train\nshare|Infer\nshare|Ok".split("|")
    table = make_table(*headings, title=f"{summary['scheduler']}, {summary['world']}")
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
        f"{frames['arrived']} frames arrived, {frames['analysed']} of {frames['due']} due were analysed, "
        f"{frames['lost']} lost\nBase model: not retrained. Shares: of a GPU, on average"
    )
    if after_0:
        table.caption += "\nOk: of the windows after window 0"
    if summary["task"] == _DETECT:
        table.caption += f"\n{_meaning_of(summary)} {_golden_sentence(summary['golden'])}"
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
    starting, after_0 = [], judged_after_0(summary["health"])
    for stream, windows in summary["health"]["streams"].items():
        unwell = [one for one in windows if one["state"] != _OK]
        if after_0 and unwell and (unwell[0]["index"], unwell[0]["state"]) == (0, HealthState.BEHIND):
            # All cameras begin at once, so most are: that is told once.
            starting.append((stream, unwell.pop(0)["reason"]))
        for state in dict.fromkeys(one["state"] for one in unwell):
            such = [one for one in unwell if one["state"] == state]
            where = f"window{'' if len(such) == 1 else 's'} {', '.join(str(one['index']) for one in such)}"
            lines.append(f"{stream} was {state} in {where}: {such[-1]['reason']}; {such[-1]['remedy']}")
    if starting:
        names = ", ".join(stream for stream, _ in starting)
        lines.append(f"Behind in window 0, while the run began: {names}; {starting[0][1]}")
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


def compare_tables(summaries: Sequence[Mapping[str, Any]]) -> Iterator[Table]:
    """Yields tables with a column per scheduler in the given order; the best accuracy per row is bold.

    Args:
        summaries: of runs over the same frames. A stream that a run lacks shows a dash.
    """
    streams = sorted({stream for summary in summaries for stream in summary["streams"]})
    title, field = _beside_accuracy(summaries[0])
    rows = {
        "Mean accuracy": [run["mean_accuracy"] for run in summaries],
        title: [run[field] for run in summaries],
    }
    for stream in streams:
        rows[stream] = [run["streams"].get(stream, {}).get("mean_accuracy") for run in summaries]
    for first in range(0, len(summaries), _ABREAST):
        part = slice(first, first + _ABREAST)
        # A name with options is long: it goes on below.
        names = (summary["scheduler"].replace(":", ":\n").replace("@", "\n@") for summary in summaries[part])
        table = make_table("Accuracy", *names)
        for name, values in rows.items():
            best = max((value for value in values if value is not None), default=None)
            cells = (
                Text(format_percent(value), style="bold" if value is not None and value == best else "")
                for value in values[part]
            )
            table.add_row(Text(name), *cells)
        trained = (summary["retrainings"] for summary in summaries[part])
        table.add_row("Retrainings", *(f"{one['finished']} of {one['started']}" for one in trained))
        table.add_row("Frames lost", *(str(summary["frames"]["lost"]) for summary in summaries[part]))
        yield table


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
    title = "The script, and shares in thousandths of a GPU (inference + retraining)"
    table = make_table("At", "Stream", "What happens", "Shares", title=title, left=4)
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

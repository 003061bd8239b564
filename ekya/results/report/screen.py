"""Progress display of a run: a live table, or log lines without a terminal."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.units import StreamId, us_to_seconds
from ekya.results.metrics.health import WELL, Health, HealthState
from ekya.results.report.formatting import NONE, format_percent, format_share, make_table

_LOG = logging.getLogger(__name__)

_REFRESH_PER_S = 4
_GOOD, _FAIR = 0.85, 0.70


@dataclass(frozen=True, slots=True)
class ScreenRow:
    """One stream at one moment.

    Attributes:
        stream: its id.
        status: one or two words, for example ``serving``, ``labelling`` or ``set aside``.
        accuracy_now: estimated accuracy of the serving model, None before the first labels; that of λ where
            it is of the golden detector.
        accuracy_mean: mean of the estimates over time so far.
        training: γ in training, or None.
        training_progress: finished part of that retraining, in [0, 1]; None if unknown.
        inference: λ; None before the first plan.
        retrain_share_milli, inference_share_milli: as granted.
        health: health of the stream so far.
    """

    stream: StreamId
    status: str
    accuracy_now: float | None
    accuracy_mean: float | None
    training: RetrainConfig | None
    training_progress: float | None
    inference: InferenceConfig | None
    retrain_share_milli: int
    inference_share_milli: int
    health: Health = WELL


@dataclass(frozen=True, slots=True)
class ScreenState:
    """The whole screen at one moment.

    Attributes:
        now_us: run time.
        window, window_count: the open window, from 0, and the number of windows; None if unknown.
        window_start_us, window_end_us: of the open window.
        capacity_milli: share of all GPUs together.
        rows: in the order of display.
        note: one line below, for example the dashboard's address; empty for none.
    """

    now_us: int
    window: int
    window_count: int | None
    window_start_us: int
    window_end_us: int
    capacity_milli: int
    rows: tuple[ScreenRow, ...]
    note: str = ""

    @property
    def window_progress(self) -> float:
        """Part of the window that is over, in [0, 1]."""
        length_us = self.window_end_us - self.window_start_us
        return min(1.0, max(0.0, (self.now_us - self.window_start_us) / length_us)) if length_us > 0 else 0.0


Show = Callable[[ScreenState], None]
"""Shows a state; cheap enough for several calls per second."""


@contextmanager
def open_screen(console: Console) -> Iterator[Show]:
    """Yields a function that shows one state after the other.

    On a terminal it redraws a table in place, and log lines through the same console appear above it.
    Elsewhere it logs changes.
    """
    if not console.is_terminal:
        yield PlainScreen().log_changes
        return
    with Live(console=console, refresh_per_second=_REFRESH_PER_S) as live:
        yield lambda state: live.update(draw_screen(state))


class PlainScreen:
    """Logs a line for each window, and in a window at most one for each stream.

    That is when it is first in another state, or its retraining is over. A state that follows is told in the
    next window, if it still holds; of streams that are behind while a run begins, after window 0 in one line.
    """

    def __init__(self) -> None:
        self._window: int | None = None
        # Of the newest state; and as each stream was told of last.
        self._rows: dict[StreamId, ScreenRow] = {}
        self._told: dict[StreamId, ScreenRow] = {}
        self._told_now: set[StreamId] = set()

    def log_changes(self, state: ScreenState) -> None:
        """Logs the differences from the previous state."""
        at = f"{us_to_seconds(state.now_us):.1f} s"
        if state.window != self._window:
            now = ", ".join(f"{row.stream} {format_percent(row.accuracy_now)}" for row in state.rows)
            _LOG.info("%s: %s; accuracy %s", at, _window_name(state), now)
            self._window = state.window
            self._told_now.clear()
        unwell = []
        for row in state.rows:
            told = self._told.setdefault(row.stream, replace(row, health=WELL))
            changes = _changes(self._rows.get(row.stream), told, row)
            is_unwell = row.health.state not in (told.health.state, WELL.state)
            at_start = state.window == 0 and row.health.state is HealthState.BEHIND
            if row.stream not in self._told_now and (changes or is_unwell) and not at_start:
                self._told_now.add(row.stream)
                self._told[row.stream] = row
                if changes:
                    changes += [f"is {row.health.line}"] if is_unwell else []
                    _LOG.info("%s: %s %s", at, row.stream, "; ".join(changes))
                else:
                    unwell.append(row)
            self._rows[row.stream] = row
        for line in _unwell_lines(unwell):
            _LOG.info("%s: %s", at, line)


def draw_screen(state: ScreenState) -> RenderableType:
    """Returns the screen as a rich renderable."""
    head = Table.grid(padding=(0, 2))
    head.add_row(
        Text(_window_name(state), style="bold"),
        ProgressBar(total=1.0, completed=state.window_progress, width=12),
        f"{us_to_seconds(max(0, state.window_end_us - state.now_us)):.0f} s left",
        _shares_in_use(state),
    )
    table = make_table("Stream", "Now", "Mean", "Inference", "Share", "Training", "Share")
    table.columns[3].justify = table.columns[5].justify = "left"
    for row in state.rows:
        table.add_row(
            Text(row.stream),
            Text(format_percent(row.accuracy_now), style=_color(row.accuracy_now)),
            Text(format_percent(row.accuracy_mean), style=_color(row.accuracy_mean)),
            Text(row.inference.name if row.inference else NONE),
            format_share(row.inference_share_milli),
            _training(row),
            format_share(row.retrain_share_milli) if row.training else "",
        )
    parts: list[RenderableType] = [head, Text(), table]
    unwell = [row for row in state.rows if row.health != WELL]
    if unwell:
        parts += [Text(), *(Text(line, style="yellow") for line in _unwell_lines(unwell))]
    if state.note:
        parts += [Text(), Text(state.note, style="dim")]
    return Group(*parts)


def _training(row: ScreenRow) -> Text:
    if row.training is None:
        return Text(row.status, style="dim")
    done = "" if row.training_progress is None else f"{100 * row.training_progress:3.0f}%  "
    return Text(done + row.training.name)


def _shares_in_use(state: ScreenState) -> Text:
    used = sum(row.inference_share_milli + row.retrain_share_milli for row in state.rows)
    return Text(f"{used / 1000:.2f} of {state.capacity_milli / 1000:g} GPUs given out", style="dim")


def _window_name(state: ScreenState) -> str:
    # Windows are named by index, as in the summary and in the report.
    last = "" if state.window_count is None else f" (last: {state.window_count - 1})"
    return f"window {state.window}{last}"


def _changes(before: ScreenRow | None, told: ScreenRow, now: ScreenRow) -> list[str]:
    """Returns what has changed, but for a state in which the stream is unwell."""
    lines = []
    earlier = before.training if before else None
    if earlier is not None and now.training != earlier:
        lines.append(f"has trained {earlier.name}; accuracy now {format_percent(now.accuracy_now)}")
    # A status that is also the word for the health is told with the health; each window is prepared.
    if now.status not in (told.status, now.health.state, "preparing", "serving"):
        lines.append(f"is {now.status}")
    if told.health != WELL and now.health == WELL:
        lines.append(f"is {told.health.state} no more")
    return lines


def _unwell_lines(rows: Sequence[ScreenRow]) -> Iterator[str]:
    """Yields a line for each state in which streams are unwell, with the reason of the first."""
    for state, remedy in dict.fromkeys((row.health.state, row.health.remedy) for row in rows):
        such = [row for row in rows if (row.health.state, row.health.remedy) == (state, remedy)]
        names, are = ", ".join(row.stream for row in such), "is" if len(such) == 1 else "are"
        yield f"{names} {are} {such[0].health.line}"


def _color(accuracy: float | None) -> str:
    if accuracy is None:
        return "dim"
    return "green" if accuracy >= _GOOD else "yellow" if accuracy >= _FAIR else "red"

"""Scripted cues of a run as a table for readers."""

import io

from rich.console import Console

from ekya.core.units import StreamId
from ekya.results.metrics.script_events import Cue, Happening, OccurredCue
from ekya.results.report.tables import cue_line, cue_table

A, B, S = StreamId("a"), StreamId("b"), 1_000_000
LOST = OccurredCue(
    Cue(10 * S, A, Happening.LOST, 14 * S),
    10_200_000,
    {A: (100, 400), B: (0, 300)},
    {A: (100, 0), B: (0, 700)},
)
NIGHT = OccurredCue(Cue(12 * S, B, Happening.NIGHT, 18 * S), 12 * S, {B: (0, 300)}, {B: (0, 300)})
JOINS = OccurredCue(Cue(5 * S, B, Happening.JOINS), 5 * S, {A: (0, 400)}, {A: (0, 300), B: (0, 100)})


def test_cue_line_names_time_stream_event_and_share_changes():
    assert cue_line(LOST) == "10.2 s: a is lost for 4 s; a 500 → 100, b 300 → 700"
    assert cue_line(NIGHT) == "12.0 s: b has night for 6 s; shares stay"
    assert cue_line(JOINS) == "5.0 s: b joins; a 400 → 300, b 0 → 100"


def test_cue_table_has_one_row_for_each_cue():
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(cue_table([JOINS, LOST, NIGHT]))
    text = console.export_text()
    for words in ("joins", "is lost for 4 s", "b 300 → 700", "12.0 s"):
        assert words in text

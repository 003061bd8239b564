"""Scripted cues of a run, the shares before and after them, and their table for readers."""

import io

from rich.console import Console

from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.commands import StepRecord
from ekya.core.configs import InferenceConfig
from ekya.core.units import StreamId
from ekya.results.metrics.script_events import Cue, CueFollower, Happening, OccurredCue, occurred_cues
from ekya.results.report.tables import cue_line, cue_table

A, B, S = StreamId("a"), StreamId("b"), 1_000_000
EVERY = InferenceConfig(1, 32)
LOST, BACK = Cue(10 * S, A, Happening.LOST, 14 * S), Cue(14 * S, A, Happening.BACK)
AGAIN = Cue(20 * S, A, Happening.LOST, 24 * S)
NIGHT = Cue(12 * S, B, Happening.NIGHT, 18 * S)
JOINS = Cue(5 * S, B, Happening.JOINS)


def turn(now_s, *happened):
    events = tuple(one for one in happened if hasattr(one, "t_us"))
    return StepRecord(round(now_s * S), events, None, tuple(one for one in happened if one not in events))


def lost(at_s):
    return ev.StreamLost(round(at_s * S), A, "the fleet file's script has it lost")


TURNS = [
    turn(0, cmd.SetInference(A, EVERY, 400), cmd.SetInference(B, EVERY, 300)),
    turn(10.25, lost(10.2), cmd.SetInference(B, EVERY, 700)),
    turn(13),
    turn(14, ev.StreamBack(14 * S, A), cmd.SetInference(A, EVERY, 400), cmd.SetInference(B, EVERY, 300)),
    turn(19, ev.ShareMeasured(19 * S, A, ev.Role.INFERENCE, 1)),
    turn(21, lost(20.5)),
]


def test_cues_occur_with_their_event_or_at_their_time():
    told = list(occurred_cues([AGAIN, BACK, NIGHT, LOST], TURNS))
    assert [(one.cue, one.t_us) for one in told] == [
        (LOST, 10_200_000),
        (NIGHT, 12 * S),
        (BACK, 14 * S),
        (AGAIN, 20_500_000),
    ]


def test_cue_shares_are_those_before_and_after_the_step():
    told = {one.cue: one for one in occurred_cues([AGAIN, BACK, NIGHT, LOST], TURNS)}
    assert told[LOST].before == {A: (0, 400), B: (0, 300)}
    assert told[LOST].after == {A: (0, 0), B: (0, 700)}
    assert told[NIGHT].before == told[NIGHT].after == {A: (0, 0), B: (0, 700)}
    assert told[BACK].after == {A: (0, 400), B: (0, 300)}


def test_cues_that_never_occur_are_left_out():
    assert list(occurred_cues([JOINS], TURNS)) == []


def test_cues_stream_from_the_beginning_does_not_join():
    follower = CueFollower([JOINS])
    assert follower.follow_step(turn(0, ev.StreamAdded(0, A, ()), ev.StreamAdded(0, B, ()))) == []


def test_cue_values_are_json():
    (told,) = occurred_cues([LOST], TURNS)
    assert told.json_values() == {
        "at_s": 10.2,
        "until_s": 14.0,
        "stream": "a",
        "event": "lost",
        "shares_before": {
            "a": {"retraining_milli": 0, "inference_milli": 400},
            "b": {"retraining_milli": 0, "inference_milli": 300},
        },
        "shares_after": {
            "a": {"retraining_milli": 0, "inference_milli": 0},
            "b": {"retraining_milli": 0, "inference_milli": 700},
        },
    }


OCCURRED_LOSS = OccurredCue(
    LOST,
    10_200_000,
    {A: (100, 400), B: (0, 300)},
    {A: (100, 0), B: (0, 700)},
)
OCCURRED_NIGHT = OccurredCue(NIGHT, 12 * S, {B: (0, 300)}, {B: (0, 300)})
OCCURRED_JOIN = OccurredCue(JOINS, 5 * S, {A: (0, 400)}, {A: (0, 300), B: (0, 100)})


def test_cue_line_names_time_stream_event_and_share_changes():
    assert cue_line(OCCURRED_LOSS) == "10.2 s: a is lost for 4 s; a 500 → 100, b 300 → 700"
    assert cue_line(OCCURRED_NIGHT) == "12.0 s: b has night for 6 s; shares stay"
    assert cue_line(OCCURRED_JOIN) == "5.0 s: b joins; a 400 → 300, b 0 → 100"


def test_cue_table_has_one_row_for_each_cue():
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(cue_table([OCCURRED_JOIN, OCCURRED_LOSS, OCCURRED_NIGHT]))
    text = console.export_text()
    for words in ("joins", "is lost for 4 s", "b 300 → 700", "12.0 s"):
        assert words in text

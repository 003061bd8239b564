"""Tests of what the console shows of the loop's steps."""

from script import CAM_1, OPTIONS, S
from whole_runs import run

from ekya.control.protocols import Batch
from ekya.control.step import StepResult
from ekya.core import events as ev
from ekya.core.units import StreamId
from ekya.results.progress import ProgressObserver, WarningTeller


class Shown:
    """Fake screen that records what it shows."""

    def __init__(self):
        self.states = []

    def show(self, state):
        self.states.append(state)


def test_progress_counted_frames_show_stream_behind():
    counted = [(5, 50, 50), (10, 50, 10), (15, 300, 300)]
    events = tuple(ev.FramesCounted(at_s * S, CAM_1, 0, due, done) for at_s, due, done in counted)
    done = run("no-retrain", misfortunes=events)
    screen = Shown()
    watch = ProgressObserver(screen, OPTIONS)
    for turn, state in zip(done.turns, done.states, strict=True):
        watch(Batch(turn.now_us, turn.events), StepResult(state, turn.plan, turn.commands))

    def at(second):
        shown = next(state for state in screen.states if state.now_us >= second * S)
        return {row.stream: str(row.health.state) for row in shown.rows}

    assert [at(second)[CAM_1] for second in (5, 10, 15)] == ["ok", "behind", "ok"]
    assert set(at(10).values()) == {"ok", "behind"}, "the others are ok"


def test_warning_teller_same_text_is_logged_once(caplog):
    tell = WarningTeller()
    for source in ("inference/a", "inference/b"):
        tell(Batch(0, (ev.Warned(0, source, "memory is short"), ev.StreamBack(0, StreamId("a")))))
    assert [record.getMessage() for record in caplog.records] == ["inference/a: memory is short"]

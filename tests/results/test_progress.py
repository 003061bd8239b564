"""Tests of what the console shows of the loop's steps."""

from script import CAM_1, OPTIONS, S
from whole_runs import run

from ekya.control.loop_state import LoopState
from ekya.control.protocols import Batch
from ekya.control.step import StepResult
from ekya.core import events as ev
from ekya.core.configs import GOLDEN_RESOLUTION, InferenceConfig
from ekya.core.state import FleetState, StreamState
from ekya.core.units import StreamId
from ekya.core.view import InferenceOption
from ekya.results.progress import ProgressObserver, WarningLogger


def test_progress_counted_frames_show_stream_behind():
    counted = [(5, 50, 50), (10, 50, 10), (15, 300, 300)]
    events = tuple(ev.FramesCounted(at_s * S, CAM_1, 0, due, done) for at_s, due, done in counted)
    done = run("no-retrain", misfortunes=events)
    states = []
    watch = ProgressObserver(states.append, OPTIONS)
    for turn, state in zip(done.turns, done.states, strict=True):
        watch(Batch(turn.now_us, turn.events), StepResult(state, turn.plan, turn.commands))

    def at(second):
        shown = next(state for state in states if state.now_us >= second * S)
        return {row.stream: str(row.health.state) for row in shown.rows}

    assert [at(second)[CAM_1] for second in (5, 10, 15)] == ["ok", "behind", "ok"]
    assert set(at(10).values()) == {"ok", "behind"}, "the others are ok"


def test_progress_shows_the_accuracy_of_what_answers():
    """The edge model is estimated to be right to a half, the golden detector between its frames to 90%."""
    golden = InferenceOption(InferenceConfig(5, GOLDEN_RESOLUTION), 0.9, 300)
    shown = []
    watch = ProgressObserver(shown.append, OPTIONS)
    for config in (InferenceConfig(1, 32), golden.config):
        stream = StreamState(CAM_1, (golden,), accuracy=0.5, inference=config)
        watch(Batch(0, ()), StepResult(LoopState(FleetState(streams=(stream,)), {}), None, ()))
    assert [state.rows[0].accuracy_now for state in shown] == [0.5, 0.9]


def test_warning_logger_same_text_is_logged_once(caplog):
    tell = WarningLogger()
    for source in ("inference/a", "inference/b"):
        tell(Batch(0, (ev.Warned(0, source, "memory is short"), ev.StreamBack(0, StreamId("a")))))
    assert [record.getMessage() for record in caplog.records] == ["inference/a: memory is short"]

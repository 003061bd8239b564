from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.ids import JobId, ModelVersion, StreamId
from ekya.core.turns import TurnRecord
from ekya.measuring.timeline import PreparationSpan, ShareSample
from ekya.measuring.turns import Told, tell

A, B = StreamId("a"), StreamId("b")
GAMMA = RetrainConfig(epochs=8, batch_size=16, head_width=64, trainable_blocks=1, data_fraction=0.5)
LAMBDA = InferenceConfig(2, 32)


def turn(now_us: int, *facts: ev.Event | cmd.Command) -> TurnRecord:
    events = tuple(fact for fact in facts if isinstance(fact, ev.Event))
    commands = tuple(fact for fact in facts if isinstance(fact, cmd.Command))
    return TurnRecord(now_us, events, None, commands)


def start(stream: StreamId, job: int) -> cmd.StartRetraining:
    return cmd.StartRetraining(stream, JobId(job), 1, GAMMA, 300, 0.9, 1.0)


def serve(stream: StreamId, job: int, epoch: int = 8) -> cmd.ServeModel:
    return cmd.ServeModel(stream, JobId(job), epoch)


def swapped(t_us: int, stream: StreamId, version: int, job: int) -> ev.ModelSwapped:
    return ev.ModelSwapped(t_us, stream, ModelVersion(version), JobId(job), 0.9, 7)


def delays(*turns: TurnRecord) -> tuple[int, ...]:
    return tell(turns).swap_delays_us


def test_preparation_lasts_until_all_is_there_or_its_window_ends() -> None:
    told = tell(
        [
            turn(100, cmd.BeginPreparation(1, 900, ())),
            turn(120),
            turn(150, ev.PreparationEnded(150, 1), cmd.EndPreparation(1)),
            # The border of two windows is one turn: it ends one preparation and begins another.
            turn(200, cmd.BeginPreparation(2, 500, ())),
            turn(
                300, ev.WindowClosed(300, 2), ev.WindowOpened(300, 3, 400), cmd.BeginPreparation(3, 400, ())
            ),
            turn(340),
        ]
    )
    assert told.preparations == (
        PreparationSpan(100, 150, 900),
        PreparationSpan(200, 300, 500),
        PreparationSpan(300, 340, 400),
    )


def test_new_weights_take_from_the_command_until_they_serve() -> None:
    assert delays(
        turn(10, serve(A, 1, 2), serve(B, 2)),
        turn(25, swapped(22, B, 1, 2), swapped(25, A, 1, 1)),
        turn(30, serve(A, 1, 8)),
        turn(90, swapped(80, A, 2, 1)),
        turn(99, serve(A, 3)),
    ) == (12, 15, 50)


def test_weights_that_were_overtaken_are_not_mistaken_for_those_that_served() -> None:
    assert delays(turn(10, serve(A, 1, 2)), turn(20, serve(A, 1, 4)), turn(30, swapped(26, A, 2, 1))) == (6,)


def told_with(*facts: ev.Event | cmd.Command) -> Told:
    begin = turn(0, cmd.SetInference(A, LAMBDA, 400), start(A, 1))
    return tell([begin, turn(50, *facts), turn(100)])


def test_who_is_gone_holds_no_share_and_trains_no_more() -> None:
    lost = told_with(ev.StreamLost(50, A, "no signal"))
    assert lost.shares[-1] == ShareSample(50, A, 300, 0)
    dead = told_with(ev.WorkerDied(50, A, ev.Role.INFERENCE, "killed"))
    assert dead.shares[-1] == ShareSample(50, A, 300, 0)
    trainer = told_with(ev.WorkerDied(50, A, ev.Role.RETRAINING, "killed"))
    assert trainer.shares[-1] == ShareSample(50, A, 0, 400)
    assert [(run.end_us, run.ended) for run in trainer.retrainings] == [(50, "failed")]
    aside = told_with(cmd.SetAside(A, "it died too often"))
    assert aside.shares[-1] == ShareSample(50, A, 0, 0)
    assert [(run.end_us, run.ended) for run in aside.retrainings] == [(50, "stopped")]

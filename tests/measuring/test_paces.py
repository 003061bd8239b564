"""Which epochs say how fast a share is."""

from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.configs import RetrainConfig
from ekya.core.ids import JobId, StreamId
from ekya.core.speed import Pace
from ekya.core.turns import TurnRecord
from ekya.measuring.paces import epoch_paces

A, S = StreamId("a"), 1_000_000


def turn(at_s, *facts):
    events = tuple(fact for fact in facts if isinstance(fact, ev.RetrainProgress))
    commands = tuple(fact for fact in facts if not isinstance(fact, ev.RetrainProgress))
    return TurnRecord(at_s * S, events, None, commands)


def start(job, share_milli):
    return cmd.StartRetraining(A, JobId(job), 1, RetrainConfig(9, 16, 0, 0, 1.0), share_milli, 0.5, 9.0)


def epoch(job, at_s, number=1):
    return ev.RetrainProgress(at_s * S, A, JobId(job), number, 0.5, 1.0)


def test_the_first_epoch_of_a_job_prepares_it_and_is_left_out():
    turns = [turn(0, start(1, 300)), turn(9, epoch(1, 9)), turn(11, epoch(1, 11)), turn(14, epoch(1, 14))]
    assert list(epoch_paces(turns)) == [Pace(1, 300, 2.0), Pace(1, 300, 3.0)]


def test_an_epoch_in_which_the_share_changed_or_a_checkpoint_was_taken_is_left_out():
    turns = [
        turn(0, start(1, 300)),
        turn(2, epoch(1, 2)),
        turn(3, cmd.ResizeRetraining(A, JobId(1), 600)),
        turn(4, epoch(1, 4)),
        turn(5, epoch(1, 5), cmd.ServeModel(A, JobId(1), 3)),
        turn(7, epoch(1, 7)),
        turn(8, epoch(1, 8)),
    ]
    assert list(epoch_paces(turns)) == [Pace(1, 600, 1.0), Pace(1, 600, 1.0)]


def test_jobs_are_kept_apart():
    turns = [
        turn(0, start(1, 300), start(2, 100)),
        turn(2, epoch(1, 2), epoch(2, 2)),
        turn(4, epoch(1, 4)),
        turn(9, epoch(2, 9)),
        turn(10, epoch(7, 10)),
    ]
    assert list(epoch_paces(turns)) == [Pace(1, 300, 2.0), Pace(2, 100, 7.0)]

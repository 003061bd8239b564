"""The executor of one of several servers, around a scripted inner executor."""

from dataclasses import replace

import pytest

from ekya.control.protocols import Batch
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.configs import RetrainConfig
from ekya.core.units import JobId, StreamId
from ekya.core.weights import Elsewhere
from ekya.fleet.policy.loans import Loan
from ekya.fleet.policy.offers import TrainingOffer
from ekya.fleet.policy.places import SiteName
from ekya.fleet.run.elsewhere import AsForeseen, Interrupted
from ekya.fleet.run.lending import ARRIVED, GIVEN_UP, LendingExecutor, Lent

S = 1_000_000
CAM, JOB = StreamId("cam"), JobId(3)
START = cmd.StartRetraining(CAM, JOB, 1, RetrainConfig(4, 16, 0, 1, 1.0), 0, 0.9, 5.0, Elsewhere(40 * S))
HERE, THERE = SiteName("here"), SiteName("there")
OFFER = TrainingOffer(HERE, CAM, START.config, 4, 10.0, 0.1, 0.0, 0, 100 * S, 1.0, 45.0, 45.0)
STOP = cmd.StopRetraining(CAM, JOB)


class Inner:
    """Executor on virtual time, which reports weights from elsewhere as every world does."""

    def __init__(self):
        self.now_us, self.told, self.executed, self.received = 0, [], [], []

    def wait(self, until_us):
        self.now_us = max(self.now_us, until_us)
        told, self.told = tuple(self.told), []
        return Batch(self.now_us, told)

    def execute_commands(self, commands):
        self.executed += commands

    def receive(self, command, epochs, over):
        assert command == START
        self.received.append((self.now_us // S, epochs, over))
        if epochs == command.config.epochs:
            self.told.append(finished(self.now_us))
        else:
            self.told.append(progress(self.now_us, epochs))


def progress(t_us, epoch):
    return ev.RetrainProgress(t_us, CAM, JOB, epoch, 0.5, 0.0)


def finished(t_us):
    return ev.RetrainFinished(t_us, CAM, JOB, 0.0)


def loan(arrives_us, epochs=4):
    offer = replace(OFFER, epochs=epochs)
    return Loan(offer, THERE, 300, 5 * S, arrives_us - 4 * S, arrives_us, "it fits")


@pytest.fixture
def over():
    return []


@pytest.fixture
def inner():
    return Inner()


@pytest.fixture
def awaited(inner):
    return AsForeseen(inner)


@pytest.fixture
def server(over, awaited, inner):
    return LendingExecutor(inner, awaited, lambda *told: over.append(told)), inner


@pytest.fixture
def away(server):
    executor, _ = server
    executor.expect_start(loan(40 * S))
    executor.execute_commands([START])
    return executor


def lent_numbers(executor):
    return sorted(number for number, lent in executor._lent.items() if lent.to_us > executor.now_us)


def test_shares_of_guests_are_told_when_they_come_and_when_they_go(server) -> None:
    executor, _ = server
    executor.lend_share(0, Lent(300, 10 * S, 30 * S))
    executor.lend_share(1, Lent(200, 20 * S, 30 * S))
    assert lent_numbers(executor) == [0, 1]
    assert [executor.wait(60 * S) for _ in range(4)] == [
        Batch(10 * S, (ev.CapacityLent(10 * S, 300),)),
        Batch(20 * S, (ev.CapacityLent(20 * S, 500),)),
        Batch(30 * S, (ev.CapacityLent(30 * S, 0),)),
        Batch(60 * S, ()),
    ]
    assert lent_numbers(executor) == []


def test_a_guest_that_leaves_early_gives_its_share_back_at_once(server) -> None:
    executor, _ = server
    executor.lend_share(7, Lent(300, 0, 30 * S))
    assert executor.wait(10 * S) == Batch(0, (ev.CapacityLent(0, 300),))
    executor.wait(10 * S)
    executor.take_back_share(7, 10 * S)
    executor.take_back_share(8, 10 * S)  # an unknown loan
    assert lent_numbers(executor) == []
    assert executor.wait(60 * S).events == (ev.CapacityLent(10 * S, 0),)


def until(executor, until_us):
    """Returns all events until then."""
    events = []
    while executor.now_us < until_us:
        events += executor.wait(until_us).events
    return events


def test_a_retraining_elsewhere_is_told_of_as_its_epochs_come_home_and_never_begins_here(
    server, away, over
) -> None:
    _, inner = server
    # Epochs of 7.75 s, with snapshots that take 4 s to transfer.
    homes_us = [16_750_000, 24_500_000, 32_250_000]
    for epoch, at_us in enumerate(homes_us, 1):
        assert away.wait(60 * S) == Batch(at_us, (progress(at_us, epoch),))
        assert over == []
    assert away.wait(60 * S) == Batch(40 * S, (finished(40 * S),))
    assert away.wait(60 * S).events == ()
    assert inner.executed == []
    assert inner.received == [(16, 1, False), (24, 2, False), (32, 3, False), (40, 4, True)]
    # A snapshot of 45 MB is sent after each epoch.
    assert over == [(CAM, 40 * S, ARRIVED, {(HERE, THERE): 46.0, (THERE, HERE): 180.0})]


def test_what_a_host_did_goes_on_elsewhere_or_fails_with_what_is_home(server, away, awaited, over) -> None:
    _, inner = server
    until(away, 20 * S)
    stood = awaited.training_so_far(CAM, 20 * S)
    assert (stood.epochs_left, stood.moved_mb) == (3, {(HERE, THERE): 46.0, (THERE, HERE): 45.0})
    # The first epoch of the new loan, of 13.7 s, is γ's second.
    awaited.continue_training(CAM, loan(50 * S, epochs=3))
    assert until(away, 30 * S) == [progress(22_666_666, 2)]
    awaited.fail_training(CAM, "its server died", 31 * S)
    assert away.wait(60 * S).events == (
        progress(31 * S, 2),
        ev.RetrainFailed(31 * S, CAM, JOB, "its server died"),
    )
    assert inner.received == [(16, 1, False), (22, 2, False), (31, 2, True)]
    assert inner.executed == []
    assert [told[2] for told in over] == ["its server died"]


def test_who_is_stopped_is_waited_for_no_more_and_what_is_home_of_it_may_serve(server, away, over) -> None:
    _, inner = server
    until(away, 30 * S)
    serve = cmd.ServeModel(CAM, JOB, 2)
    away.execute_commands([serve, STOP])
    assert [told[:3] for told in over] == [(CAM, 30 * S, GIVEN_UP)]
    assert (away.wait(60 * S).events, inner.executed) == ((), [serve, STOP])


def test_of_one_that_fails_before_an_epoch_is_home_nothing_is_received(server, away, awaited) -> None:
    _, inner = server
    until(away, 10 * S)
    awaited.fail_training(CAM, "its server died", 10 * S)
    assert away.wait(60 * S).events == (ev.RetrainFailed(10 * S, CAM, JOB, "its server died"),)
    assert inner.received == []


def test_over_a_thin_link_a_snapshot_stands_for_several_epochs(server, inner) -> None:
    executor, _ = server
    thin = loan(60 * S)
    executor.expect_start(replace(thin, ends_us=25 * S))  # training takes 5 s and the transfer 35 s
    executor.execute_commands([START])
    assert until(executor, 70 * S) == [finished(60 * S)]
    executor.expect_start(replace(thin, begins_us=75 * S, ends_us=95 * S, arrives_us=103 * S))
    executor.execute_commands([START])
    assert until(executor, 120 * S) == [progress(93 * S, 2), finished(103 * S)]
    assert inner.received == [(60, 4, True), (93, 2, False), (103, 4, True)]


def test_who_was_behind_is_told_of_every_snapshot_that_came_meanwhile(server, away, inner) -> None:
    inner.now_us = 30 * S  # planning took 30 s
    assert away.wait(60 * S) == Batch(30 * S, (progress(30 * S, 1), progress(30 * S, 2)))


def test_what_is_trained_here_is_nobody_elses_matter(server) -> None:
    executor, inner = server
    executor.execute_commands([START, STOP])
    assert inner.executed == [START, STOP]


def test_a_share_counts_as_lent_from_the_agreement_until_the_loan_is_over(server) -> None:
    executor, _ = server
    executor.lend_share(4, Lent(300, 10 * S, 30 * S))
    executor.lend_share(2, Lent(200, 10 * S, 90 * S))
    assert lent_numbers(executor) == [2, 4], "crops are on their way, and nothing is held yet"
    until(executor, 20 * S)
    assert lent_numbers(executor) == [2, 4]
    until(executor, 30 * S)
    assert lent_numbers(executor) == [2]


def test_a_loan_is_borrowed_from_the_agreement_until_its_weights_are_not_awaited_any_more(server) -> None:
    executor, _ = server
    first = loan(40 * S)
    executor.expect_start(first)
    assert executor.borrowed_loans() == [first]
    executor.execute_commands([START])
    until(executor, 20 * S)
    assert executor.borrowed_loans() == [first]
    elsewhere = loan(50 * S, epochs=3)
    executor.continue_training(CAM, elsewhere)
    assert executor.borrowed_loans() == [elsewhere]
    until(executor, 60 * S)
    assert executor.borrowed_loans() == []


def test_what_is_stopped_fails_or_never_begins_is_not_borrowed_any_more(server) -> None:
    executor, _ = server
    executor.expect_start(loan(40 * S))
    executor.execute_commands([])
    assert executor.borrowed_loans() == []
    executor.expect_start(loan(40 * S))
    executor.execute_commands([START])
    executor.execute_commands([STOP])
    assert executor.borrowed_loans() == []
    executor.expect_start(loan(40 * S))
    executor.execute_commands([START])
    executor.fail_training(CAM, "its server died", 1)
    until(executor, 5 * S)
    assert executor.borrowed_loans() == []


def test_a_move_of_what_is_over_borrows_nothing(awaited, server, away) -> None:
    executor, _ = server
    awaited.continue_training = lambda stream, loan: None  # as in the live world
    until(away, 60 * S)
    executor.continue_training(CAM, loan(80 * S))
    assert executor.borrowed_loans() == []


def test_a_granted_loan_makes_the_loop_plan_again(server) -> None:
    executor, _ = server
    executor.lend_share(0, Lent(300, 0, 30 * S))
    executor.wait(0)
    executor.wait(10 * S)
    executor.grant_loan(loan(40 * S))
    assert executor.wait(60 * S) == Batch(10 * S, (ev.CapacityLent(10 * S, 300),))


def test_nobody_goes_past_what_happens_to_the_fleet(server) -> None:
    executor, _ = server
    executor.not_beyond(25 * S)
    assert [executor.wait(60 * S).now_us for _ in range(2)] == [25 * S, 60 * S]


def test_who_listens_while_it_waits_hears_in_time_and_says_nothing_of_nothing(awaited) -> None:
    class Interrupting(Inner):
        """Lends a share from within ``wait``, as another thread would."""

        def wait(self, until_us):
            batch = super().wait(until_us)
            if self.now_us == 20 * S:
                executor.lend_share(0, Lent(300, 0, 90 * S))
            return batch

    inner = Interrupting()
    executor = LendingExecutor(inner, awaited, lambda *told: None, listens_every_us=10 * S)
    assert executor.wait(60 * S) == Batch(20 * S, (ev.CapacityLent(20 * S, 300),))
    assert executor.wait(60 * S) == Batch(60 * S, ())


def test_a_host_that_dies_between_the_agreement_and_the_beginning_is_not_begun_on(
    server, awaited, over
) -> None:
    executor, _ = server
    executor.expect_start(loan(40 * S))
    assert executor.training_so_far(CAM, 0) == Interrupted(4, {})
    executor.continue_training(CAM, loan(50 * S))
    executor.execute_commands([START])
    assert until(executor, 60 * S)[-1] == finished(50 * S)
    executor.expect_start(replace(loan(80 * S), begins_us=65 * S))
    executor.fail_training(CAM, "its server died", 60 * S)
    executor.execute_commands([START])
    assert executor.wait(90 * S).events == (ev.RetrainFailed(60 * S, CAM, JOB, "its server died"),)
    assert [told[2] for told in over] == [ARRIVED, "its server died"]
    assert over[1][3] == {}


def test_what_was_agreed_and_does_not_begin_in_its_turn_holds_no_share_and_is_never_begun(
    server, over
) -> None:
    executor, inner = server
    executor.expect_start(loan(40 * S))
    executor.execute_commands([])
    assert over == [(CAM, 0, GIVEN_UP, {})]
    executor.execute_commands([START])
    assert inner.executed == [START]


@pytest.mark.parametrize(
    "command", [cmd.SetAside(CAM, "it died too often"), cmd.RestartWorker(CAM, ev.Role.RETRAINING)]
)
def test_a_retraining_that_the_loop_counts_as_lost_is_given_up_and_the_command_is_carried_out(
    command, server, away, over
) -> None:
    _, inner = server
    until(away, 30 * S)
    away.execute_commands([command])
    assert ([told[:3] for told in over], inner.executed) == ([(CAM, 30 * S, GIVEN_UP)], [command])
    assert away.wait(60 * S).events == ()


def test_a_death_of_inference_at_home_leaves_what_is_away_alone(away, over) -> None:
    away.execute_commands([cmd.RestartWorker(CAM, ev.Role.INFERENCE)])
    assert until(away, 60 * S)[-1] == finished(40 * S)


def test_a_run_that_ends_early_waits_for_nothing_and_says_what_was_moved(away, over) -> None:
    until(away, 20 * S)
    away.give_up_all()
    away.give_up_all()
    assert over == [(CAM, 20 * S, GIVEN_UP, {(HERE, THERE): 46.0, (THERE, HERE): 45.0})]


def test_what_was_told_of_when_a_host_died_is_not_told_again(away, awaited, over) -> None:
    until(away, 20 * S)
    away.training_so_far(CAM, 20 * S)
    away.fail_training(CAM, "its server died", 20 * S)
    away.give_up_all()
    assert over == [(CAM, 20 * S, GIVEN_UP, {})]

"""Trainings on other servers: the same bits as at home, moves, and hosts that fail."""

import threading
from dataclasses import replace

import pytest
import torch
from bundles import GAMMA, Shares, bundle_with
from lent_by_hand import Machine
from waiting import HANG_GUARD_S, wait_until

from ekya.core.errors import NotThereError, UserError
from ekya.fleet.policy.places import SiteName
from ekya.fleet.run.training import trainer as trainer_module
from ekya.fleet.run.training.bundle_file import pack_bundle
from ekya.fleet.run.training.processes import TrainingActor
from ekya.fleet.run.training.protocol import Host
from ekya.fleet.run.training.trainer import RemoteTraining
from ekya.gpu.backends.backend import ShareJob
from ekya.models.edge.checkpoints import from_bytes
from ekya.models.training.trainer import Compute

HOME, EAST, WEST = map(SiteName, ("home", "east", "west"))


def east(machine, loan="1"):
    return Host(EAST, loan, 300, machine)


def west(machine, loan="2"):
    return Host(WEST, loan, 600, machine)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(trainer_module, "_LOOK_S", 0.001)
    monkeypatch.setattr(trainer_module, "AWAY_S", 0.05)


def follow(gather, host, epochs=3, lost=lambda site: None):
    return RemoteTraining("cam", gather, epochs, host, HOME, lost)


@pytest.fixture
def begun(model):
    """Starts trainings, which are stopped at the end of the test; ``lost`` has the hosts that were lost."""
    made, lost = [], []

    def begin(host, bundle=None):
        bundle = bundle or bundle_with(model)
        made.append(follow(lambda: bundle, host, bundle.config.epochs, lost.append))
        made[-1].start_thread()
        made[-1].lost = lost
        return made[-1]

    yield begin
    for training in made:
        training.stop_training()
        assert training.wait(HANG_GUARD_S)


def until(training, state):
    wait_until(lambda: training.poll().state == state)
    return training.poll()


def learnt(training):
    return from_bytes(training.best_yet().weights).state_dict()


@pytest.mark.parametrize("config", [GAMMA, replace(GAMMA, trainable_blocks=0, data_fraction=0.5)])
def test_it_trains_what_it_would_at_home_to_the_bit(config, model, begun) -> None:
    bundle = bundle_with(model, config, exemplars=20)
    training = begun(east(machine := Machine()), bundle)
    told = until(training, "done")
    at_home = bundle.make_retraining(Compute())
    start = at_home.prepare_training()
    results, models = zip(
        *((at_home.run_epoch(), at_home.model()) for _ in range(config.epochs)), strict=True
    )
    assert (told.start_accuracy, told.epochs, told.epochs_home) == (start, results, config.epochs)
    best = max(results, key=lambda one: (one.validation_accuracy, one.epoch))
    expected = models[best.epoch - 1].state_dict()
    assert all(torch.equal(of, expected[name]) for name, of in learnt(training).items())
    assert machine.shares.attached == [ShareJob("a guest", "retraining", 300, 0)]
    assert told.crops == config.epochs * at_home.epoch_crops
    assert (machine.given_back, machine.ended, machine.ends) == (1, 0, ["1"])


def test_every_byte_is_counted(model, begun) -> None:
    bundle = bundle_with(model)
    told = until(begun(east(Machine()), bundle), "done")
    assert told.sent[HOME, EAST] == len(pack_bundle(bundle)) > len(bundle.start)
    assert told.epochs_home == 3 and 0 < told.sent[EAST, HOME] < 3.5 * len(bundle.start)


def test_it_moves_and_learns_the_same(begun) -> None:
    undisturbed = begun(east(Machine()))
    until(undisturbed, "done")
    before, after = Machine(waits={2}), Machine()
    training = begun(east(before))
    wait_until(lambda: training.poll().epochs_home)
    training.move_to(west(after))
    before.goes_on.set()
    told = until(training, "done")
    assert (before.ends, after.ends, told.failures) == (["1"], ["2"], ())
    assert told.epochs == undisturbed.poll().epochs
    assert all(torch.equal(of, learnt(training)[name]) for name, of in learnt(undisturbed).items())


def test_a_process_that_dies_is_made_anew_and_the_epoch_trained_again(begun) -> None:
    undisturbed = begun(east(Machine()))
    until(undisturbed, "done")
    machine = Machine(fails={2}, waits={3})
    training = begun(east(machine))
    wait_until(lambda: training.poll().failures)
    machine.fails = set()
    machine.goes_on.set()
    told = until(training, "done")
    assert told.failures and all(one.startswith("east: ") for one in told.failures)
    assert told.epochs == undisturbed.poll().epochs
    assert all(torch.equal(of, learnt(training)[name]) for name, of in learnt(undisturbed).items())


def test_three_dead_processes_strand_it_until_it_is_moved(begun) -> None:
    training = begun(east(machine := Machine(fails={1})))
    told = until(training, "stranded")
    assert (machine.taken, training.lost) == (3, [EAST])
    assert "east is lost; it waits for another host" in told.reason
    training.move_to(west(Machine()))
    told = until(training, "done")
    assert ([one.epoch for one in told.epochs], told.reason) == ([1, 2, 3], "")


def test_a_host_that_is_not_reached_is_tried_again_and_then_lost(begun) -> None:
    machine = Machine(waits={2})
    training = begun(east(machine))
    wait_until(lambda: training.poll().epochs_home)
    machine.off = True
    told = until(training, "stranded")
    assert ("east: it is off", training.lost) == (told.failures[-1], [EAST])
    machine.goes_on.set()
    training.move_to(west(Machine()))
    assert [one.epoch for one in until(training, "done").epochs] == [1, 2, 3]


def test_a_host_that_was_started_again_is_lost_at_once(begun, monkeypatch) -> None:
    monkeypatch.setattr(trainer_module, "AWAY_S", HANG_GUARD_S)
    machine = Machine(waits={1})
    training = begun(east(machine))
    wait_until(lambda: machine.taken)
    machine.forgets = True
    assert "no such loan" in until(training, "stranded").failures[-1]
    machine.goes_on.set()


def test_a_checkpoint_that_does_not_match_is_not_used_and_fetched_again(begun) -> None:
    undisturbed, machine = begun(east(Machine())), Machine()
    machine.garbles = 2
    training = begun(east(machine))
    assert until(training, "done").epochs_home == until(undisturbed, "done").epochs_home
    assert all(torch.equal(of, learnt(training)[name]) for name, of in learnt(undisturbed).items())


def test_who_is_stopped_while_stranded_keeps_what_is_home(begun) -> None:
    training = begun(east(Machine(fails={1, 2})))
    until(training, "stranded")
    training.stop_training()
    assert training.wait(HANG_GUARD_S)
    assert (training.poll().state, training.best_yet()) == ("stopped", None)


def test_it_is_stopped_and_keeps_its_best_epoch(model, begun) -> None:
    training = begun(east(machine := Machine()), bundle_with(model, replace(GAMMA, epochs=5000)))
    wait_until(lambda: training.poll().epochs_home)
    training.stop_training()
    assert training.wait(HANG_GUARD_S)
    assert (training.poll().state, machine.ends) == ("stopped", ["1"])
    assert training.best_yet().epoch >= 1
    wait_until(lambda: machine.given_back)


def test_an_accuracy_monitor_ends_it_sooner(model, begun) -> None:
    machine = Machine(waits={2})
    training = begun(east(machine), bundle_with(model, replace(GAMMA, epochs=50)))
    training.set_epochs(2)
    wait_until(lambda: machine.trainings and machine.trainings["1"]._planned == 2)
    machine.goes_on.set()
    assert len(until(training, "done").epochs) == 2
    with pytest.raises(ValueError, match="at least one epoch"):
        training.set_epochs(0)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (LookupError("there are no labels"), "there are no labels"),
        (TimeoutError(), "TimeoutError"),
        (UserError("damaged"), "damaged"),
        (RuntimeError("out of memory"), "RuntimeError: out of memory"),
    ],
)
def test_whatever_keeps_it_from_beginning_is_told_so_that_nobody_waits(error, said) -> None:
    def gather():
        raise error

    training = follow(gather, east(machine := Machine()))
    training.start_thread()
    assert (until(training, "failed").reason, machine.taken) == (said, 0)


class Gathered:
    """Inputs that are there after ``there`` is set."""

    def __init__(self, model):
        self.there, self.bundle = threading.Event(), bundle_with(model)

    def __call__(self):
        assert self.there.wait(HANG_GUARD_S)
        return self.bundle


def test_who_is_stopped_while_its_crops_are_gathered_never_begins(model) -> None:
    training = follow(gathered := Gathered(model), east(machine := Machine()))
    training.start_thread()
    training.stop_training()
    gathered.there.set()
    assert (until(training, "stopped").sent, machine.taken) == ({}, 0)


def test_a_host_that_dies_while_crops_are_gathered_is_never_sent_any(model) -> None:
    training = follow(gathered := Gathered(model), east(gone := Machine()))
    training.start_thread()
    training.move_to(west(Machine()))
    gathered.there.set()
    assert {site for way in until(training, "done").sent for site in way} == {HOME, WEST}
    assert gone.taken == 0


def test_damaged_weights_fail_it_with_the_reason(model, begun) -> None:
    training = begun(east(machine := Machine()), bundle_with(model, start=b"none"))
    assert "safetensors" in until(training, "failed").reason
    assert (machine.ended, training.lost) == (1, [])


def test_a_process_holds_nothing_between_two_trainings(model, tmp_path) -> None:
    actor = TrainingActor("a guest", shares := Shares())
    file = tmp_path / "bundle"
    file.write_bytes(pack_bundle(bundle_with(model)))
    for share_milli in (300, 600):
        actor.begin_training("1", file, None, share_milli)
        assert (shares.held, shares.attached[-1].share_milli) == (1, share_milli)
    outcome, snapshot = actor.run_epoch()
    actor.abort_epoch("another")
    assert actor.run_epoch() is not None
    actor.abort_epoch("1")
    assert actor.run_epoch() is None
    actor.release_training()
    assert shares.held == 0
    with pytest.raises(LookupError):
        actor.run_epoch()
    again = actor.begin_training("2", file, snapshot, 300)
    assert (again.accuracy, again.epochs_done) == (outcome.result.validation_accuracy, 1)
    with pytest.raises(UserError, match="snapshot"):
        actor.begin_training("3", file, b"none", 300)


def test_a_checkpoint_that_was_replaced_is_not_there(model) -> None:
    machine = Machine()
    machine.begin_training("1", pack_bundle(bundle_with(model)))
    wait_until(lambda: machine.read_progress("1").over)
    with pytest.raises(NotThereError, match="better"):
        machine.fetch_checkpoint("1", "another")

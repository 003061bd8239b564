"""Trainings on other servers: the same bits as at home, moves, and hosts that fail."""

import threading
from dataclasses import replace

import pytest
import torch
from bundles import GAMMA, Shares, bundle_with
from waiting import HANG_GUARD_S, wait_until

from ekya.core.errors import UserError
from ekya.fleet.policy.places import SiteName
from ekya.fleet.run.calls import CallError, LocalHandle, public_methods
from ekya.fleet.run.sites.server import SiteServer
from ekya.fleet.run.training import trainer as trainer_module
from ekya.fleet.run.training.actors import TrainingActor
from ekya.fleet.run.training.protocol import Host, NoProcessError
from ekya.fleet.run.training.trainer import SILENT_S, RemoteTraining
from ekya.gpu.backends.backend import ShareJob
from ekya.models.edge.checkpoints import from_bytes
from ekya.models.training.trainer import Compute

HOME, EAST, WEST = map(SiteName, ("home", "east", "west"))
AT_EAST, AT_WEST = Host(EAST, "e", 300), Host(WEST, "w", 600)


class Machines:
    """A ``ProcessSource`` whose processes are threads here, on machines that are ``off`` or fail.

    ``fails`` has the epochs in which a machine fails, by its id; in an epoch of ``waits`` a process waits
    until ``goes_on`` is set. ``given_back`` and ``ended`` count processes.
    """

    def __init__(self, fails=(), waits=()):
        self.off, self.fails, self.waits = set(), dict(fails), set(waits)
        self.goes_on = threading.Event()
        self.shares, self.taken, self.given_back, self.ended = Shares(), [], 0, 0

    def take_process(self, host):
        self.taken.append(host)
        if host.machine_id in self.off:
            raise NoProcessError("it is off")
        return Process(self, host)

    def give_back_process(self, host, process):
        self.given_back += 1

    def is_there(self, machine_id):
        return machine_id not in self.off


class Process(LocalHandle):
    def __init__(self, machines, host):
        super().__init__(TrainingActor("a guest", machines.shares), threads=4)
        self._machines, self._host, self._epochs = machines, host, 0

    def call(self, method, *arguments):
        if method == "run_epoch":
            self._epochs += 1
            if self._epochs in self._machines.fails.get(self._host.machine_id, ()):
                self.end_process()
            if self._epochs in self._machines.waits:
                assert self._machines.goes_on.wait(HANG_GUARD_S)
        return super().call(method, *arguments)

    def end_process(self):
        self._machines.ended += 1
        super().end_process()


@pytest.fixture
def begun(model):
    """Starts trainings, which are stopped at the end of the test."""
    made = []

    def begin(machines, bundle=None, host=AT_EAST, part=1.0):
        made.append(RemoteTraining("cam", bundle or bundle_with(model), host, machines, HOME, part))
        made[-1].start_thread()
        return made[-1]

    yield begin
    for training in made:
        training.stop_training()
        assert training.wait(HANG_GUARD_S)


def until(training, state, moves=0):
    wait_until(lambda: training.poll().state == state and training.poll().moves >= moves)
    return training.poll()


def learnt(training):
    return from_bytes(training.best_yet().weights).state_dict()


@pytest.mark.parametrize("config", [GAMMA, replace(GAMMA, trainable_blocks=0, data_fraction=0.5)])
def test_it_trains_what_it_would_at_home_to_the_bit(config, model, begun) -> None:
    bundle = bundle_with(model, config, exemplars=20)
    training = begun(machines := Machines(), bundle)
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
    assert machines.shares.attached == [ShareJob("a guest", "retraining", 300, 0)]
    assert (machines.given_back, machines.ended, told.crops) == (1, 0, config.epochs * at_home.epoch_crops)


def test_all_of_it_crosses_sites(model, begun) -> None:
    bundle, machines = bundle_with(model, exemplars=20), Machines()
    doors = SiteServer("127.0.0.1", 0, "t" * 40)
    here = begun(Machines(), bundle)
    machines.take_process = lambda host: doors.offer_object(
        "guest", Process(machines, host), public_methods(TrainingActor)
    )
    there = begun(machines, bundle)
    assert until(there, "done").epochs == until(here, "done").epochs
    assert all(torch.equal(of, learnt(there)[name]) for name, of in learnt(here).items())
    doors.close()


def test_every_byte_is_counted(model, begun) -> None:
    bundle = bundle_with(model)
    told = until(begun(Machines(), bundle), "done")
    assert told.sent[HOME, EAST] == bundle.nbytes > len(bundle.start)
    assert told.epochs_home == 3 and 0 < told.sent[EAST, HOME] < 3.5 * len(bundle.start)


def test_it_moves_after_the_epoch_under_way_and_learns_the_same(begun) -> None:
    undisturbed = begun(Machines())
    until(undisturbed, "done")
    training = begun(machines := Machines(waits={1}))
    training.move_to(AT_WEST)
    machines.goes_on.set()
    told = until(training, "done")
    assert ([host.site for host in machines.taken], told.moves, told.failures) == ([EAST, WEST], 1, ())
    assert told.epochs == undisturbed.poll().epochs
    assert all(torch.equal(of, learnt(training)[name]) for name, of in learnt(undisturbed).items())


def test_a_process_that_dies_is_made_anew_and_the_epoch_trained_again(begun) -> None:
    undisturbed = begun(Machines())
    until(undisturbed, "done")
    training = begun(machines := Machines(fails={"e": {2}}))
    machines.fails = {"e": {2}}
    wait_until(lambda: training.poll().failures)
    machines.fails = {}
    told = until(training, "done")
    assert [(one.site, one.epoch, one.left_out) for one in told.failures] == [(EAST, 2, False)]
    assert told.epochs == undisturbed.poll().epochs


def test_three_strikes_strand_it_until_it_is_moved_and_it_goes_on_from_its_last_epoch(begun) -> None:
    training = begun(machines := Machines(fails={"e": {1}}))
    told = until(training, "stranded")
    assert [one.left_out for one in told.failures] == [False, False, True]
    assert "no host is left to train on (east failed)" in told.reason
    training.move_to(replace(AT_EAST, share_milli=900))
    until(training, "stranded", moves=1)
    assert len(machines.taken) == 3, "another share forgives nothing"
    training.move_to(AT_WEST)
    told = until(training, "done")
    assert ([one.epoch for one in told.epochs], told.reason, told.moves) == ([1, 2, 3], "", 2)


def test_a_machine_that_is_off_strands_it_at_once_and_one_that_comes_back_is_another(begun) -> None:
    machines = Machines()
    machines.off.add("e")
    training = begun(machines)
    assert [one.left_out for one in until(training, "stranded").failures] == [True]
    training.move_to(replace(AT_EAST, machine_id="e again"))
    assert len(until(training, "done").epochs) == 3


def test_who_is_stopped_while_stranded_keeps_what_is_home(begun) -> None:
    training = begun(Machines(fails={"e": {2, 1}}))
    until(training, "stranded")
    training.stop_training()
    assert training.wait(HANG_GUARD_S)
    assert (training.poll().state, training.best_yet()) == ("stopped", None)


def test_it_is_stopped_within_a_step_and_keeps_its_best_epoch(model, begun) -> None:
    training = begun(Machines(), bundle_with(model, replace(GAMMA, epochs=5000)))
    wait_until(lambda: training.poll().epochs)
    training.stop_training()
    assert training.wait(HANG_GUARD_S)
    assert training.poll().state == "stopped"
    assert training.best_yet().epoch >= 1


def test_an_accuracy_monitor_ends_it_sooner(model, begun) -> None:
    training = begun(machines := Machines(waits={2}), bundle_with(model, replace(GAMMA, epochs=50)))
    training.set_epochs(2)
    machines.goes_on.set()
    assert len(until(training, "done").epochs) == 2
    with pytest.raises(ValueError, match="at least one epoch"):
        training.set_epochs(0)


def test_where_checkpoints_are_dear_the_first_the_best_and_the_last_are_made(begun) -> None:
    often, seldom = begun(Machines()), begun(Machines(), part=1e-9)
    until(often, "done")
    until(seldom, "done")
    assert all(torch.equal(of, learnt(seldom)[name]) for name, of in learnt(often).items())


def test_damaged_weights_fail_it_with_the_reason(model, begun) -> None:
    training = begun(machines := Machines(), bundle_with(model, start=b"none"))
    assert "safetensors" in until(training, "failed").reason
    assert machines.ended == 1


def test_a_process_that_does_not_answer_a_heartbeat_counts_as_dead(monkeypatch) -> None:
    monkeypatch.setattr(trainer_module, "_LOOK_S", 0.0)

    class Silent:
        def call(self, method, *arguments):
            return trainer_module.Future()

    times = iter([0.0, 10.0, 11.0, 10.0 + SILENT_S, 10.1 + SILENT_S])
    with pytest.raises(trainer_module._HostLostError, match="no answer for 60 s"):
        trainer_module._Process(Silent(), lambda: next(times)).ask("run_epoch")
    assert next(times, None) is None


def test_a_process_holds_nothing_between_two_trainings(model) -> None:
    actor = TrainingActor("a guest", shares := Shares())
    for share_milli in (300, 600):
        actor.begin_training(bundle_with(model), None, share_milli)
        assert (shares.held, shares.attached[-1].share_milli) == (1, share_milli)
    outcome = actor.run_epoch()
    snapshot = actor.fetch_snapshot(1)
    actor.abort_epoch()
    assert (outcome.kept, actor.run_epoch()) == (True, None)
    actor.release_training()
    assert shares.held == 0
    for ask in (actor.run_epoch, lambda: actor.fetch_snapshot(1)):
        with pytest.raises(LookupError):
            ask()
    again = actor.begin_training(bundle_with(model), snapshot, 300)
    assert again == outcome.result.validation_accuracy
    with pytest.raises(UserError, match="snapshot"):
        actor.begin_training(bundle_with(model), b"none", 300)


def test_who_is_not_there_any_more_raises_a_call_error() -> None:
    process = LocalHandle(object(), 1)
    process.end_process()
    with pytest.raises(CallError):
        process.call("pid").result(HANG_GUARD_S)

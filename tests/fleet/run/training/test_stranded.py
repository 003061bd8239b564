"""Trainings whose nodes are all gone."""

import threading
from dataclasses import replace

import pytest
import torch
from crews import EAST, GAMMA, SITES, WEST, crew_with, parted, run_epochs, task_of
from waiting import HANG_GUARD_S, wait_until

from ekya.core.errors import UserError
from ekya.fleet.policy.assignment import NodePart
from ekya.fleet.policy.places import NodeName, SiteName
from ekya.fleet.run.calls import CallError
from ekya.fleet.run.training import trainer as trainer_module
from ekya.fleet.run.training.crew import CrewLostError, Dead
from ekya.fleet.run.training.dealing import deal
from ekya.fleet.run.training.homecoming import Homecoming, RemoteEpochCheckpoint
from ekya.fleet.run.training.material import Material
from ekya.fleet.run.training.protocol import FleetNode, TrainingFailedError, shares_of
from ekya.fleet.run.training.trainer import FleetTraining
from ekya.models.edge.checkpoints import from_bytes

HUB = NodeName("hub")
BOTH = parted(NodePart(EAST, chunks=1), NodePart(WEST, chunks=2))
AT_HUB = parted(NodePart(HUB, workers=2), server=HUB)


def node(name, machine_id, share_milli=300):
    return FleetNode(name, SiteName(name), machine_id, share_milli)


def three_nodes():
    return {EAST: node(EAST, "e"), WEST: node(WEST, "w"), HUB: node(HUB, "h")}


class Power:
    """Machines that are off, on which processes die, or that go off before an epoch.

    A checkpoint of one of the ``slow`` epochs is in transit until its node goes off, and is then lost. Others
    are in transit until ``comes`` is set, and lost if their process was given back before.
    """

    def __init__(self, off=(), deadly=(), slow=(), **goes_off):
        self.off, self.deadly, self.goes_off, self.tried = set(off), set(deadly), goes_off, []
        self.slow, self.comes = set(slow), threading.Event()
        self.comes.set()


class CrewInThreads:
    """In-process replacement of ``Crew``, whose processes are a ``Power``."""

    def __init__(self, material, nodes, power, ledger):
        self.material, self.nodes, self.power, self.there = material, nodes, power, {}

    def assemble(self, plan, shards, server, snapshot):
        self.there = {worker: self.nodes[worker.node] for worker in sorted(shards)}
        self.there[None] = self.nodes[server]
        self.power.tried.append({one.machine_id for one in self.there.values()})
        self.look()
        self.crew = crew_with(self.material, plan, shards, snapshot)
        return 0.0

    def run_epoch(self, epoch, interrupted, above):
        self.power.off |= {of for of, at in self.power.goes_off.items() if at == epoch}
        self.look()
        (ended,), _ = run_epochs(*self.crew, [epoch], above)
        if interrupted():
            return None
        if not ended.end.kept:
            return ended.end, None
        result, server = ended.result, self.there[None]

        def fetch():
            if result.epoch in self.power.slow and server.machine_id in self.power.goes_off:
                wait_until(lambda: server.machine_id in self.power.off)
                raise CallError("it is gone")
            assert self.power.comes.wait(HANG_GUARD_S)
            if not self.there:
                raise CallError("it was given back")
            return ended.snapshot

        accuracy = result.validation_accuracy
        return ended.end, RemoteEpochCheckpoint(server.name, result.epoch, accuracy, fetch)

    def look(self):
        off = self.power.off | self.power.deadly
        dead = [Dead(on, who, "off") for who, on in self.there.items() if on.machine_id in off]
        if dead:
            raise CrewLostError(dead)

    def is_there(self, machine_id):
        return machine_id not in self.power.off

    def release_processes(self):
        self.there = {}

    end_processes = release_processes


@pytest.fixture
def begun(monkeypatch, model):
    """Starts trainings of three epochs, and stops them at the end of the test."""
    monkeypatch.setattr(trainer_module, "Crew", CrewInThreads)
    made = []

    def begin(power, nodes=None, assignment=BOTH, **options):
        task = task_of(model, **{"waits": True, **options})
        training = FleetTraining(task, assignment, nodes or three_nodes(), power)
        made.append(training)
        training.start_thread()
        return training

    yield begin
    for training in made:
        training.stop_training()


def until(training, state, moves=0):
    def there():
        told = training.poll()
        return told.state == state and told.moves >= moves

    wait_until(there, lambda: str(training.poll()))
    return training.poll()


def moved(training, assignment):
    """Moves a training to nodes on which it is stranded again."""
    moves = training.poll().moves
    training.move_to(assignment)
    return until(training, "stranded", moves + 1)


def learnt(training):
    return from_bytes(training.result(HANG_GUARD_S).weights).state_dict()


def test_all_nodes_are_gone_and_it_goes_on_elsewhere_from_its_last_epoch(begun):
    undisturbed = begun(Power())
    undisturbed.result(HANG_GUARD_S)
    training = begun(Power(e=1, w=1))
    told = until(training, "stranded")
    assert not told.over
    assert [one.epoch for one in told.epochs] == [1]
    assert "no node is left to train on (east, west failed)" in told.reason
    training.move_to(AT_HUB)
    other = learnt(training)
    told = training.poll()
    assert (told.state, told.reason, told.moves) == ("done", "", 1)
    assert [one.validation_accuracy for one in told.epochs] == [
        one.validation_accuracy for one in undisturbed.poll().epochs
    ]
    assert all(torch.allclose(of, other[name], atol=1e-5) for name, of in learnt(undisturbed).items())


def test_where_checkpoints_are_dear_the_first_the_best_and_the_last_are_made_and_it_ends_as_well(begun):
    undisturbed, seldom = begun(Power()), begun(Power(), checkpoints_part=1e-9)
    assert learnt(seldom).keys() == learnt(undisturbed).keys()
    assert all(torch.equal(of, learnt(seldom)[name]) for name, of in learnt(undisturbed).items())
    accuracies = [one.validation_accuracy for one in seldom.poll().epochs]
    assert seldom.result().accuracy == max(accuracies) and len(accuracies) == 3


def test_an_epoch_whose_checkpoint_is_lost_on_its_way_is_trained_again(begun):
    undisturbed = begun(Power())
    undisturbed.result(HANG_GUARD_S)
    training = begun(Power(slow=[2], e=2, w=2))
    told = until(training, "stranded")
    assert ([one.epoch for one in told.epochs], told.epochs_home, len(told.epoch_s)) == ([1], 1, 1)
    training.move_to(AT_HUB)
    other = learnt(training)
    assert [one.epoch for one in training.poll().epochs] == [1, 2, 3]
    assert all(torch.allclose(of, other[name], atol=1e-5) for name, of in learnt(undisturbed).items())


def test_a_node_that_comes_back_as_another_machine_is_out_no_more(begun):
    nodes = three_nodes()
    power = Power(e=1, w=1)
    training = begun(power, nodes)
    until(training, "stranded")
    tried = len(power.tried)
    moved(training, BOTH)  # no node has come back
    assert len(power.tried) == tried
    nodes[WEST] = node(WEST, "w again")
    training.move_to(BOTH)
    training.result(HANG_GUARD_S)
    assert power.tried[tried:] == [{"w again"}], "the east is still out, and the server with it"
    assert [one.epoch for one in training.poll().epochs] == [1, 2, 3]


def test_one_that_finds_no_node_from_the_start_waits_too_and_begins_when_it_is_moved(begun):
    training = begun(Power(off=("e", "w")))
    assert until(training, "stranded").epochs == ()
    training.move_to(AT_HUB)
    assert training.result(HANG_GUARD_S).accuracy > 0
    assert len(training.poll().epochs) == 3


def test_three_strikes_leave_nobody_and_another_share_forgives_none(begun):
    nodes = three_nodes()
    alone = parted(NodePart(EAST), server=HUB)
    power = Power(deadly=["e"])
    training = begun(power, nodes, alone)
    told = until(training, "stranded")
    assert [failure.left_out for failure in told.failures] == [False, False, True]
    nodes[EAST] = node(EAST, "e", share_milli=900)
    power.deadly.clear()
    assert len(moved(training, alone).failures) == 3
    assert len(power.tried) == 3


def test_who_is_stopped_meanwhile_keeps_the_best_epoch(begun):
    training = begun(Power(e=2, w=2))
    until(training, "stranded")
    assert not training.wait(0)
    training.stop_training()
    assert training.wait(HANG_GUARD_S)
    # The result is available as soon as the training is seen to be over.
    assert training.result(0).epoch in (1, 2)
    assert training.poll().state == "stopped"
    nothing = begun(Power(off=("e", "w")))
    until(nothing, "stranded")
    nothing.stop_training()
    with pytest.raises(TrainingFailedError, match="no node is left"):
        nothing.result(HANG_GUARD_S)


def test_who_is_stopped_before_a_checkpoint_is_home_keeps_its_processes_until_one_is(begun, monkeypatch):
    class WaitedFor(Homecoming):
        """Its checkpoints come when it is waited for."""

        def wait_home(self):
            power.comes.set()
            super().wait_home()

    monkeypatch.setattr(trainer_module, "Homecoming", WaitedFor)
    power = Power()
    power.comes.clear()
    training = begun(power, config=replace(GAMMA, epochs=5000))
    wait_until(lambda: training.poll().epochs)
    training.stop_training()
    assert training.result(HANG_GUARD_S).epoch >= 1
    assert training.poll().state == "stopped"


def test_without_waiting_it_fails_as_soon_as_no_node_is_left(begun):
    training = begun(Power(e=1, w=1), waits=False)
    assert training.result(HANG_GUARD_S).epoch == 1
    told = training.poll()
    assert told.state == "failed"
    assert "no node is left" in told.reason


def test_an_order_of_nobody_or_to_nowhere_is_refused_and_it_stays_stranded(begun):
    training = begun(Power(e=1, w=1))
    until(training, "stranded")
    with pytest.raises(UserError, match="no node nowhere"):
        training.move_to(parted(NodePart(NodeName("nowhere"))))
    with pytest.raises(UserError, match="names no node"):
        training.move_to(parted())
    assert training.poll().state == "stranded"
    assert training.poll().moves == 0


def test_a_nodes_share_is_what_is_known_of_it_now(model):
    before = {EAST: node(EAST, "e", 500), WEST: node(WEST, "w", 300)}
    shards = deal(Material.from_task(task_of(model)).crops_by_node(SITES), BOTH)
    now = {**before, WEST: node(WEST, "w", 100)}
    east, west = sorted(shards)
    assert shares_of(now, EAST, shards) == {None: 100, east: 400, west: 100}
    assert shares_of(before, EAST, shards) == {None: 100, east: 400, west: 300}

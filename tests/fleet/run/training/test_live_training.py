"""Trainings on several real Ray nodes on this machine."""

import os
import signal
from dataclasses import replace

import pytest
import ray
from crews import EAST, GAMMA, WEST, bars, parted, task_of
from emulated_cluster import emulated_cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from waiting import LONG_GUARD_S, wait_until

from ekya.core.errors import UserError
from ekya.fleet.policy.assignment import NodePart
from ekya.fleet.policy.places import NodeName
from ekya.fleet.run.calls import RayHandle
from ekya.fleet.run.live.lent_processes import LentProcesses
from ekya.fleet.run.live.neighbours import Neighbours
from ekya.fleet.run.live.orders import Neighbour
from ekya.fleet.run.sites.server import SiteServer
from ekya.fleet.run.training.actors import TrainingProcesses
from ekya.fleet.run.training.protocol import TrainingFailedError
from ekya.fleet.run.training.trainer import ProcessFleetTrainer
from ekya.fleet.run.training.workers import PayloadKind
from ekya.gpu.backends.cpu import CpuShares
from ekya.models.edge.checkpoints import from_bytes
from ekya.models.edge.model import build_edge_model
from ekya.models.edge.predictor import accuracy
from ekya.models.training.labelled import concatenate
from ekya.models.training.optimizer import SgdRecipe
from ekya.models.training.trainer import Retraining, RetrainingData, TrainingMethod

pytestmark = pytest.mark.live

HEAD = replace(GAMMA, trainable_blocks=0, epochs=6)
HUB = NodeName("hub")
UNEQUAL = parted(NodePart(EAST, chunks=2), NodePart(WEST, chunks=1), server=EAST)


@pytest.fixture(scope="module")
def fleet():
    with emulated_cluster({EAST: 600, WEST: 300}) as made:
        yield made


@pytest.fixture(scope="module")
def trainer(fleet):
    made = ProcessFleetTrainer(fleet.nodes(), TrainingProcesses(CpuShares(2)))
    yield made
    made.close()


@pytest.fixture(scope="module")
def model():
    return build_edge_model(("person", "car", "truck"), 0, 7)


def gentle(model, mode, epochs=6, **options):
    """Returns a task whose learning rates suit the features of an untrained ResNet18."""
    recipe = SgdRecipe(head_learning_rate=0.005)
    options = {"validation": bars(200, 3, 500), "recipe": recipe, **options}
    return task_of(model, mode, replace(HEAD, epochs=epochs), **options)


def one_node_accuracies(task, model):
    retraining = Retraining(
        model,
        task.config,
        RetrainingData(
            concatenate([task.training[node] for node in sorted(task.training)]),
            task.validation,
            task.classes,
            seed=task.seed,
        ),
        method=TrainingMethod(recipe=task.recipe),
    )
    retraining.prepare_training()
    return [retraining.run_epoch().validation_accuracy for _ in range(task.config.epochs)]


def wait_for_epoch(handle, epochs):
    def there():
        told = handle.poll()
        assert len(told.epochs) >= epochs or not told.over, told
        return len(told.epochs) >= epochs

    wait_until(there, lambda: str(handle.poll()), LONG_GUARD_S)


@pytest.mark.parametrize("mode", ["synchronous", pytest.param("asynchronous", marks=pytest.mark.long)])
def test_on_two_unequal_nodes_a_mode_ends_within_a_point_of_one_node(trainer, model, mode):
    task = gentle(model, mode)
    handle = trainer.start_training(task, UNEQUAL)
    trained = handle.result(LONG_GUARD_S)
    told = handle.poll()
    expected = one_node_accuracies(task, model)
    assert told.state == "done"
    assert trained.accuracy == pytest.approx(max(expected), abs=0.01)
    assert accuracy(from_bytes(trained.weights), task.validation) >= 0.9
    pushed = {way: count for way, count in told.traffic.sent.items() if way[2] is PayloadKind.PUSHED}
    head = 4 * 3 * (512 + 1)
    assert pushed[WEST, EAST, PayloadKind.PUSHED] == told.work[WEST].steps * head
    assert (
        told.traffic.crossed_bytes(PayloadKind.PULLED) >= told.traffic.crossed_bytes(PayloadKind.PUSHED) > 0
    )
    assert told.work[EAST].crops == 2 * told.work[WEST].crops == 40 * 6
    if mode == "synchronous":
        same = [result.validation_accuracy for result in told.epochs]
        assert same == pytest.approx(expected, abs=0.01)


def test_who_watches_the_accuracy_may_end_it_sooner(trainer, model):
    handle = trainer.start_training(gentle(model, "synchronous", epochs=200), UNEQUAL)
    wait_for_epoch(handle, 2)
    handle.set_epochs(4)
    handle.result(LONG_GUARD_S)
    told = handle.poll()
    assert told.state == "done"
    assert 4 <= len(told.epochs) < 200


def test_what_is_wrong_is_said_and_what_is_stopped_has_its_best_epoch(trainer, model):
    with pytest.raises(UserError, match="no node nowhere"):
        trainer.start_training(gentle(model, "synchronous"), parted(NodePart(NodeName("nowhere"))))
    damaged = replace(gentle(model, "synchronous"), start=b"no weights")
    handle = trainer.start_training(damaged, UNEQUAL)
    with pytest.raises(TrainingFailedError, match="safetensors"):
        handle.result(LONG_GUARD_S)
    stopped = trainer.start_training(gentle(model, "asynchronous", epochs=5000), UNEQUAL)
    wait_for_epoch(stopped, 1)
    stopped.stop_training()
    assert stopped.result(LONG_GUARD_S).epoch >= 1
    assert stopped.poll().state == "stopped"


def test_processes_that_another_server_lends_train_the_same_and_go_back_to_it(fleet, model):
    class Host:
        """Server that lends; it is defined in here so that its process need not import these tests."""

        def __init__(self, ray_node):
            self.ray_node, self.doors = ray_node, SiteServer("127.0.0.1", 0, "t" * 40)
            self.lent = LentProcesses(WEST, ray_node, CpuShares(2), 0, self.doors)

        def take_process(self, borrower):
            return self.lent.take_process(borrower)

        def give_back_process(self, borrower, process):
            self.lent.give_back_process(borrower, process)

        def machine_id(self):
            return self.ray_node

        def count(self):
            return len(self.lent._taken)

    ray_node = fleet.nodes()[WEST].machine_id
    where = NodeAffinitySchedulingStrategy(ray_node, soft=False)
    host = RayHandle(ray.remote(Host).options(num_cpus=0, scheduling_strategy=where).remote(ray_node))
    hosted = Neighbours(EAST)
    hosted.add_neighbours({WEST: Neighbour(host, ray_node)})
    trainer = ProcessFleetTrainer({WEST: fleet.nodes()[WEST], EAST: fleet.nodes()[EAST]}, hosted)
    task = gentle(model, "synchronous", epochs=2)
    handle = trainer.start_training(task, parted(NodePart(WEST, workers=2)))
    handle.result(LONG_GUARD_S)
    told = handle.poll()
    expected = one_node_accuracies(task, model)
    assert [one.validation_accuracy for one in told.epochs] == pytest.approx(expected, abs=0.01)
    assert told.failures == ()
    assert host.call("count").result(LONG_GUARD_S) == 0
    assert hosted.is_there(ray_node)
    host.end_process()
    wait_until(lambda: not hosted.is_there(ray_node))


@pytest.mark.long
def test_a_training_that_moves_learns_the_same(trainer, model):
    stayed = trainer.start_training(gentle(model, "synchronous", epochs=40), UNEQUAL)
    unmoved = stayed.result(LONG_GUARD_S)
    moved = trainer.start_training(gentle(model, "synchronous", epochs=40), UNEQUAL)
    wait_for_epoch(moved, 2)
    moved.move_to(parted(NodePart(WEST, workers=2, chunks=3), NodePart(EAST, chunks=1), server=WEST))
    trained = moved.result(LONG_GUARD_S)
    told = moved.poll()
    assert told.moves == 1
    assert [one.validation_accuracy for one in told.epochs] == pytest.approx(
        [one.validation_accuracy for one in stayed.poll().epochs], abs=0.01
    )
    weights = [from_bytes(done.weights).head.weight.detach() for done in (unmoved, trained)]
    assert float((weights[0] - weights[1]).abs().max()) < 1e-4
    assert told.traffic.sent[EAST, WEST, PayloadKind.CHECKPOINT] > 0


@pytest.mark.long
@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
@pytest.mark.parametrize("who", [(WEST, "worker 0"), (EAST, "parameter server")])
def test_who_is_killed_is_found_and_made_again(trainer, model, mode, who):
    task = gentle(model, mode, epochs=60)
    handle = trainer.start_training(task, UNEQUAL)
    wait_for_epoch(handle, 2)
    os.kill(handle.pids()[who], signal.SIGKILL)
    handle.result(LONG_GUARD_S)
    told = handle.poll()
    assert told.state == "done"
    assert [(failure.node, failure.what) for failure in told.failures] == [who]
    assert not told.failures[0].left_out
    assert [one.epoch for one in told.epochs] == list(range(1, 61))
    expected = one_node_accuracies(task, model)
    assert told.epochs[-1].validation_accuracy == pytest.approx(expected[-1], abs=0.02)


@pytest.mark.long
def test_after_three_strikes_a_node_is_left_out_and_the_others_have_its_crops(trainer, model):
    handle = trainer.start_training(gentle(model, "synchronous", epochs=300), UNEQUAL)
    for strike in range(3):
        wait_for_epoch(handle, 1 + 2 * strike)
        wait_until(lambda strike=strike: len(handle.poll().failures) >= strike)
        os.kill(handle.pids()[WEST, "worker 0"], signal.SIGKILL)
        wait_until(lambda strike=strike: len(handle.poll().failures) > strike)
    before = handle.poll().work
    wait_for_epoch(handle, len(handle.poll().epochs) + 3)
    after = handle.poll()
    assert [failure.left_out for failure in after.failures] == [False, False, True]
    assert after.work[WEST] == before[WEST]
    assert after.work[EAST].crops - before[EAST].crops >= 2 * 60
    handle.stop_training()
    handle.result(LONG_GUARD_S)


@pytest.mark.long
def test_all_nodes_are_gone_and_it_goes_on_where_one_has_come_back(fleet, model):
    # From here on, west and east are other Ray nodes than those that the ``trainer`` fixture knows.
    trainer = ProcessFleetTrainer(fleet.nodes(), TrainingProcesses(CpuShares(2)))
    handle = trainer.start_training(gentle(model, "synchronous", epochs=300, waits=True), UNEQUAL)
    wait_for_epoch(handle, 2)
    fleet.fail(WEST)
    fleet.fail(EAST)
    wait_until(lambda: handle.poll().state == "stranded", lambda: str(handle.poll()))
    stranded = handle.poll()
    assert len(stranded.epochs) >= 2
    trainer.add_node(fleet.begin(WEST, 500))
    handle.move_to(parted(NodePart(WEST, workers=2)))
    wait_for_epoch(handle, len(stranded.epochs) + 2)
    told = handle.poll()
    assert told.epochs[: len(stranded.epochs)] == stranded.epochs
    assert told.moves == 1
    handle.stop_training()
    assert handle.result(LONG_GUARD_S).accuracy >= 0.9
    assert {node for node, _ in handle.pids()} == set()
    trainer.close()
    fleet.begin(EAST, 600)


@pytest.mark.long
def test_a_node_that_is_gone_is_left_out_and_its_crops_are_trained_elsewhere(fleet, model):
    # The last test of this fleet: nothing restores the node.
    trainer = ProcessFleetTrainer(fleet.nodes(), TrainingProcesses(CpuShares(2)))
    handle = trainer.start_training(gentle(model, "asynchronous", epochs=300), UNEQUAL)
    wait_for_epoch(handle, 2)
    fleet.fail(WEST)
    wait_until(
        lambda: any(failure.left_out for failure in handle.poll().failures), lambda: str(handle.poll())
    )
    wait_for_epoch(handle, len(handle.poll().epochs) + 2)
    handle.stop_training()
    assert handle.result(LONG_GUARD_S).accuracy >= 0.9
    trainer.close()

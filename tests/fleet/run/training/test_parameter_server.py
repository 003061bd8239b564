from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from crews import (
    EAST,
    GAMMA,
    HALVES,
    QUICK,
    WEST,
    bars,
    crew_of,
    parted,
    run_epochs,
    task_of,
)
from waiting import HANG_GUARD_S, wait_until

from ekya.core.errors import UserError
from ekya.fleet.policy.assignment import NodePart
from ekya.fleet.policy.places import SiteName
from ekya.fleet.run.calls import LocalHandle
from ekya.fleet.run.training.dealing import deal
from ekya.fleet.run.training.material import Material, Push
from ekya.fleet.run.training.server import ParameterServer
from ekya.fleet.run.training.updates import Updates
from ekya.fleet.run.training.worker import LoneWorker
from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.labelled import concatenate
from ekya.models.training.optimizer import SgdRecipe
from ekya.models.training.snapshot import Snapshot
from ekya.models.training.trainer import Retraining, RetrainingData, TrainingMethod


def on_one_node(task, model, batch_size=None):
    """Runs the trainer's own retraining on the same crops; returns results and weights of the last epoch."""
    config = replace(task.config, batch_size=batch_size or task.config.batch_size)
    retraining = Retraining(
        model,
        config,
        RetrainingData(
            concatenate([task.training[node] for node in sorted(task.training)]),
            task.validation,
            task.classes,
            memory=task.memory,
            seed=task.seed,
        ),
        method=TrainingMethod(recipe=task.recipe),
    )
    retraining.prepare_training()
    results = [retraining.run_epoch() for _ in range(config.epochs)]
    return results, retraining.model().state_dict()


def trained_weights(end, model):
    """Returns weights by their names in the whole model, of which only the last block trains."""
    weights = Snapshot.from_bytes(end.snapshot).weights
    return {name.replace("blocks.0.", f"blocks.{len(model.blocks) - 1}."): of for name, of in weights.items()}


def furthest(end, expected, model):
    return max(
        float((of - expected[name]).abs().max())
        for name, of in trained_weights(end, model).items()
        if of.is_floating_point()
    )


@pytest.mark.parametrize("head_width", [0, 8])
def test_one_worker_and_a_server_are_the_retraining_to_the_bit(model, head_width):
    memory = ExemplarMemory(12).update_exemplars(model, bars(20, 9, 900))
    config = replace(GAMMA, head_width=head_width, data_fraction=0.5)
    task = task_of(model, config=config, memory=memory)
    ends, _ = run_epochs(*crew_of(task, parted(NodePart(WEST))), range(3))
    results, expected = on_one_node(task, model)
    assert [end.result.validation_accuracy for end in ends] == [
        result.validation_accuracy for result in results
    ]
    weights = trained_weights(ends[-1], model)
    assert all(torch.equal(of, expected[name]) for name, of in weights.items())


def test_together_many_workers_learn_what_one_node_learns_whoever_holds_what(model):
    memory = ExemplarMemory(12).update_exemplars(model, bars(20, 9, 900))
    task = task_of(model, memory=memory)
    results, expected = on_one_node(task, model)
    for assignment in (HALVES, parted(NodePart(EAST, workers=3, chunks=1), NodePart(WEST, chunks=9))):
        ends, works = run_epochs(*crew_of(task, assignment), range(3))
        assert furthest(ends[-1], expected, model) < 1e-5
        assert ends[-1].result.training_loss == pytest.approx(results[-1].training_loss, rel=0.05)
        assert sum(work.crops for work in works[0]) == 60 + 12
        assert {end.stalest for end in ends} == {0}


def test_batches_of_an_assignment_make_up_the_step_together(model):
    task = task_of(model)
    assignment = parted(NodePart(EAST, workers=2, batch=4), NodePart(WEST, batch=7))
    ends, _ = run_epochs(*crew_of(task, assignment), range(3))
    _, expected = on_one_node(task, model, batch_size=15)
    assert furthest(ends[-1], expected, model) < 1e-5


def test_between_two_epochs_a_training_moves_through_its_snapshot_and_learns_the_same(model):
    task = task_of(model)
    stayed, _ = run_epochs(*crew_of(task, HALVES), range(3))
    first, _ = run_epochs(*crew_of(task, HALVES), range(2))
    elsewhere = parted(NodePart(EAST, workers=2, chunks=5), NodePart(WEST, chunks=1))
    moved, _ = run_epochs(*crew_of(task, elsewhere, first[-1].snapshot), range(2, 3))
    whole = trained_weights(stayed[-1], model)
    assert furthest(moved[-1], whole, model) < 1e-5
    assert moved[-1].result.epoch == 3
    assert furthest(first[-1], whole, model) > 1e-3, "the last epoch must have changed something"


def test_without_waiting_for_all_it_learns_too_and_every_crop_is_seen(model):
    gentle = SgdRecipe(learning_rate=0.01, head_learning_rate=0.03)
    task = task_of(model, "asynchronous", replace(GAMMA, epochs=8), staleness=3, recipe=gentle)
    ends, works = run_epochs(*crew_of(task, HALVES), range(8))
    results, _ = on_one_node(task, model)
    one_node = results[-1].validation_accuracy
    assert one_node >= 0.9
    assert ends[-1].result.validation_accuracy == pytest.approx(one_node, abs=0.05)
    assert max(end.stalest for end in ends) <= 3
    for end, work in zip(ends, works, strict=True):
        assert sum(one.crops for one in work) == 60
        assert end.end.updates == sum(one.steps for one in work) == 2 * 2 + 4
    parameters = sum(weight.numel() for name, weight in model.named_parameters() if _trains(name, model))
    assert works[0][0].pushed == works[0][0].pulled == works[0][0].steps * 4 * parameters


def _trains(name, model):
    return name.startswith((f"blocks.{len(model.blocks) - 1}.", "head."))


def test_a_snapshot_of_nothing_brings_a_server_back_to_its_start(model):
    server, workers = crew_of(task_of(model), HALVES)
    before = server.restore_snapshot(None)
    first, _ = run_epochs(server, workers, range(1))
    assert server.restore_snapshot(None) == before
    again, _ = run_epochs(server, workers, range(1))
    one, other = (Snapshot.from_bytes(ends[0].snapshot).weights for ends in (first, again))
    assert all(torch.equal(of, other[name]) for name, of in one.items())


def test_an_epoch_that_is_no_more_lets_everybody_go(model):
    server, workers = crew_of(task_of(model), HALVES)
    (first, *others) = workers
    server.begin_epoch("epoch", tuple(workers))
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(workers[others[0]].run_epoch, LocalHandle(server, 1), "epoch", 0)
        wait_until(
            lambda: others[0] in server.exchanged_bytes()
        )  # It has pulled; the other workers never do.
        server.abort_epoch()
        assert waits.result(HANG_GUARD_S).steps <= 1
    assert server.pull_weights("epoch", first) is None
    gradient = np.zeros(3, np.float32)
    assert server.push_gradient("epoch", first, Push(gradient, 0.0, 1, 8, last=False)) is None
    with pytest.raises(RuntimeError, match="left"):
        server.end_epoch()


def test_a_damaged_snapshot_and_one_of_another_model_are_refused(model):
    server, workers = crew_of(task_of(model), HALVES)
    ends, _ = run_epochs(server, workers, range(1))
    other, _ = crew_of(task_of(model, config=replace(GAMMA, head_width=8)), HALVES)
    with pytest.raises(UserError, match="another model"):
        other.restore_snapshot(ends[0].snapshot)
    with pytest.raises(UserError, match="snapshot"):
        server.restore_snapshot(ends[0].snapshot[:100])


def test_statistics_of_batches_are_refused(model):
    with pytest.raises(ValueError, match="statistics"):
        Material.from_task(task_of(model, recipe=replace(QUICK, batch_statistics=True)))


def lone(task):
    """Returns the parameter server with its worker in it."""
    material, assignment = Material.from_task(task), parted(NodePart(WEST))
    plan = material.lesson_plan(assignment)
    ((me, shard),) = deal(
        material.crops_by_node(dict.fromkeys((*task.training, WEST), SiteName("here"))), assignment
    ).items()
    server = ParameterServer(Updates(task.start, plan, material.validation))
    server.restore_snapshot(None)
    worker = LoneWorker(me, server, plan.epochs, shard, material.crops.select_rows(shard.positions))
    return me, server, worker


@pytest.mark.parametrize("head_width", [0, 8])
def test_it_learns_what_a_worker_of_another_process_would_to_the_bit(model, head_width):
    memory = ExemplarMemory(12).update_exemplars(model, bars(20, 9, 900))
    config = replace(GAMMA, head_width=head_width, data_fraction=0.5)
    task = task_of(model, config=config, memory=memory)
    ends, works = run_epochs(*crew_of(task, parted(NodePart(WEST))), range(3))
    me, server, worker = lone(task)
    for epoch, end in enumerate(ends):
        server.begin_epoch(epoch, (me,))
        work = worker.run_epoch(epoch, epoch)
        assert server.end_epoch() == end.end
        assert (work.steps, work.crops) == (works[epoch][0].steps, works[epoch][0].crops)
        assert server.exchanged_bytes() == {}
        weights = Snapshot.from_bytes(server.fetch_snapshot(epoch)).weights
        for name, of in Snapshot.from_bytes(end.snapshot).weights.items():
            assert torch.equal(weights[name], of)


def test_it_stops_when_its_epoch_is_no_more_and_moves_nothing(model):
    me, server, worker = lone(task_of(model))
    server.begin_epoch("one", (me,))
    server.abort_epoch()
    before = server.restore_snapshot(None)
    assert worker.run_epoch("one", 0).steps == 0
    assert server.restore_snapshot(None) == before
    server.begin_epoch("two", (me,))
    assert worker.run_epoch("two", 0).steps > 0

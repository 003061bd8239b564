"""A worker in its parameter server's process: the same training, and its epoch can be aborted."""

from dataclasses import replace

import pytest
import torch
from crews import GAMMA, WEST, bars, crew_of, parted, run_epochs, task_of

from ekya.fleet.policy.assignment import NodePart
from ekya.fleet.policy.places import SiteName
from ekya.fleet.run.training.dealing import deal
from ekya.fleet.run.training.material import Material
from ekya.fleet.run.training.server import ParameterServer
from ekya.fleet.run.training.updates import Updates
from ekya.fleet.run.training.worker import LoneWorker
from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.snapshot import Snapshot


def lone(task):
    """Returns the parameter server with its worker in it."""
    material, assignment = Material.from_task(task), parted(NodePart(WEST))
    plan = material.lesson_plan(assignment)
    ((me, shard),) = deal(
        material.crops_by_node(dict.fromkeys((*task.training, WEST), SiteName("here"))), assignment
    ).items()
    server = ParameterServer(Updates(task.start, plan, material.validation))
    server.restore(None)
    worker = LoneWorker(me, server, plan.epochs, shard, material.crops.take(shard.positions))
    return me, server, worker


@pytest.mark.parametrize("head_width", [0, 8])
def test_it_learns_what_a_worker_of_another_process_would_to_the_bit(model, head_width):
    memory = ExemplarMemory(12).update(model, bars(20, 9, 900))
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
        weights = Snapshot.from_bytes(server.snapshot(epoch)).weights
        for name, of in Snapshot.from_bytes(end.snapshot).weights.items():
            assert torch.equal(weights[name], of)


def test_it_stops_when_its_epoch_is_no_more_and_moves_nothing(model):
    me, server, worker = lone(task_of(model))
    server.begin_epoch("one", (me,))
    server.abort_epoch()
    before = server.restore(None)
    assert worker.run_epoch("one", 0).steps == 0
    assert server.restore(None) == before
    server.begin_epoch("two", (me,))
    assert worker.run_epoch("two", 0).steps > 0

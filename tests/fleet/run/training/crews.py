"""A training on several nodes in threads of one process, without Ray; and bars to train on."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
from torch import nn
from waiting import HANG_GUARD_S

from ekya.core.configs import RetrainConfig
from ekya.fleet.policy.assignment import JobAssignment, NodePart
from ekya.fleet.policy.places import JobName, NodeName, SiteName
from ekya.fleet.run.calls import LocalHandle
from ekya.fleet.run.training.actors import TrainingActor
from ekya.fleet.run.training.dealing import deal
from ekya.fleet.run.training.material import ALWAYS, Material
from ekya.fleet.run.training.protocol import TrainingTask
from ekya.fleet.run.training.server import ParameterServer, ServedEpoch
from ekya.fleet.run.training.updates import Updates
from ekya.fleet.run.training.worker import Worker
from ekya.models.edge.architectures import Trunk
from ekya.models.edge.checkpoints import to_bytes
from ekya.models.training.labelled import LabelledCrops
from ekya.models.training.optimizer import SgdRecipe

NAMES = ("person", "car", "truck")
EAST, WEST = NodeName("east"), NodeName("west")
SITES = {EAST: SiteName("east"), WEST: SiteName("west")}
GAMMA = RetrainConfig(epochs=3, batch_size=8, head_width=0, trainable_blocks=1, data_fraction=1.0)
QUICK = SgdRecipe(learning_rate=0.03, head_learning_rate=0.1)


def wide_trunk():
    """Builds four blocks, after which the places of bars are separate pixels."""

    def block(channels_in, channels_out):
        conv = nn.Conv2d(channels_in, channels_out, 3, stride=2, padding=1, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(channels_out), nn.ReLU())

    blocks = (block(3, 16), block(16, 16), block(16, 32), block(32, 32))
    return Trunk({f"block{place}": block for place, block in enumerate(blocks)}, 32)


def bars(count, seed, first_track=0):
    rng = np.random.default_rng(seed)
    classes = rng.choice(3, count).astype(np.int64)
    crops = rng.integers(0, 60, (count, 32, 32, 3)).astype(np.uint8)
    for row, place in enumerate(classes):
        crops[row, :, 8 * place : 8 * place + 8] += 150
    order = np.arange(count, dtype=np.int64)
    return LabelledCrops(crops, classes, first_track + order // 2, order * 1000)


def task_of(model, mode="synchronous", config=GAMMA, **options):
    given = {
        "training": {EAST: bars(40, 1), WEST: bars(20, 2, 100)},
        "validation": bars(30, 3, 500),
        "recipe": QUICK,
        "seed": 3,
        **options,
    }
    return TrainingTask(JobName("job"), config, to_bytes(model), model.classes, home=EAST, mode=mode, **given)


def parted(*parts, server=None, moves=None):
    return JobAssignment(JobName("job"), parts, "as it is", server, moves or {})


HALVES = parted(NodePart(EAST, workers=1, chunks=1), NodePart(WEST, workers=2, chunks=1))


def process(name):
    """Returns a training process in threads of this one, with a whole processor as its share."""
    share = SimpleNamespace(scope=nullcontext, release=lambda: None)
    whole = SimpleNamespace(probe_machine=lambda: SimpleNamespace(device="cpu"), attach_job=lambda job: share)
    return LocalHandle(TrainingActor(name, whole), threads=8)


def crew_of(task, assignment, snapshot=None):
    """Returns the parameter server and its workers."""
    material = Material.from_task(task)
    shards = deal(material.crops_by_node(SITES), assignment)
    return crew_with(material, material.lesson_plan(assignment), shards, snapshot)


def crew_with(material, plan, shards, snapshot=None):
    """Like ``crew_of``, for a given plan and given shards."""
    task = material.task
    server = ParameterServer(Updates(task.start, plan, material.validation))
    server.restore_snapshot(snapshot)
    return server, workers_with(material, plan, shards)


def workers_with(material, plan, shards):
    """Returns workers by name."""
    start = material.task.start
    return {
        me: Worker(me, number, start, plan, shard, material.crops.select_rows(shard.positions))
        for number, (me, shard) in enumerate(sorted(shards.items(), key=lambda item: item[0]))
    }


def updates_of(task, assignment):
    """Returns updates and workers that run without threads."""
    material = Material.from_task(task)
    plan = material.lesson_plan(assignment)
    updates = Updates(task.start, plan, material.validation)
    updates.restore_snapshot(None)
    return updates, workers_with(material, plan, deal(material.crops_by_node(SITES), assignment))


def in_turn(updates, workers, epoch):
    """Runs an epoch in which workers push in turn, so that each push is late by the other workers' pushes."""
    updates.begin_epoch(tuple(workers))
    left = {me: worker.steps(epoch) for me, worker in workers.items()}
    pulled = {me: updates.pull_weights(me) for me in workers}
    while any(left.values()):
        for me in [me for me in workers if left[me]]:
            step = left[me].pop(0)
            updates.push_gradient(me, workers[me].push_of(pulled[me], step, last=not left[me]))
            if left[me]:
                pulled[me] = updates.pull_weights(me)
    return updates.end_epoch()


@dataclass
class Ended:
    """Result and snapshot of an epoch."""

    end: ServedEpoch
    snapshot: bytes | None

    @property
    def result(self):
        return self.end.result

    @property
    def stalest(self):
        return self.end.stalest


def run_epochs(server, workers, epochs, above=ALWAYS):
    """Runs each worker in a thread; returns the ends of the epochs and the workers' work in each."""
    ends, works, reached = [], [], LocalHandle(server, len(workers))
    with ThreadPoolExecutor(len(workers)) as pool:
        for epoch in epochs:
            server.begin_epoch(epoch, tuple(workers))
            told = [pool.submit(worker.run_epoch, reached, epoch, epoch) for worker in workers.values()]
            works.append([one.result(HANG_GUARD_S) for one in told])
            end = server.end_epoch(above)
            ends.append(Ended(end, server.fetch_snapshot(epoch) if end.kept else None))
    return ends, works

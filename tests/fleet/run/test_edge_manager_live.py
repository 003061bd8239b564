"""Deep-Edge's manager with real trainings on real Ray nodes."""

import os
import signal
import time
from dataclasses import replace

import pytest
from crews import EAST, GAMMA, WEST, bars, task_of

from ekya.fleet.papers.deep_edge.devices import NANO, TX2
from ekya.fleet.papers.deep_edge.truth import Truth
from ekya.fleet.policy.deep_edge.estimates import EdgeLimits
from ekya.fleet.policy.deep_edge.heuristic import Heuristic
from ekya.fleet.policy.deep_edge.policy import EdgePolicy
from ekya.fleet.policy.deep_edge.stopping import StopRule
from ekya.fleet.policy.job import TrainJob
from ekya.fleet.policy.names import JobName, SiteName
from ekya.fleet.policy.places import Node, NodeState
from ekya.fleet.policy.waiting import Linear
from ekya.fleet.run.cluster import emulated_cluster
from ekya.fleet.run.deep_edge.launcher import Launcher
from ekya.fleet.run.deep_edge.manager import EdgeManager
from ekya.fleet.run.training.processes import Processes
from ekya.fleet.run.training.trainer import RayFleetTrainer
from ekya.gpu.backends.cpu import CpuShares
from ekya.models.edge.model import build_edge_model
from ekya.models.training.sgd import SgdRecipe

pytestmark = [pytest.mark.live, pytest.mark.long]

PATIENCE_S = 180
EPOCHS = 60
BOTH = {"trains": 1.0, "serves": 1.0}


class Store:
    """A data store of bars that lie on their nodes."""

    def __init__(self):
        model = build_edge_model(("person", "car", "truck"), 0, 7)
        config = replace(GAMMA, trainable_blocks=0, epochs=EPOCHS)
        recipe = SgdRecipe(head_learning_rate=0.005)
        self.made = task_of(model, "asynchronous", config, validation=bars(100, 3, 500), recipe=recipe)
        self.trained, self.reasons = None, []

    def job(self):
        chunks = {SiteName("here"): 60}
        needs = {"trains": 1.0}
        return TrainJob(
            JobName("job"),
            0,
            EPOCHS,
            Linear(1.0, 0.0),
            chunks,
            worker=needs,
            parameter_server={"serves": 1.0},
        )

    def task(self, assignment):
        return self.made

    def began(self):
        pass

    def update(self, trained):
        self.trained = trained

    def failed(self, reason):
        self.reasons.append(reason)


def test_a_worker_dies_the_update_goes_on_and_ends_when_it_rises_no_more() -> None:
    with emulated_cluster({EAST: 600, WEST: 300}) as fleet:
        trainer, store = RayFleetTrainer(fleet.nodes(), Processes(CpuShares(2))), Store()
        policy = EdgePolicy("deep-edge", Heuristic(), Truth(), EdgeLimits(2, 8))
        manager = EdgeManager(policy, Launcher(trainer), StopRule(), silent_s=1000)
        for name, kind in ((EAST, TX2), (WEST, NANO)):
            state = NodeState(0.2, 0.0, 0.3)
            manager.hear(Node(name, SiteName("here"), kind, capacity=BOTH, state=state))
        try:
            assignment = manager.trigger(store)
            shards = {part.node: part.chunks for part in assignment.parts}
            assert shards[EAST] > shards[WEST] > 0
            (launched, _) = manager.tasks()[JobName("job")]
            killed, until_s = False, time.monotonic() + PATIENCE_S
            while manager.tasks():
                assert time.monotonic() < until_s, launched.progress
                manager.look()
                if not killed and launched.progress.epochs:
                    os.kill(launched.handle.pids()[WEST, "worker 0"], signal.SIGKILL)
                    killed = True
                time.sleep(0.1)
        finally:
            trainer.close()
    told = launched.progress
    assert killed
    assert [failure.node for failure in told.failures] == [WEST]
    assert not store.reasons
    assert store.trained.validation_accuracy >= max(told.start_accuracy, 0.6)
    assert len(told.epochs) == told.planned_epochs < EPOCHS

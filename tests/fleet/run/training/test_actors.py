"""A training process without Ray: when it holds its share of the GPU."""

from contextlib import nullcontext

import pytest
from crews import HALVES, task_of

from ekya.fleet.run.training.actors import TrainingActor
from ekya.fleet.run.training.material import Material
from ekya.gpu.backends.backend import ShareJob
from ekya.gpu.backends.duty_cycle import CpuShares


class Handle:
    """A share that records whether it is held."""

    def __init__(self, job):
        self.job, self.held = job, True

    def scope(self):
        return nullcontext()

    def release(self):
        self.held = False


class Shares:
    """A backend that records attached handles."""

    def __init__(self):
        self.handles = []

    def probe(self):
        return CpuShares(1).probe()

    def attach(self, job):
        self.handles.append(Handle(job))
        return self.handles[-1]


def test_a_server_that_serves_nothing_yet_may_be_told_that_its_epoch_is_no_more():
    server = TrainingActor("server", CpuShares(1))
    server.abort_epoch()
    with pytest.raises(LookupError, match="serves no training"):
        server.on_server("end_epoch")


def test_it_works_at_its_share_of_its_gpu_and_holds_nothing_of_it_between_two_trainings(model):
    shares = Shares()
    actor = TrainingActor("a guest", shares, 1)
    task = task_of(model)
    material = Material.from_task(task)
    plan = material.lesson_plan(HALVES)
    for share_milli in (300, 600):
        actor.release_training()
        assert not any(handle.held for handle in shares.handles)
        actor.serve_training(task.start, plan, material.validation, share_milli)
        assert shares.handles[-1].job == ShareJob("a guest", "retraining", share_milli, 1)
        assert [handle.held for handle in shares.handles] == [False] * (len(shares.handles) - 1) + [True]
    actor.release_training()
    for told in (["end_epoch"], ["snapshot", 0]):
        with pytest.raises(LookupError):
            actor.on_server(*told)

"""Processes of trainings: where they come from, and what they say when they cannot begin."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from by_hand import ByHand
from crews import HALVES, task_of
from emulated_cluster import EmulatedCluster

from ekya.fleet.policy.places import NodeName, SiteName
from ekya.fleet.run.calls import CallError
from ekya.fleet.run.training import actors as processes_module
from ekya.fleet.run.training.actors import TrainingActor, TrainingProcesses
from ekya.fleet.run.training.material import Material
from ekya.fleet.run.training.protocol import FleetNode
from ekya.gpu.backends.backend import ShareJob
from ekya.gpu.backends.cpu import CpuShares
from ekya.gpu.mps.backend import PERCENTAGE, TRAINER_CAP_MILLI, MpsShares
from ekya.gpu.mps.control import PIPE_VARIABLE, VISIBLE_VARIABLE
from ekya.gpu.mps.service import MpsEnvironment
from ekya.gpu.nvml import Gpu, GpuInventory

GPUS = GpuInventory(tuple(Gpu(place, "a GPU", 8, 7, f"GPU-{place}") for place in (0, 1)), "600.1", "2 GPUs")
CLIENTS = tuple({PIPE_VARIABLE: f"/pipes/{gpu.index}", VISIBLE_VARIABLE: gpu.uuid} for gpu in GPUS.gpus)
OPENED = MpsShares(GPUS, environment=MpsEnvironment(Path("/mps"), CLIENTS))
NODE = FleetNode(NodeName("south"), SiteName("south"), "ray node", 0)


class Process:
    """A process that works on nothing."""

    def __init__(self, *arguments):
        self.arguments, self.rests = arguments, 0

    def pid(self):
        return 7

    def release_training(self):
        self.rests += 1


class Ray:
    """Fake of Ray that makes actors."""

    def __init__(self):
        self.made = []

    def remote(self, **_groups):
        return lambda kind: self

    def options(self, **options):
        self.made.append(options)
        return _Made()


class _Made:
    def remote(self, *arguments):
        return ByHand(Process(*arguments))


@pytest.fixture
def ray(monkeypatch):
    made = Ray()
    monkeypatch.setattr(processes_module, "ray", made)
    monkeypatch.setattr(processes_module, "RayHandle", lambda actor: actor)
    monkeypatch.setattr(processes_module, "NodeAffinitySchedulingStrategy", lambda node, soft: node)
    return made


@pytest.fixture
def processes(ray):
    return TrainingProcesses(OPENED)


@pytest.mark.parametrize("gpu", [0, 1])
def test_a_process_is_a_client_on_its_nodes_gpu_from_the_beginning(gpu, ray, processes) -> None:
    process = processes.take_process(replace(NODE, gpu=gpu))
    environment = ray.made[0]["runtime_env"]["env_vars"]
    assert environment[VISIBLE_VARIABLE] == f"GPU-{gpu}"
    assert environment[PIPE_VARIABLE] == f"/pipes/{gpu}"
    assert int(environment[PERCENTAGE]) * 10 == TRAINER_CAP_MILLI, "at a share that nobody knows yet"
    assert process.kept.arguments[1:] == (OPENED, gpu)


def test_one_that_waits_is_taken_again_on_its_gpu_and_on_no_other(processes) -> None:
    first, second = (replace(NODE, gpu=gpu) for gpu in (0, 1))
    process = processes.take_process(second)
    processes.give_back_process(second, process)
    assert process.kept.rests == 1, "it holds nothing while it waits"
    other = processes.take_process(first)
    assert other != process
    assert processes.take_process(second) == process


def test_one_that_does_not_answer_waits_for_nobody(ray, processes) -> None:
    process = processes.take_process(NODE)
    process.end_process()
    processes.give_back_process(NODE, process)
    assert processes.take_process(NODE) != process
    assert len(ray.made) == 2


def test_who_comes_back_after_the_end_ends_too(processes) -> None:
    waits, late = processes.take_process(NODE), processes.take_process(NODE)
    processes.give_back_process(NODE, waits)
    processes.close()
    assert (waits.dead, late.dead) == (True, False)
    processes.give_back_process(NODE, late)
    with pytest.raises(CallError):
        late.call("pid").result(0)


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

    def probe_machine(self):
        return CpuShares(1).probe_machine()

    def attach_job(self, job):
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
    for told in (["end_epoch"], ["fetch_snapshot", 0]):
        with pytest.raises(LookupError):
            actor.on_server(*told)


NORTH, SOUTH = NodeName("north"), NodeName("south")


class RayCluster:
    """Ray's cluster for tests, with nodes that are only numbered."""

    def __init__(self):
        self.begun, self.removed = 0, []

    def add_node(self, **_options):
        self.begun += 1
        return type("Raylet", (), {"node_id": f"node {self.begun}"})()

    def remove_node(self, raylet, **_options):
        self.removed.append(raylet.node_id)


def test_an_emulated_node_that_fails_is_gone_and_comes_back_as_another_ray_node():
    of_ray = RayCluster()
    emulated = EmulatedCluster(of_ray, 1)
    emulated.begin(NORTH, 600)
    emulated.begin(SOUTH, 300)
    emulated.fail(NORTH)
    assert of_ray.removed == ["node 1"]
    assert list(emulated.nodes()) == [SOUTH]
    emulated.begin(NORTH, 500)
    node = emulated.nodes()[NORTH]
    assert (node.machine_id, node.share_milli) == ("node 3", 500)

"""Source of training processes without Ray: their environment, and reuse of idle processes."""

from dataclasses import replace
from pathlib import Path

import pytest
from by_hand import ByHand

from ekya.fleet.policy.places import NodeName, SiteName
from ekya.fleet.run.calls import CallError
from ekya.fleet.run.training import actors as processes_module
from ekya.fleet.run.training.actors import TrainingProcesses
from ekya.fleet.run.training.protocol import FleetNode
from ekya.gpu.mps.backend import PERCENTAGE, TRAINER_CAP_MILLI, MpsShares
from ekya.gpu.mps.control import PIPE_VARIABLE, VISIBLE_VARIABLE
from ekya.gpu.mps.service import MpsEnvironment, MpsGpu
from ekya.gpu.nvml import Gpu, GpuInventory

GPUS = GpuInventory(tuple(Gpu(place, "a GPU", 8, 7, f"GPU-{place}") for place in (0, 1)), "600.1", "2 GPUs")
ROOMS = tuple(MpsGpu(gpu.uuid, Path(f"/pipes/{gpu.index}")) for gpu in GPUS.gpus)
OPENED = MpsShares(GPUS, duty_cycle=True, environment=MpsEnvironment(Path("/mps"), ROOMS))
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

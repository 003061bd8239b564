"""Processes of trainings: where they come from, and what they say when they cannot begin."""

from pathlib import Path

import pytest
from by_hand import ByHand

from ekya.fleet.run.calls import CallError
from ekya.fleet.run.training import actors as processes_module
from ekya.fleet.run.training.actors import TrainingProcesses
from ekya.gpu.mps.backend import PERCENTAGE, TRAINER_CAP_MILLI, MpsShares
from ekya.gpu.mps.control import PIPE_VARIABLE, VISIBLE_VARIABLE
from ekya.gpu.mps.service import MpsEnvironment
from ekya.gpu.nvml import Gpu, GpuInventory

GPUS = GpuInventory(tuple(Gpu(place, "a GPU", 8, 7, f"GPU-{place}") for place in (0, 1)), "600.1", "2 GPUs")
CLIENTS = tuple({PIPE_VARIABLE: f"/pipes/{gpu.index}", VISIBLE_VARIABLE: gpu.uuid} for gpu in GPUS.gpus)
OPENED = MpsShares(GPUS, environment=MpsEnvironment(Path("/mps"), CLIENTS))


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
    return TrainingProcesses("ray node", OPENED)


@pytest.mark.parametrize("gpu", [0, 1])
def test_a_process_is_a_client_on_its_gpu_from_the_beginning(gpu, ray) -> None:
    process = TrainingProcesses("ray node", OPENED, gpu).take_process()
    assert ray.made[0]["scheduling_strategy"] == "ray node"
    environment = ray.made[0]["runtime_env"]["env_vars"]
    assert environment[VISIBLE_VARIABLE] == f"GPU-{gpu}"
    assert environment[PIPE_VARIABLE] == f"/pipes/{gpu}"
    assert int(environment[PERCENTAGE]) * 10 == TRAINER_CAP_MILLI, "at a share that nobody knows yet"
    assert process.kept.arguments[1:] == (OPENED, gpu)


def test_one_that_waits_is_taken_again(processes) -> None:
    process = processes.take_process()
    processes.give_back_process(process)
    assert process.kept.rests == 1, "it holds nothing while it waits"
    assert processes.take_process() == process
    assert processes.take_process() != process


def test_one_that_does_not_answer_waits_for_nobody(ray, processes) -> None:
    process = processes.take_process()
    process.end_process()
    processes.give_back_process(process)
    assert processes.take_process() != process
    assert len(ray.made) == 2


def test_who_comes_back_after_the_end_ends_too(processes) -> None:
    waits, late = processes.take_process(), processes.take_process()
    processes.give_back_process(waits)
    processes.close()
    assert (waits.dead, late.dead) == (True, False)
    processes.give_back_process(late)
    with pytest.raises(CallError):
        late.call("pid").result(0)

"""Tests of sharing weights from trainer to inference, over a fake of CUDA IPC."""

import pickle

import pytest
import torch
from fake_ipc import FakeGpu

from ekya.core.errors import UserError
from ekya.gpu.cuda_ipc import require_gpu
from ekya.gpu.green.sm_driver import SmDriverError
from ekya.models.edge.flat import DamagedWeightsError
from ekya.models.edge.model import build_edge_model
from ekya.runtime.cuda_ipc_transfer import receive, share


@pytest.fixture
def gpu():
    return FakeGpu()


@pytest.fixture
def trainer(gpu):
    return gpu.process()


def model_of(seed):
    return build_edge_model(("car", "bus"), 0, seed, "shufflenet_v2_x1_0")


def same(one, other):
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(own, its) for own, its in pairs)


def test_shared_weights_are_small_and_arrive_to_the_bit(gpu, trainer):
    weights, _ = share(trainer.ipc(), model_of(1), "cpu")
    sent = pickle.dumps(weights)
    assert len(sent) < 64 * 1024
    assert same(receive(gpu.process().ipc(), pickle.loads(sent), "cpu"), model_of(1))


def test_received_weights_outlive_the_shared_memory(gpu, trainer):
    weights, loan = share(trainer.ipc(), model_of(1), "cpu")
    received = receive(gpu.process().ipc(), weights, "cpu")
    loan.end()
    assert trainer.memory == {}
    trainer.die()
    assert same(received, model_of(1))


def test_receive_of_damaged_weights_raises(gpu, trainer):
    weights, _ = share(trainer.ipc(), model_of(1), "cpu")
    gpu.damage()
    receiver = gpu.process()
    with pytest.raises(DamagedWeightsError):
        receive(receiver.ipc(), weights, "cpu")
    assert receiver.opened == set()


def test_receive_from_a_dead_trainer_raises(gpu, trainer):
    weights, _ = share(trainer.ipc(), model_of(1), "cpu")
    trainer.die()
    with pytest.raises(SmDriverError):
        receive(gpu.process().ipc(), weights, "cpu")


def test_require_gpu_without_a_gpu_raises():
    with pytest.raises(UserError, match=r"hand_over: cuda-ipc needs jobs that run on a GPU.*cpu here; use"):
        require_gpu("cpu")

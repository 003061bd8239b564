"""Tests of sharing weights from trainer to inference, over a fake of CUDA IPC."""

import pickle

import pytest
import torch
from fake_ipc import FakeGpu

from ekya.core.errors import UserError
from ekya.core.units import ModelVersion
from ekya.gpu.cuda_ipc import require_gpu
from ekya.gpu.green.sm_driver import SmDriverError
from ekya.models.edge.flat import DamagedWeightsError
from ekya.models.edge.model import build_edge_model
from ekya.runtime.cuda_ipc_transfer import CudaIpcSender, borrow

ONE, TWO = ModelVersion(1), ModelVersion(2)


@pytest.fixture
def gpu():
    return FakeGpu()


@pytest.fixture
def trainer(gpu):
    return gpu.process()


@pytest.fixture
def lender(trainer):
    return CudaIpcSender(trainer.ipc(), "cpu")


def model_of(seed):
    return build_edge_model(("car", "bus"), 0, seed, "shufflenet_v2_x1_0")


def same(one, other):
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(own, its) for own, its in pairs)


def test_what_travels_is_small_and_brings_the_weights_to_the_bit(gpu, lender):
    lent = pickle.dumps(lender.lend(ONE, model_of(1), 0.5))
    assert len(lent) < 64 * 1024
    assert same(borrow(gpu.process().ipc(), pickle.loads(lent), "cpu"), model_of(1))


def test_the_weights_are_the_takers_own_and_outlive_the_loan(gpu, trainer, lender):
    model = model_of(1)
    taken = borrow(gpu.process().ipc(), lender.lend(ONE, model, 0.5), "cpu")
    assert lender.end(ONE) == (model, 0.5)
    assert trainer.memory == {}
    trainer.die()
    assert same(taken, model)


def test_loans_end_one_by_one_and_once(trainer, lender):
    lender.lend(ONE, model_of(1), 0.5)
    lender.lend(TWO, model_of(2), 0.6)
    _, accuracy = lender.end(ONE)
    assert accuracy == 0.5
    assert len(trainer.memory) == 1
    assert lender.end(ONE) is None
    assert lender.end(TWO) is not None
    assert trainer.memory == {}


def test_weights_that_were_damaged_on_the_way_are_refused(gpu, lender):
    lent = lender.lend(ONE, model_of(1), 0.5)
    gpu.damage()
    taker = gpu.process()
    with pytest.raises(DamagedWeightsError):
        borrow(taker.ipc(), lent, "cpu")
    assert taker.opened == set()


def test_of_a_dead_trainer_nothing_can_be_borrowed(gpu, trainer, lender):
    lent = lender.lend(ONE, model_of(1), 0.5)
    trainer.die()
    with pytest.raises(SmDriverError):
        borrow(gpu.process().ipc(), lent, "cpu")


def test_it_is_refused_where_jobs_run_on_no_gpu():
    with pytest.raises(UserError, match=r"hand_over: cuda-ipc needs jobs that run on a GPU.*cpu here; use"):
        require_gpu("cpu")

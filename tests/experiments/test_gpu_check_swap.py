"""Tests of the check of a hot swap, with threads instead of processes."""

import importlib
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from bars import tiny_trunk

from ekya.models.edge.architecture_table import FASTESTDET
from ekya.models.edge.architectures import EDGE_MODELS

check = importlib.import_module("gpu_check_swap")

FOUND = check.Measured((20.0, 30.0), (0.1, 0.5), (1.0, 1.0), (1.2, 2.0), 1e-6, 0.8, 0.0, (7, 7))


@pytest.fixture
def models():
    EDGE_MODELS["tiny"] = tiny_trunk
    yield [check.settled(check.build_edge_model(check.CLASSES, 0, seed, "tiny"), seed) for seed in range(2)]
    del EDGE_MODELS["tiny"]


def use(models, monkeypatch):
    """Replaces the check's models by these."""
    monkeypatch.setattr(check, "build_edge_model", lambda _classes, _version, seed, _name: models[seed])
    monkeypatch.setattr(check, "settled", lambda model, _seed: model)


def findings(measured):
    return tuple(check.findings_of("two processes", "resnet18", measured))


def test_swap_delivers_weights_and_model_answers(models, monkeypatch):
    # torch has one random generator for all threads.
    use(models, monkeypatch)
    threads = SimpleNamespace(Pipe=check.multiprocessing.Pipe, Process=threading.Thread)
    monkeypatch.setattr(check.multiprocessing, "get_context", lambda _: threads)
    measured = check.measure("cpu", "tiny", 2)
    assert len(measured.delays_ms) == len(measured.stalls_ms) == 2
    assert all(delay > 0 for delay in measured.delays_ms)
    assert all(stall < delay for stall, delay in zip(measured.stalls_ms, measured.delays_ms, strict=True))
    assert findings(measured)[1].met
    assert list(measured.steps_s) == ["models", "first answers", "wait for the trainer", "swaps"]


def test_swap_trainer_that_dies_is_reported_at_once(models, monkeypatch):
    use(models, monkeypatch)
    dead = SimpleNamespace(start=lambda: None, is_alive=lambda: False, join=lambda _: None, exitcode=-7)
    processes = SimpleNamespace(Pipe=check.multiprocessing.Pipe, Process=lambda **_: dead)
    monkeypatch.setattr(check.multiprocessing, "get_context", lambda _: processes)
    with pytest.raises(RuntimeError, match="ended with -7"):
        check.measure("cpu", "tiny", 1)


def test_swap_pause_or_delay_over_limit_is_unmet():
    assert [one.met for one in findings(FOUND)] == [True, True]
    assert not findings(replace(FOUND, stalls_ms=(1.5, 1.6)))[0].met
    assert not findings(replace(FOUND, delays_ms=(20.0, 1001.0)))[0].met


def test_swap_answers_of_a_detector_vary_with_its_weights():
    """They must differ clearly, or a swap that did not happen would not be noticed."""
    one, other = (
        check._answers_of(check._predictor(check._model(FASTESTDET, seed), "cpu")) for seed in range(2)
    )
    assert one.shape == (484, 5), "22 by 22 cells of 352 pixels"
    assert check._apart(one, other) > 10 * check.SAME


@pytest.mark.parametrize(
    "wrong", [{"off": 0.1}, {"moved": 0.001}, {"back": 1e-9}, {"processes": (7, 8)}], ids=str
)
def test_swap_different_answers_or_process_are_unmet(wrong):
    assert not findings(replace(FOUND, **wrong))[1].met

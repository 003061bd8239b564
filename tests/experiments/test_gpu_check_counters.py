"""Tests of the checks of counters and memory, on a fake GPU: each check must be able to fail."""

import importlib
from dataclasses import replace
from unittest.mock import Mock

import pytest
from fake_reader import Reader

from ekya.core.gpus import GpuUse
from ekya.gpu.nvml import Gpu, GpuInventory
from ekya.planning.sizing.gpu_memory import CONTEXT_BYTES

checks = importlib.import_module("gpu_check_counters")

USE = GpuUse(0, "GPU-1", 5_000_000, 8, 4, 5, 0.9, "sm-utilization", 500.0, 90.0, 2500.0, "counter", 11)
IDLE = replace(USE, sm_activity=0.0, power_w=90.0, energy_j=450.0)
ONE_GPU = GpuInventory((Gpu(0, "a GPU", 8 << 30, 7 << 30, "GPU-1"),), None, "one")


@pytest.fixture
def on_cpu(monkeypatch):
    monkeypatch.setattr(checks, "DEVICE", "cpu")
    monkeypatch.setattr(checks, "IDLE_S", 0.01)
    monkeypatch.setattr(checks, "BUSY_S", 0.02)
    monkeypatch.setattr(checks, "TRAINING", 24)
    monkeypatch.setattr(checks, "VALIDATION", 6)
    monkeypatch.setattr(checks, "list_gpus", lambda: ONE_GPU)


def test_counters_complete_gpu_is_met():
    findings = list(checks.counter_findings(IDLE, USE))
    assert [finding.met for finding in findings] == [True, True]
    assert findings[1].measured == "2500 J by counter, 500 W after 90 W"


@pytest.mark.parametrize(
    ("changes", "unmet"),
    [
        ({"sm_activity": 0.5}, 0),
        ({"sm_activity": None, "sm_from": ""}, 0),
        ({"sm_from": "kernel-utilization"}, 0),
        ({"energy_from": "power"}, 1),
        ({"energy_j": None, "power_w": None, "energy_from": ""}, 1),
        ({"power_w": 80.0}, 1),
    ],
)
def test_counters_missing_or_low_value_is_unmet(changes, unmet):
    findings = list(checks.counter_findings(IDLE, replace(USE, **changes)))
    assert [finding.met for finding in findings] == [place != unmet for place in (0, 1)]


def test_counters_are_read_while_idle_and_busy(on_cpu, monkeypatch):
    monkeypatch.setattr(checks, "NvmlReader", lambda _: Reader())
    activity, energy = checks.counters()
    assert activity.met
    assert energy.figures["energy_j"] > 0


@pytest.mark.parametrize(("taken", "held", "met"), [(100 << 20, 0.9, True), (CONTEXT_BYTES + 1, 1.3, False)])
def test_memory_is_compared_with_estimate(on_cpu, monkeypatch, taken, held, met):
    monkeypatch.setattr(checks, "NvmlReader", lambda _: Reader(1 << 30, (1 << 30) + taken))
    estimates = []
    estimate = checks.retraining_bytes
    monkeypatch.setattr(
        checks, "retraining_bytes", lambda *told: estimates.append(estimate(*told)) or estimates[-1]
    )
    monkeypatch.setattr(checks, "peak_bytes", lambda: int(held * estimates[-1]))
    *findings, refused = checks.memory()
    assert [finding.met for finding in findings] == [met] * 3
    assert refused.met, "torch on the CPU refuses such an allocation too"


def test_memory_error_of_another_kind_is_unmet(on_cpu, monkeypatch):
    monkeypatch.setattr(checks, "NvmlReader", lambda _: Reader(1 << 30, 1 << 30))
    monkeypatch.setattr(checks, "Retraining", Mock())
    monkeypatch.setattr(checks, "is_out_of_memory", lambda _: False)
    *_, finding = checks.memory()
    assert not finding.met
    assert "something else" in finding.measured


def test_counters_without_gpu_raises_reason(on_cpu, monkeypatch):
    monkeypatch.setattr(checks, "list_gpus", lambda: GpuInventory((), None, "no driver"))
    with pytest.raises(RuntimeError, match="no driver"):
        next(checks.counters())

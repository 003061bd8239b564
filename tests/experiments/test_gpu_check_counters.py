"""Tests of the checks of counters and memory, on a fake GPU: each check must be able to fail."""

import importlib
from dataclasses import replace

import pytest
from fake_reader import Reader

from ekya.core.gpus import GpuUse
from ekya.gpu.nvml import GpuInventory
from ekya.planning.profiling.gpu_memory import CONTEXT_BYTES

checks = importlib.import_module("gpu_check_counters")
CHECKS = importlib.import_module("gpu_check").CHECKS

USE = GpuUse(0, "GPU-1", 5_000_000, 8, 4, 5, 0.9, "sm-utilization", 500.0, 90.0, 2500.0, "counter", 11)
IDLE = replace(USE, sm_activity=0.0, power_w=90.0, energy_j=450.0)


@pytest.fixture
def on_cpu(monkeypatch):
    monkeypatch.setattr(checks, "DEVICE", "cpu")
    monkeypatch.setattr(checks, "IDLE_S", 0.01)
    monkeypatch.setattr(checks, "BUSY_S", 0.02)
    monkeypatch.setattr(checks, "TRAINING", 24)
    monkeypatch.setattr(checks, "VALIDATION", 6)


def test_its_checks_are_listed():
    listed = {check.function for check in CHECKS if check.module == "gpu_check_counters"}
    assert listed == {"counters", "memory"}
    assert all(callable(getattr(checks, name)) for name in listed)


def test_a_gpu_that_tells_everything_is_as_expected():
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
def test_what_is_missing_or_too_little_is_not_met(changes, unmet):
    findings = list(checks.counter_findings(IDLE, replace(USE, **changes)))
    assert [finding.met for finding in findings] == [place != unmet for place in (0, 1)]


def test_counters_are_read_while_it_rests_and_while_it_works(on_cpu, monkeypatch):
    monkeypatch.setattr(checks, "_reader", Reader)
    activity, energy = checks.counters()
    assert activity.met
    assert energy.figures["energy_j"] > 0


@pytest.mark.parametrize(("taken", "held", "met"), [(100 << 20, 0.9, True), (CONTEXT_BYTES + 1, 1.3, False)])
def test_memory_is_held_against_what_was_estimated(on_cpu, monkeypatch, taken, held, met):
    monkeypatch.setattr(checks, "_reader", lambda: Reader(1 << 30, (1 << 30) + taken))
    estimates = []
    estimate = checks.retraining_bytes
    monkeypatch.setattr(
        checks, "retraining_bytes", lambda *told: estimates.append(estimate(*told)) or estimates[-1]
    )
    monkeypatch.setattr(checks, "peak_bytes", lambda: int(held * estimates[-1]))
    *findings, refused = checks.memory()
    assert [finding.met for finding in findings] == [met] * 3
    assert refused.met, "torch on the CPU refuses such an allocation too"


def test_an_error_that_is_no_lack_of_memory_is_not_taken_for_one(on_cpu, monkeypatch):
    monkeypatch.setattr(checks, "is_out_of_memory", lambda _: False)
    finding = checks._out_of_memory()
    assert not finding.met
    assert "something else" in finding.measured


def test_without_a_gpu_the_reason_is_given(monkeypatch):
    monkeypatch.setattr(checks, "list_gpus", lambda: GpuInventory((), None, "no driver"))
    with pytest.raises(RuntimeError, match="no driver"):
        checks._reader()

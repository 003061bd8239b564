"""The GPUs in the summary."""

from dataclasses import replace

from ekya.core import events as ev
from ekya.core.commands import StepRecord
from ekya.core.gpus import GpuUse
from ekya.core.units import StreamId
from ekya.results.metrics.gpus import gpu_facts

A, B = StreamId("a"), StreamId("b")
S = 1_000_000
USE = GpuUse(0, "GPU-1", 10 * S, 1000, 400, 500, 0.5, "sm-utilization", 150.0, 1500.0, "counter", 11)


def measured(window, *gpus):
    return ev.GpuMeasured((window + 1) * 10 * S, window, gpus)


def used(t_s, stream, share_milli, role=ev.Role.INFERENCE):
    return ev.ShareMeasured(round(t_s * S), stream, role, share_milli)


def turns(*events):
    return [StepRecord(event.t_us, (event,), None, ()) for event in events]


def test_gpu_facts_add_up_windows():
    later = replace(
        USE, covered_us=30 * S, memory_peak_bytes=700, sm_activity=0.1, power_w=110.0, energy_j=3300.0
    )
    facts = gpu_facts(turns(used(10, A, 500), measured(0, USE), measured(3, later)))
    assert facts == {
        "0": {
            "uuid": "GPU-1",
            "measured_s": 40.0,
            "memory_total_bytes": 1000,
            "memory_peak_bytes": 700,
            "memory_mean_bytes": 400,
            "sm_activity": 0.2,
            "sm_from": "sm-utilization",
            "power_w": 120.0,
            "energy_j": 4800.0,
            "energy_from": "counter",
        }
    }


def test_gpu_facts_unmeasured_values_are_null():
    bare = replace(USE, sm_activity=None, sm_from="", power_w=None, energy_j=None, energy_from="")
    facts = gpu_facts(turns(measured(0, bare)))["0"]
    assert {name for name, value in facts.items() if value is None} == {
        "sm_activity",
        "sm_from",
        "power_w",
        "energy_j",
        "energy_from",
    }


def test_gpu_facts_different_ways_are_both_named():
    facts = gpu_facts(turns(measured(0, USE), measured(1, replace(USE, energy_from="power"))))
    assert facts["0"]["energy_from"] == "counter and power"


def test_gpu_facts_without_gpu_are_empty():
    assert gpu_facts(turns(used(10, A, 500))) == {}

"""Modelled energy of the jobs in a window, and the GPUs in the summary."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekya.core import events as ev
from ekya.core.commands import StepRecord
from ekya.core.gpus import GpuUse
from ekya.core.units import StreamId
from ekya.results.metrics.energy import JobPlaces, gpu_facts, modelled_energy

A, B = StreamId("a"), StreamId("b")
S = 1_000_000
PLACES = JobPlaces({A: 0, B: 0}, 0)
USE = GpuUse(0, "GPU-1", 10 * S, 1000, 400, 500, 0.5, "sm-utilization", 150.0, 60.0, 1500.0, "counter", 11)


def measured(window, *gpus):
    return ev.GpuMeasured((window + 1) * 10 * S, window, gpus)


def used(t_s, stream, share_milli, role=ev.Role.INFERENCE):
    return ev.ShareMeasured(round(t_s * S), stream, role, share_milli)


def labels(t_s, stream, gpu_s):
    return ev.LabelsReady(t_s * S, stream, 1, 10, 5, 0.5, False, gpu_s)


def turns(*events):
    return [StepRecord(event.t_us, (event,), None, ()) for event in events]


def test_energy_above_idle_is_divided_by_used_gpu_time():
    """600 J of 1500 J are idle; of 9 GPU-seconds inference used 2 and 1, retraining 4, labelling 2."""
    (energy,) = modelled_energy(
        turns(
            ev.StreamAdded(0, A, ()),
            used(5, A, 200),
            used(5, B, 0),
            labels(6, B, 2.0),
            used(10, A, 200),
            used(10, B, 200),
            used(10, A, 400, ev.Role.RETRAINING),
            measured(0, USE),
        ),
        PLACES,
    )
    assert (energy.window, energy.gpu, energy.idle_j, energy.unexplained_j) == (0, 0, 600.0, 0.0)
    assert energy.jobs_j == pytest.approx(
        {
            (A, "inference"): 200.0,
            (A, "retraining"): 400.0,
            (B, "inference"): 100.0,
            (B, "preparation"): 200.0,
        }
    )


def test_energy_counts_uses_of_its_own_window_only():
    first, second = modelled_energy(
        turns(
            ev.StreamAdded(0, A, ()),
            used(10, A, 500),
            measured(0, USE),
            used(12, B, 100),
            used(20, A, 250),
            measured(1, USE),
        ),
        PLACES,
    )
    assert first.jobs_j == {(A, "inference"): 900.0}
    assert second.jobs_j == pytest.approx(
        {(A, "inference"): 900 * 2.5 / 3.7, (B, "inference"): 900 * 1.2 / 3.7}
    )


def test_energy_two_gpus_charge_their_own_jobs():
    second = replace(USE, gpu=1, uuid="GPU-2")
    energies = modelled_energy(
        turns(used(10, A, 500), used(10, B, 100), labels(10, A, 1.0), measured(0, USE, second)),
        JobPlaces({A: 0, B: 1}, 1),
    )
    assert [set(energy.jobs_j) for energy in energies] == [
        {(A, "inference")},
        {(B, "inference"), (A, "preparation")},
    ]


def test_energy_without_jobs_is_unexplained():
    (energy,) = modelled_energy(turns(used(10, A, 0), measured(0, USE)), PLACES)
    assert (energy.idle_j, energy.jobs_j, energy.unexplained_j) == (600.0, {}, 900.0)


@pytest.mark.parametrize("lacking", [{"energy_j": None}, {"least_power_w": None}])
def test_energy_without_measured_power_is_not_modelled(lacking):
    assert modelled_energy(turns(used(10, A, 500), measured(0, replace(USE, **lacking))), PLACES) == ()


@given(
    st.lists(st.tuples(st.sampled_from([A, B]), st.sampled_from(ev.Role), st.integers(0, 1000)), max_size=6),
    st.floats(0, 5000),
    st.floats(0, 300),
)
def test_energy_parts_add_up_to_the_whole(shares, energy_j, least_power_w):
    gpu = replace(USE, energy_j=energy_j, least_power_w=least_power_w)
    events = [used(1 + at, stream, milli, role) for at, (stream, role, milli) in enumerate(shares)]
    (energy,) = modelled_energy(turns(*events, measured(0, gpu)), PLACES)
    parts = [energy.idle_j, energy.unexplained_j, *energy.jobs_j.values()]
    assert sum(parts) == pytest.approx(energy_j, abs=1e-6)
    assert min(parts) >= 0.0


def test_gpu_facts_add_up_windows():
    later = replace(
        USE, covered_us=30 * S, memory_peak_bytes=700, sm_activity=0.1, power_w=110.0, energy_j=3300.0
    )
    facts = gpu_facts(turns(used(10, A, 500), measured(0, USE), measured(3, later)), PLACES)
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
            "modelled_energy_j": {
                "idle": 2400.0,
                "unexplained": 1500.0,
                "jobs": {"a": {"inference": 900.0}},
            },
        }
    }


def test_gpu_facts_unmeasured_values_are_null():
    bare = replace(USE, sm_activity=None, sm_from="", power_w=None, energy_j=None, energy_from="")
    facts = gpu_facts(turns(measured(0, bare)), PLACES)["0"]
    assert {name for name, value in facts.items() if value is None} == {
        "sm_activity",
        "sm_from",
        "power_w",
        "energy_j",
        "energy_from",
        "modelled_energy_j",
    }


def test_gpu_facts_different_ways_are_both_named():
    facts = gpu_facts(turns(measured(0, USE), measured(1, replace(USE, energy_from="power"))), PLACES)
    assert facts["0"]["energy_from"] == "counter and power"


def test_gpu_facts_without_gpu_are_empty():
    assert gpu_facts(turns(used(10, A, 500)), PLACES) == {}

"""Workloads of ANDREAS's figures, and the physics of its world."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ekya.fleet.papers.andreas.workload import (
    FAMILIES,
    FOUR_GPUS,
    SCENARIOS,
    TURING,
    TWO_GPUS,
    V100,
    WEIGHTS_EUR_S,
    AndreasPhysics,
    andreas_workload,
    armida_workload,
    node,
    places,
)
from ekya.fleet.policy.assignment import JobAssignment, NodePart
from ekya.fleet.policy.job import Left, Tardiness, TrainJob
from ekya.fleet.policy.places import JobName, NodeName
from ekya.fleet.policy.view import FleetView, JobState


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_half_the_nodes_are_of_each_kind_and_ten_jobs_come_for_each(scenario) -> None:
    jobs, places = andreas_workload(scenario, 10, 1)
    assert Counter(node.kind for node in places.nodes.values()) == {V100: 5, TURING: 5}
    assert {(node.kind, node.gpus) for node in places.nodes.values()} == set(scenario.gpus)
    assert len(jobs) == 100
    assert {job.name.split("-")[0] for job in jobs} == {family.name for family in FAMILIES}


def test_a_seed_draws_the_same_jobs_in_both_scenarios_and_another_draws_others() -> None:
    jobs, _ = andreas_workload(TWO_GPUS, 10, 1)
    assert andreas_workload(FOUR_GPUS, 10, 1)[0] == jobs
    assert andreas_workload(TWO_GPUS, 10, 2)[0] != jobs


@pytest.mark.parametrize("family", FAMILIES)
def test_more_gpus_are_faster_by_less_than_their_number_and_turing_is_slower(family) -> None:
    for batch in family.batches:
        epoch_us = family.epoch_us(batch)
        for gpus in range(1, 4):
            for kind in (V100, TURING):
                gain = epoch_us[kind, gpus] / epoch_us[kind, gpus + 1]
                assert 1 < gain < (gpus + 1) / gpus
            assert epoch_us[V100, gpus] < epoch_us[TURING, gpus]
    smallest, largest = family.batches[0], family.batches[-1]
    assert family.epoch_us(largest)[V100, 1] < family.epoch_us(smallest)[V100, 1]


@settings(max_examples=10)
@given(st.integers(0, 1000))
def test_a_second_late_costs_more_than_a_second_of_any_node(seed) -> None:
    jobs, places = andreas_workload(FOUR_GPUS, 4, seed)
    dearest = max(places.cost_a_second(node, node.gpus) for node in places.nodes.values())
    assert dearest < WEIGHTS_EUR_S[0] <= min(job.waiting.per_s for job in jobs)


def test_arrivals_come_in_two_bursts() -> None:
    jobs, _ = andreas_workload(TWO_GPUS, 100, 1)
    at_s = np.array([job.arrives_us for job in jobs]) / 1e6
    lengths_s = [part[-1] - part[0] for part in np.split(at_s, 4)]
    assert lengths_s[0] == pytest.approx(7500, rel=0.2)
    assert lengths_s[1] == pytest.approx(22500, rel=0.2)
    assert lengths_s[2] < lengths_s[1] / 2 < lengths_s[3]


def test_the_validation_has_eight_jobs_on_three_nodes() -> None:
    jobs, places = armida_workload(1)
    assert [job.arrives_us // 1_000_000 for job in jobs] == [1200 * place for place in range(8)]
    assert {(name, node.gpus) for name, node in places.nodes.items()} == {
        ("armida-05", 1),
        ("armida-06", 2),
        ("armida-07", 1),
    }


def test_a_higher_load_brings_the_same_jobs_faster() -> None:
    jobs, _ = andreas_workload(TWO_GPUS, 10, 1)
    faster, _ = andreas_workload(TWO_GPUS, 10, 1, load=2.0)
    assert [job.epochs for job in faster] == [job.epochs for job in jobs]
    assert [job.arrives_us for job in faster] == pytest.approx([job.arrives_us / 2 for job in jobs], abs=1)


S = 1_000_000
JOB = TrainJob(
    JobName("a"),
    0,
    10,
    Tardiness(1000.0, 1e-4),
    epoch_us={(V100, 1): 60 * S, (V100, 2): 36 * S, (TURING, 1): 100 * S},
)
PLACES = places((node("big", V100, 2), node("small", TURING, 1)))


def view(left=None):
    return FleetView(0, (JobState(JOB, left or Left.all_of(JOB)),), PLACES)


def on(name, gpus):
    return JobAssignment(JOB.name, (NodePart(NodeName(name), gpus),), "why")


def stage(physics, name="big", gpus=1, left=None):
    seen = view(left)
    return physics.stage(seen, seen.jobs[0], on(name, gpus), ())


@pytest.mark.parametrize(("where", "takes_s"), [(("big", 1), 600), (("big", 2), 360), (("small", 1), 1000)])
def test_a_job_takes_what_its_profile_says(where, takes_s) -> None:
    assert stage(AndreasPhysics(), *where).takes_us == takes_s * S


def test_an_interruption_goes_back_to_the_last_epoch() -> None:
    kept = stage(AndreasPhysics()).kept(150 * S)
    assert (kept.left.epochs, kept.left.begun, kept.lost_us) == (8, 0.0, 30 * S)


def test_the_papers_simulator_loses_nothing() -> None:
    physics = AndreasPhysics(snapshots=False)
    kept = stage(physics).kept(150 * S)
    assert (kept.left.epochs, kept.left.begun, kept.lost_us) == (8, 0.5, 0)
    assert stage(physics, "small", 1, kept.left).takes_us == 750 * S


def test_a_job_may_be_slower_than_its_profile() -> None:
    slow = AndreasPhysics(pace={JOB.name: 1.5})
    assert stage(slow).takes_us == 900 * S
    assert stage(slow).kept(200 * S).left.epochs == 8


@given(st.integers(0, 600 * S), st.booleans())
def test_what_is_kept_and_what_is_lost_is_all_that_was_worked(worked_us, snapshots) -> None:
    kept = stage(AndreasPhysics(snapshots=snapshots)).kept(worked_us)
    assert kept.left.epochs >= 1
    done_us = (10 - kept.left.epochs + kept.left.begun) * 60 * S
    assert done_us + kept.lost_us == pytest.approx(worked_us, abs=2)


@pytest.mark.parametrize(
    ("assignment", "fault"),
    [
        (on("small", 2), "a has no profile of 2 GPUs of TURING"),
        (JobAssignment(JOB.name, (NodePart("big", 1), NodePart("small", 1)), "why"), "a is on 2 nodes"),
    ],
)
def test_what_was_not_profiled_is_a_fault(assignment, fault) -> None:
    assert AndreasPhysics().faults(view(), [assignment]) == [fault]
    assert AndreasPhysics().faults(view(), [on("big", 2)]) == []

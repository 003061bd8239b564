"""ANDREAS's simulated world, followed by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekya.fleet.papers.andreas.workload import TURING, V100, AndreasPhysics, node, places
from ekya.fleet.policy.assignment import JobAssignment, NodePart
from ekya.fleet.policy.job import Left, Tardiness, TrainJob
from ekya.fleet.policy.places import JobName, NodeName
from ekya.fleet.policy.view import FleetView, JobState

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


@pytest.mark.parametrize("snapshots", [False, True])
def test_a_node_that_fails_goes_back_to_the_last_epoch_in_either_world(snapshots) -> None:
    begun = Left(8, {}, 0.5)
    left = stage(AndreasPhysics(snapshots=snapshots), left=begun).failed(45 * S)
    assert (left.left.epochs, left.left.begun, left.lost_us) == (7, 0.0, 15 * S)


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

"""Engine of a simulated fleet, with a policy and laws that can be followed by hand."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ekya.fleet.policy.assignment import Decision, JobAssignment, NodePart
from ekya.fleet.policy.job import Tardiness, TrainJob
from ekya.fleet.policy.places import JobName, Node, NodeName, Places, SiteName
from ekya.fleet.sim.engine import BrokenConstraintError, FleetEngine, Kept, Stage

S = 1_000_000
HERE = SiteName("here")


class EpochsOf:
    """An epoch takes ten seconds on one GPU, and fetching a snapshot takes three."""

    def faults(self, view, assignments):
        return []

    def stage(self, view, state, assignment, others):
        left = state.left.epochs - 1
        takes_us = 10 * S // sum(part.gpus for part in assignment.parts)
        return Stage(takes_us, replace(state.left, epochs=left) if left else None, 5.0, 2.0, resume_us=3 * S)


class InTurn:
    """Gives jobs one GPU each in the order of arrival, or in the reverse order if ``newest_first``."""

    name = "in-turn"

    def __init__(self, newest_first=False, on_events=True, every_us=None, reason="it is its turn"):
        self.newest_first, self.on_events, self.every_us = newest_first, on_events, every_us
        self.reason = reason

    def decide(self, view):
        free = {name: node.gpus for name, node in sorted(view.places.nodes.items())}
        states = view.jobs[::-1] if self.newest_first else view.jobs
        given = []
        for state in states:
            stays = [part.node for part in (state.assignment.parts if state.assignment else ())]
            node = next((name for name in [*stays, *free] if free.get(name, 0) > 0), None)
            if node is not None:
                free[node] -= 1
                given.append(JobAssignment(state.job.name, (NodePart(node, gpus=1),), self.reason))
        waiting = {state.job.name for state in states} - {assignment.job for assignment in given}
        return Decision(tuple(given), dict.fromkeys(waiting, "all GPUs are taken"))


def places(**gpus):
    nodes = {
        NodeName(name): Node(
            NodeName(name), HERE, "kind", count, (0.0, *[100.0 * (n + 1) for n in range(count)])
        )
        for name, count in gpus.items()
    }
    return Places(nodes, kwh_cost=0.36, pue=2.0)


def job(name, at_s, epochs, due_s=1000.0):
    return TrainJob(JobName(name), at_s * S, epochs, Tardiness(due_s, 1.0))


def run(jobs, where, policy=None, **options):
    return FleetEngine(policy or InTurn(), EpochsOf(), jobs, where, **options).run()


def times(outcome):
    return {
        name: (
            None if record.started_us is None else record.started_us / S,
            record.ended_us and record.ended_us / S,
        )
        for name, record in outcome.jobs.items()
    }


def test_jobs_run_when_there_is_room_and_in_the_order_of_their_coming() -> None:
    outcome = run([job("b", 5, 2), job("a", 0, 3)], places(one=1))
    assert times(outcome) == {"a": (0, 30), "b": (30, 50)}
    assert outcome.makespan_s == 50
    assert not outcome.unfinished


def test_everything_is_paid_for() -> None:
    outcome = run([job("a", 0, 3, due_s=25), job("b", 0, 1)], places(one=2))
    record = outcome.jobs[JobName("a")]
    assert outcome.energy_j == {"one": pytest.approx(10 * 200 + 20 * 100)}
    assert outcome.energy_cost == pytest.approx(4000 / 3.6e6 * 0.36 * 2)
    assert (record.tardiness_s(outcome.ended_us), outcome.missed) == (5, 1)
    assert outcome.waiting_cost == pytest.approx(5)
    assert (record.moved_mb, record.link_cost, outcome.link_cost) == (15, 6, 8)
    assert outcome.total_cost == pytest.approx(13 + outcome.energy_cost)


def test_who_is_sent_back_goes_on_from_its_last_snapshot() -> None:
    outcome = run([job("a", 0, 3), job("b", 14, 1)], places(one=1), InTurn(newest_first=True))
    # Four seconds of a's second epoch are lost, fetching its snapshot takes three, and two epochs are left.
    assert times(outcome) == {"a": (0, 47), "b": (14, 24)}
    record = outcome.jobs[JobName("a")]
    assert (record.preemptions, record.migrations, record.lost_us) == (1, 0, 4 * S)


class SnapshotsOnTheWay(EpochsOf):
    """All epochs are one stage, and each ends with a snapshot."""

    def stage(self, view, state, assignment, others):
        def kept(worked_us):
            done, lost_us = divmod(worked_us, 10 * S)
            return Kept(replace(state.left, epochs=state.left.epochs - done), lost_us)

        return Stage(10 * S * state.left.epochs, None, kept=kept, resume_us=3 * S)


def test_a_stage_with_snapshots_on_the_way_keeps_what_they_hold() -> None:
    seen = []

    class Watching(InTurn):
        def decide(self, view):
            seen.append([(state.job.name, state.left.epochs) for state in view.jobs])
            return super().decide(view)

    jobs = [job("a", 0, 3), job("b", 14, 1), job("c", 26, 1)]
    outcome = FleetEngine(Watching(newest_first=True), SnapshotsOnTheWay(), jobs, places(one=1)).run()
    # b is done when c arrives 12 s later; a fetches its snapshot twice, once in vain.
    assert times(outcome) == {"a": (0, 59), "b": (14, 24), "c": (26, 36)}
    assert outcome.jobs[JobName("a")].lost_us == (4 + 2) * S
    assert [dict(jobs).get("a") for jobs in seen] == [3, 2, 2, 2, 2]


def test_with_slots_the_policy_is_asked_when_they_begin() -> None:
    class Slots(EpochsOf):
        def stage(self, view, state, assignment, others):
            return replace(super().stage(view, state, assignment, others), takes_us=20 * S, resume_us=0)

    policy = InTurn(on_events=False, every_us=20 * S)
    outcome = FleetEngine(policy, Slots(), [job("a", 3, 2), job("b", 20, 1)], places(one=1)).run()
    assert times(outcome) == {"a": (20, 60), "b": (60, 80)}
    assert len(outcome.decide_s) == 3


class Noting(InTurn):
    """Also notes the time of each call."""

    def __init__(self, **options):
        super().__init__(**options)
        self.seen = []

    def decide(self, view):
        self.seen.append(view.now_us / S)
        return super().decide(view)


def called_at(**calls):
    policy = Noting(**calls)
    run([job("a", 3, 2), job("b", 15, 1)], places(one=1), policy)
    return policy.seen


def test_a_policy_is_called_on_events_periodically_or_both() -> None:
    assert called_at(on_events=True) == [3, 15, 23]
    # Without events a job waits for the next call, and ends are noticed there.
    assert called_at(on_events=False, every_us=10 * S) == [10, 20, 30]
    assert called_at(on_events=True, every_us=10 * S) == [3, 10, 15, 20, 23, 30]
    with pytest.raises(ValueError, match="in-turn is called neither on events nor periodically"):
        called_at(on_events=False)


def test_a_call_without_a_change_interrupts_nobody() -> None:
    plain, often = (
        run([job("a", 3, 2), job("b", 5, 2)], places(one=1), InTurn(every_us=every_us))
        for every_us in (None, S)
    )
    assert times(often) == times(plain)


def test_periodic_calls_end_where_no_job_can_ever_start() -> None:
    for on_events in (True, False):
        policy = InTurn(on_events=on_events, every_us=10 * S)
        outcome = run([job("a", 0, 1)], places(one=0), policy)
        assert outcome.unfinished == ("a",)


class Says:
    name, on_events, every_us = "says", True, None

    def __init__(self, *assignments):
        self.assignments = assignments

    def decide(self, view):
        return Decision(self.assignments)


@pytest.mark.parametrize(
    ("assignments", "fault"),
    [
        ((), "a has no reason"),
        ([JobAssignment("a", (NodePart("one", 1),), "")], "a has no reason"),
        ([JobAssignment("a", (NodePart("one", 2),), "why")], "one has 1 GPUs, and 2 are given out"),
        ([JobAssignment("a", (NodePart("two", 1),), "why")], "a is on two, which is not there"),
        ([JobAssignment("a", (), "why")], "a is assigned to no node"),
        ([JobAssignment("a", (NodePart("one"),), "why")] * 2, "a is assigned twice"),
        (
            [JobAssignment("a", (NodePart("one"),), "why"), JobAssignment("c", (NodePart("one"),), "why")],
            "c is assigned twice",
        ),
    ],
)
def test_a_policy_that_gives_out_what_is_not_there_is_found_out(assignments, fault) -> None:
    with pytest.raises(BrokenConstraintError, match=f"says at 0 s: .*{fault}"):
        run([job("a", 0, 1)], places(one=1), Says(*assignments))


some_jobs = st.lists(st.tuples(st.integers(0, 90), st.integers(1, 4)), min_size=1, max_size=6)


@settings(max_examples=60)
@given(some_jobs, st.booleans())
def test_every_job_is_done_in_the_end_and_no_work_for_nothing(drawn, newest) -> None:
    jobs = [job(f"j{place}", at_s, epochs) for place, (at_s, epochs) in enumerate(drawn)]
    where = places(one=1, two=2)
    outcome = run(jobs, where, InTurn(newest))
    assert not outcome.unfinished
    again = run(jobs, where, InTurn(newest))
    assert times(again) == times(outcome)
    for record in outcome.jobs.values():
        worked_s = 10 * record.job.epochs + record.lost_us / S
        assert record.response_s(outcome.ended_us) >= worked_s
        assert record.moved_mb >= 5 * record.job.epochs

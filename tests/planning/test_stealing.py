"""The fast thief against Algorithm 1 as printed: the same shares for every job."""

from collections.abc import Mapping

from hypothesis import given, settings
from views import window_views

from ekya.core.view import Objective
from ekya.planning.schedulers.allocation import (
    Job,
    JobKind,
    choices_by_stream,
    fair_shares_milli,
    jobs_of,
    kept_floors,
    largest_share_milli,
    lift_to_floors,
)
from ekya.planning.schedulers.pick import SAME
from ekya.planning.schedulers.reasons import one_phase_plan
from ekya.planning.schedulers.thief import Thief


def values_of(choices, shares: Mapping[Job, int]):
    return {
        stream: choice.value(
            shares.get(Job(stream, JobKind.RETRAINING), 0), shares[Job(stream, JobKind.INFERENCE)]
        )
        for stream, choice in choices.items()
    }


def rises(view, choices, before, after):
    weights = {stream: choice.stream.weight for stream, choice in choices.items()}
    gain = sum(weights[s] * (after[s] - before[s]) for s in weights)
    if view.objective is Objective.MEAN:
        return gain > SAME
    worst_before, worst_after = min(before.values()), min(after.values())
    return worst_after > worst_before + SAME or (worst_after >= worst_before - SAME and gain > SAME)


def printed_algorithm(view):
    """Algorithm 1: every pair is tried, and every stream is evaluated anew at every try."""
    choices = choices_by_stream(view)
    jobs = jobs_of(choices)
    largest, quantum = largest_share_milli(view.quantum_milli), view.quantum_milli
    fair = fair_shares_milli(view.capacity_milli, quantum, len(jobs))
    step = view.steal_milli if fair and min(fair) >= view.steal_milli else quantum
    best = {job: min(share, largest) for job, share in zip(jobs, fair, strict=True)}
    floors = kept_floors(view, sum(best.values()))
    best = lift_to_floors(best, floors, quantum)
    for thief in jobs:
        for victim in jobs:
            while thief != victim:
                temp = {**best, victim: best[victim] - step, thief: best[thief] + step}
                if temp[victim] < floors.get(victim, 0) or temp[thief] > largest:
                    break
                if not rises(view, choices, values_of(choices, best), values_of(choices, temp)):
                    break
                best = temp
    return one_phase_plan(view, choices, best)


@settings(max_examples=40)
@given(window_views())
def test_the_fast_thief_steals_what_the_printed_one_steals(view):
    assert Thief().plan(view) == printed_algorithm(view)

"""The fast thief against Algorithm 1 as printed: the same shares for every job."""

from collections.abc import Mapping

from hypothesis import given, settings
from views import value_of, window_views

from ekya.core.shares import Job, Work
from ekya.planning.schedulers.allocation import (
    choices_by_stream,
    equal_shares,
    kept_floors,
    largest_share_milli,
    lift_to_floors,
)
from ekya.planning.schedulers.pick import SAME
from ekya.planning.schedulers.reasons import one_phase_plan
from ekya.planning.schedulers.thief import Thief


def values_of(choices, shares: Mapping[Job, int]):
    return {
        stream: value_of(
            choice, shares.get(Job(stream, Work.RETRAINING), 0), shares[Job(stream, Work.INFERENCE)]
        )
        for stream, choice in choices.items()
    }


def rises(choices, before, after):
    weights = {stream: choice.stream.weight for stream, choice in choices.items()}
    return sum(weights[s] * (after[s] - before[s]) for s in weights) > SAME


def printed_algorithm(view):
    """Algorithm 1: every pair is tried, and every stream is evaluated anew at every try."""
    choices = choices_by_stream(view)
    jobs = sorted(
        [Job(stream, Work.INFERENCE) for stream in choices]
        + [Job(stream, Work.RETRAINING) for stream, choice in choices.items() if choice.has_retraining]
    )
    largest, quantum = largest_share_milli(view.quantum_milli), view.quantum_milli
    best = equal_shares(view, jobs)
    step = view.steal_milli if best and min(best.values()) >= view.steal_milli else quantum
    floors = kept_floors(view, sum(best.values()))
    best = lift_to_floors(best, floors, quantum)
    for thief in jobs:
        for victim in jobs:
            while thief != victim:
                temp = {**best, victim: best[victim] - step, thief: best[thief] + step}
                if temp[victim] < floors.get(victim, 0) or temp[thief] > largest:
                    break
                if not rises(choices, values_of(choices, best), values_of(choices, temp)):
                    break
                best = temp
    return one_phase_plan(view, choices, best)


@settings(max_examples=40)
@given(window_views())
def test_thief_steals_what_printed_algorithm_steals(view):
    assert Thief().plan(view) == printed_algorithm(view)

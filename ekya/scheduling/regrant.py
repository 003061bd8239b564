"""From the shares a plan asks for to those that were granted (DESIGN §5).

A backend grants shares in its own steps, rounded down. What a γ or λ was picked for may then be out of
reach, and some share is left over. So both are picked again at what was granted, and what is left goes
to the jobs that gain most. The objective thus sees granted shares only.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

from ekya.core.ids import StreamId
from ekya.core.plan import Assignment, Phase, Plan
from ekya.core.units import FULL_GPU_MILLI
from ekya.core.view import Objective, WindowView
from ekya.scheduling.allocation import (
    Job,
    JobKind,
    choices_by_stream,
    jobs_of,
    kept_floors,
)
from ekya.scheduling.objective import evaluate
from ekya.scheduling.pick import SAME, StreamChoices, fixed_retraining
from ekya.scheduling.protocol import Needs
from ekya.scheduling.reasons import assignment, one_phase_plan


def regrant(
    view: WindowView,
    plan: Plan,
    granted: Mapping[Job, int],
    spare_milli: int,
    step_milli: int,
    needs: Needs,
) -> Plan:
    """The plan at granted shares.

    A scheduler that needs no micro-profile has fixed its γ and its shares: only λ is picked again for
    it, and what is left stays idle. For the others inference jobs are first given what a_MIN needs, and
    then each job in turn what raises the objective most per step. Where the first phase changes, the
    forecast phases after it no longer hold and are dropped.

    Args:
        view: the view that was planned on.
        plan: what the scheduler asked for.
        granted: share in thousandths for every job of the first phase (``allocation.shares_of``);
            a job that is missing has none.
        spare_milli: what may still be given out.
        step_milli: the backend's smallest step, at least 1.
        needs: the scheduler's.
    """
    first = plan.phases[0]
    if needs.micro_profile:
        phase = _chosen_again(view, granted, spare_milli, step_milli)
    else:
        phase = _same_gamma(view, first, granted)
    if _decisions(phase) == _decisions(first):
        return plan
    return Plan((phase,), evaluate(view, (phase,)).score)


def _decisions(phase: Phase) -> list[Assignment]:
    return [replace(assignment, reason="") for assignment in phase.assignments]


def _same_gamma(view: WindowView, phase: Phase, granted: Mapping[Job, int]) -> Phase:
    choices = choices_by_stream(view)
    return Phase(tuple(_same_gamma_at(choices[a.stream], a, granted) for a in phase.assignments))


def _same_gamma_at(choice: StreamChoices, planned: Assignment, granted: Mapping[Job, int]) -> Assignment:
    retrain_share = granted.get(Job(planned.stream, JobKind.RETRAINING), 0)
    inference_share = granted.get(Job(planned.stream, JobKind.INFERENCE), 0)
    stream = choice.stream
    options = (stream.running.option,) if stream.running else stream.retrain_options if retrain_share else ()
    option = next((option for option in options if option.config == planned.retrain), None)
    return assignment(
        choice,
        fixed_retraining(choice.view, stream, option, retrain_share),
        retrain_share,
        choice.inference(inference_share),
        inference_share,
        forecast=False,
        why_not="no share of it is left after rounding" if planned.retrain else None,
    )


def _chosen_again(view: WindowView, granted: Mapping[Job, int], spare_milli: int, step_milli: int) -> Phase:
    choices = choices_by_stream(view)
    shares = {job: granted.get(job, 0) for job in jobs_of(choices)}
    left = spare_milli
    for job, floor in kept_floors(view, sum(shares.values()) + left).items():
        missing = -(-max(0, floor - shares[job]) // step_milli) * step_milli
        if missing <= left and shares[job] + missing <= FULL_GPU_MILLI:
            shares[job] += missing
            left -= missing
    while left >= step_milli:
        best = _best_use(view, choices, shares, left, step_milli)
        if best is None:
            break
        job, more = best
        shares[job] += more
        left -= more
    return one_phase_plan(view, choices, shares).phases[0]


def _best_use(
    view: WindowView,
    choices: Mapping[StreamId, StreamChoices],
    shares: Mapping[Job, int],
    left: int,
    step_milli: int,
) -> tuple[Job, int] | None:
    """The job and the share that gain most per step; several steps at once, as a λ can need them.

    For max-min the stream that does worst goes first, among those that gain at all.
    """
    best: tuple[Job, int] | None = None
    best_rate, lowest = SAME, math.inf
    for job, share in shares.items():
        choice = choices[job.stream]
        retrain = shares.get(Job(job.stream, JobKind.RETRAINING), 0)
        inference = shares[Job(job.stream, JobKind.INFERENCE)]
        before = choice.value(retrain, inference)
        worth = before if view.objective is Objective.MAX_MIN else 0.0
        if worth > lowest + SAME:
            continue
        for more in range(step_milli, min(left, FULL_GPU_MILLI - share) + 1, step_milli):
            after = (
                choice.value(retrain, inference + more)
                if job.kind is JobKind.INFERENCE
                else choice.value(retrain + more, inference)
            )
            rate = choice.stream.weight * (after - before) / more
            if rate > SAME and (worth < lowest - SAME or rate > best_rate + SAME):
                best, best_rate, lowest = (job, more), rate, worth
    return best

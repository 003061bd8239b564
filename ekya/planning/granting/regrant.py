"""Adapts a plan to the shares that were granted.

A backend grants shares in its own steps, and a job must run on one GPU, so shares are rounded down. The γ or
λ that was picked may then be out of reach, and some share is left over. So both are picked again at the
granted share, and what is left goes to the jobs that gain most. The objective thus covers granted shares
only, and the plan reports what rounding cost.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain

from ekya.core.plan import Assignment, Phase, Plan
from ekya.core.shares import Job, Work
from ekya.core.units import StreamId
from ekya.core.view import WindowView
from ekya.planning.granting.leftover import GrantedStream, distribute_leftover
from ekya.planning.placement.homes import Grants
from ekya.planning.schedulers.allocation import choices_by_stream, inference_floors, kept_floors
from ekya.planning.schedulers.objective import evaluate_phases
from ekya.planning.schedulers.pick import StreamChoices
from ekya.planning.schedulers.reasons import with_more_inference
from ekya.planning.schedulers.scheduler import Needs


def regrant_plan(view: WindowView, plan: Plan, grants: Grants, needs: Needs) -> Plan:
    """Returns the plan at granted shares.

    A scheduler's fixed shares get nothing of what is left, and its fixed γ stay. For the others inference
    jobs are first given what a_MIN and the latency limits need, then each job in turn what raises the
    objective most per thousandth, and last inference what crowded frames take.

    The γ and the waiting streams of a plan of several phases depend on its later phases too. There γ is
    picked again only if it can no longer complete in time, and a stream that was to wait does not start. If
    the first phase changes, the forecast phases after it no longer hold and are dropped.

    Args:
        view: the view that was planned on.
        plan: what the scheduler asked for.
        grants: of the first phase's shares (``allocation.shares_of``); modified, as shares grow.
        needs: the scheduler's.
    """
    first = plan.phases[0]
    choices = choices_by_stream(view)
    streams = {
        a.stream: GrantedStream(choices[a.stream], a, needs, grants, len(plan.phases))
        for a in first.assignments
    }
    if not needs.fixed_shares:
        _keep_minimum(view, grants)
        distribute_leftover(streams, grants, view.quantum_milli)
    phase = Phase(tuple(stream.build_assignment() for stream in streams.values()))
    if _decisions(phase) == _decisions(first):
        granted, rest, expected, cost = first, plan.phases[1:], plan.expected_accuracy, plan.rounding_cost
    else:
        before, after = (evaluate_phases(view, (one,)).score for one in (first, phase))
        granted, rest, expected, cost = phase, (), after, before - after
    if not needs.fixed_shares:
        granted = _eased(view, granted, choices, grants)
    return replace(
        plan, phases=(_on_gpus(granted, grants), *rest), expected_accuracy=expected, rounding_cost=cost
    )


def _keep_minimum(view: WindowView, grants: Grants) -> None:
    """Lifts inference jobs to their floors, then to a_MIN and the latency limits, for as many as possible."""
    held = [Job(one.stream, work) for one in view.streams for work in (Work.INFERENCE, Work.RETRAINING)]
    total = sum(grants.share_milli(job) for job in held) + grants.spare_milli
    for job, floor in chain(inference_floors(view).items(), kept_floors(view, total).items()):
        if grants.share_milli(job) < floor:
            share = grants.fitting_milli(job, floor)
            if share is not None:
                grants.grow_job(job, share)


def _eased(
    view: WindowView, phase: Phase, choices: Mapping[StreamId, StreamChoices], grants: Grants
) -> Phase:
    """Returns the phase with spare capacity given to inference that would miss crowded frames.

    Only shares that no other job gains from are given, first to the job that lacks most. It keeps them only
    until another job gains from them, so later phases need not account for them.
    """
    shares = {one.stream: one.inference_share_milli for one in phase.assignments}
    ample = {}
    for stream, share in shares.items():
        ample_milli = choices[stream].choose_inference(share).option.ample_milli
        ample[stream] = -(-ample_milli // view.quantum_milli) * view.quantum_milli
    lacking = [stream for stream, share in shares.items() if share < ample[stream]]
    for stream in sorted(lacking, key=lambda one: (shares[one] / ample[one], one)):
        job = Job(stream, Work.INFERENCE)
        share_milli = grants.fitting_milli(job, ample[stream])
        if share_milli is not None:
            grants.grow_job(job, share_milli)
            shares[stream] = share_milli
    return Phase(tuple(with_more_inference(one, shares[one.stream]) for one in phase.assignments))


def _on_gpus(phase: Phase, grants: Grants) -> Phase:
    gpus = grants.gpus
    if not gpus:
        return phase
    return Phase(
        tuple(
            replace(
                one,
                retrain_gpu=gpus.get(Job(one.stream, Work.RETRAINING)),
                inference_gpu=gpus.get(Job(one.stream, Work.INFERENCE)),
            )
            for one in phase.assignments
        )
    )


def _decisions(phase: Phase) -> list[Assignment]:
    return [replace(assignment, reason="") for assignment in phase.assignments]

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
from ekya.core.units import StreamId
from ekya.core.view import Objective, RetrainOption, WindowView
from ekya.planning.schedulers.allocation import Job, JobKind, choices_by_stream, inference_floors, kept_floors
from ekya.planning.schedulers.leftover import Grants, give_out
from ekya.planning.schedulers.objective import evaluate
from ekya.planning.schedulers.pick import RetrainChoice, StreamChoices, fixed_retraining, watching_milli
from ekya.planning.schedulers.reasons import assignment, with_more_inference
from ekya.planning.schedulers.scheduler import Needs


def regrant(view: WindowView, plan: Plan, grants: Grants, needs: Needs) -> Plan:
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
    streams = {a.stream: _Regranted(choices[a.stream], a, needs, len(plan.phases)) for a in first.assignments}
    if not needs.fixed_shares:
        _keep_minimum(view, grants)
        give_out(streams, grants, view.quantum_milli, worst_first=view.objective is Objective.MAX_MIN)
    phase = Phase(tuple(streams[a.stream].assignment(grants) for a in first.assignments))
    if _decisions(phase) == _decisions(first):
        granted, rest, expected, cost = first, plan.phases[1:], plan.expected_accuracy, plan.rounding_cost
    else:
        before, after = (evaluate(view, (one,)).score for one in (first, phase))
        granted, rest, expected, cost = phase, (), after, before - after
    if not needs.fixed_shares:
        granted = _eased(view, granted, choices, grants)
    return replace(
        plan, phases=(_on_gpus(granted, grants), *rest), expected_accuracy=expected, rounding_cost=cost
    )


class _Regranted:
    """One stream of the first phase, at shares other than requested."""

    def __init__(self, choices: StreamChoices, planned: Assignment, needs: Needs, phases: int) -> None:
        self._choices = choices
        self._planned = planned
        self._needs = needs
        self._keeps_gamma = needs.fixed_gamma or phases > 1
        self._floor_milli = 0 if needs.fixed_shares else watching_milli(choices.view, choices.stream)
        self._options = (
            (choices.stream.running.option,) if choices.stream.running else choices.stream.retrain_options
        )

    @property
    def kinds(self) -> tuple[JobKind, ...]:
        """Jobs of the stream that may get more than requested."""
        waits = self._keeps_gamma and self._planned.retrain_share_milli == 0
        if waits or not self._choices.has_retraining:
            return (JobKind.INFERENCE,)
        return (JobKind.INFERENCE, JobKind.RETRAINING)

    @property
    def inference_stops(self) -> tuple[int, ...]:
        """Inference shares at which another λ can keep up."""
        return tuple(option.share_needed_milli for option in self._choices.stream.inference_options)

    @property
    def weight(self) -> float:
        """Weight of the stream."""
        return self._choices.stream.weight

    def value(self, retrain_share_milli: int, inference_share_milli: int) -> float:
        """Returns the stream's part of the objective, if these shares hold until the window's end."""
        part = self._choices.inference(inference_share_milli).part
        return self._retraining(retrain_share_milli).serving * part

    def assignment(self, grants: Grants) -> Assignment:
        """Returns the stream's assignment at its granted shares."""
        retrain_share = grants.share_milli(Job(self._planned.stream, JobKind.RETRAINING))
        inference_share = grants.share_milli(Job(self._planned.stream, JobKind.INFERENCE))
        lost = self._planned.retrain is not None and retrain_share == 0
        return assignment(
            self._choices,
            self._retraining(retrain_share),
            retrain_share,
            self._choices.inference(inference_share),
            inference_share,
            forecast=self._needs.micro_profile,
            why_not="no share of it is left after rounding" if lost else None,
            elsewhere=self._planned.elsewhere,
            watched=self._planned.inference_share_milli < self._floor_milli <= inference_share,
        )

    def _retraining(self, share_milli: int) -> RetrainChoice:
        if self._planned.elsewhere is not None and self._planned.retrain is not None:
            stream = self._choices.stream
            nothing_here = RetrainOption(self._planned.retrain, stream.accuracy, 0.0)
            return fixed_retraining(self._choices.view, stream, nothing_here, 0)
        if not self._keeps_gamma:
            return self._choices.retraining(share_milli)
        offered = self._options if share_milli or self._choices.stream.running else ()
        option = next((option for option in offered if option.config == self._planned.retrain), None)
        kept = fixed_retraining(self._choices.view, self._choices.stream, option, share_milli)
        as_planned = share_milli == self._planned.retrain_share_milli
        if option is None or kept.completes_us is not None or as_planned or self._needs.fixed_gamma:
            return kept
        return self._choices.retraining(share_milli)


def _keep_minimum(view: WindowView, grants: Grants) -> None:
    """Lifts inference jobs to their floors, then to a_MIN and the latency limits, for as many as possible."""
    held = {Job(stream.stream, kind) for stream in view.streams for kind in JobKind}
    total = sum(grants.share_milli(job) for job in held) + grants.spare_milli
    for job, floor in chain(inference_floors(view).items(), kept_floors(view, total).items()):
        if grants.share_milli(job) < floor:
            share = grants.fitting_milli(job, floor)
            if share is not None:
                grants.grow(job, share)


def _eased(
    view: WindowView, phase: Phase, choices: Mapping[StreamId, StreamChoices], grants: Grants
) -> Phase:
    """Returns the phase with spare capacity given to inference that would miss crowded frames.

    Only shares that no other job gains from are given, first to the job that lacks most. It keeps them only
    until another job gains from them, so later phases need not account for them.
    """
    ample_milli = {
        one.stream: _quanta(choices[one.stream].inference(one.inference_share_milli).option.ample_milli, view)
        for one in phase.assignments
    }
    lacking = [one for one in phase.assignments if one.inference_share_milli < ample_milli[one.stream]]
    lacking.sort(key=lambda one: (one.inference_share_milli / ample_milli[one.stream], one.stream))
    shares = {one.stream: one.inference_share_milli for one in phase.assignments}
    for one in lacking:
        job = Job(one.stream, JobKind.INFERENCE)
        share = grants.fitting_milli(job, ample_milli[one.stream])
        if share is not None:
            grants.grow(job, share)
            shares[one.stream] = share
    return Phase(tuple(with_more_inference(one, shares[one.stream]) for one in phase.assignments))


def _quanta(share_milli: int, view: WindowView) -> int:
    """Rounds a share up to a multiple of δ."""
    return -(-share_milli // view.quantum_milli) * view.quantum_milli


def _on_gpus(phase: Phase, grants: Grants) -> Phase:
    gpus = grants.gpus
    if not gpus:
        return phase
    return Phase(
        tuple(
            replace(
                assigned,
                retrain_gpu=gpus.get(Job(assigned.stream, JobKind.RETRAINING)),
                inference_gpu=gpus.get(Job(assigned.stream, JobKind.INFERENCE)),
            )
            for assigned in phase.assignments
        )
    )


def _decisions(phase: Phase) -> list[Assignment]:
    return [replace(assignment, reason="") for assignment in phase.assignments]

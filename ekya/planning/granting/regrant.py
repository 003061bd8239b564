"""Adapts a plan to the shares that were granted.

A backend grants shares in its own steps, and a job must run on one GPU, so shares are rounded down. The γ or
λ that was picked may then be out of reach, and some share is left over. So both are picked again at the
granted share, and what is left goes to the jobs that gain most. The objective thus covers granted shares
only, and the plan reports what rounding cost.
"""

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain

from ekya.core.plan import Assignment, Phase, Plan
from ekya.core.shares import Job, Work
from ekya.core.units import FULL_GPU_MILLI, StreamId
from ekya.core.view import RetrainOption, WindowView
from ekya.planning.granting.spare import retrain_on_spare
from ekya.planning.placement.homes import Grants
from ekya.planning.schedulers.allocation import choices_by_stream, inference_floors, kept_floors
from ekya.planning.schedulers.objective import evaluate_phases
from ekya.planning.schedulers.pick import SAME, RetrainChoice, StreamChoices, fixed_retraining, watching_milli
from ekya.planning.schedulers.reasons import build_assignment, with_more_inference
from ekya.planning.schedulers.scheduler import Needs


def regrant_plan(view: WindowView, plan: Plan, grants: Grants, needs: Needs) -> Plan:
    """Returns the plan at granted shares.

    A scheduler's fixed shares get nothing of what is left, and its fixed γ stay. For the others inference
    jobs are first given what a_MIN and the latency limits need, then each job in turn what raises the
    objective most per thousandth, then inference what crowded frames take, and last students behind the
    golden detector (``retrain_on_spare``), but not under the paper's own planners.

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
    if needs.early_parts:
        granted = retrain_on_spare(view, granted, grants)
    return replace(
        plan, phases=(_on_gpus(granted, grants), *rest), expected_accuracy=expected, rounding_cost=cost
    )


class GrantedStream:
    """One stream of a plan's first phase, at shares other than requested.

    Attributes:
        choices: PickConfigs for the stream.
    """

    def __init__(
        self, choices: StreamChoices, planned: Assignment, needs: Needs, grants: Grants, phases: int
    ) -> None:
        """Takes the requested assignment of a plan with this number of phases."""
        self.choices = choices
        self._planned = planned
        self._needs = needs
        self._grants = grants
        self._keeps_gamma = needs.fixed_gamma or phases > 1
        self._inference = Job(planned.stream, Work.INFERENCE)
        self._retraining = Job(planned.stream, Work.RETRAINING)

    @property
    def growing(self) -> list[Job]:
        """Jobs of the stream that may get more than requested."""
        waits = self._keeps_gamma and self._planned.retrain_share_milli == 0
        retrains = self.choices.has_retraining and not waits
        return [self._inference, self._retraining] if retrains else [self._inference]

    def best_growth(self, job: Job, grain_milli: int) -> tuple[float, int] | None:
        """Returns the growth of a job that gains most per thousandth; None if none gains.

        Returns:
            The gain per thousandth, and the share that the job grows to.
        """
        retrain, inference = self._grants.share_milli(self._retraining), self._share_milli
        is_inference = job is self._inference
        share = inference if is_inference else retrain
        before = self._value(retrain, inference)
        best, best_rate = None, SAME
        for larger in self._larger_shares(job, share, grain_milli):
            after = self._value(retrain, larger) if is_inference else self._value(larger, inference)
            rate = self.choices.stream.weight * (after - before) / (larger - share)
            if rate > best_rate + SAME:
                best, best_rate = (rate, larger), rate
        return best

    def build_assignment(self) -> Assignment:
        """Returns the stream's assignment at its granted shares."""
        retrain_milli = self._grants.share_milli(self._retraining)
        lost = self._planned.retrain is not None and retrain_milli == 0
        watching = 0 if self._needs.fixed_shares else watching_milli(self.choices.view, self.choices.stream)
        return build_assignment(
            self.choices,
            self._retrain_choice(retrain_milli),
            retrain_milli,
            self._share_milli,
            forecast=self._needs.micro_profile,
            why_not="no share of it is left after rounding" if lost else None,
            elsewhere=self._planned.elsewhere,
            watched=self._planned.inference_share_milli < watching <= self._share_milli,
        )

    @property
    def _share_milli(self) -> int:
        return self._grants.share_milli(self._inference)

    def _value(self, retrain_milli: int, inference_milli: int) -> float:
        """Returns the stream's part of the objective, if these shares hold until the window's end."""
        inference = self.choices.choose_inference(inference_milli)
        return inference.option.full_accuracy(self._retrain_choice(retrain_milli).serving) * inference.part

    def _retrain_choice(self, share_milli: int) -> RetrainChoice:
        planned, view, stream = self._planned, self.choices.view, self.choices.stream
        if planned.elsewhere is not None and planned.retrain is not None:
            return fixed_retraining(view, stream, RetrainOption(planned.retrain, stream.accuracy, 0.0), 0)
        if not self._keeps_gamma:
            return self.choices.choose_retraining(share_milli)
        offered = stream.retrain_options if share_milli else ()
        if stream.running is not None:
            offered = (stream.running.option,)
        option = next((option for option in offered if option.config == planned.retrain), None)
        kept = fixed_retraining(view, stream, option, share_milli)
        as_planned = share_milli == planned.retrain_share_milli
        if option is None or kept.completes_us is not None or as_planned or self._needs.fixed_gamma:
            return kept
        return self.choices.choose_retraining(share_milli)

    def _larger_shares(self, job: Job, share: int, grain_milli: int) -> Iterator[int]:
        """Yields larger shares: those at which another λ keeps up, and others in steps of the grain."""
        grain = grain_milli
        # Where not even one grain more fits, a part of it may.
        while grain > 1 and self._grants.fitting_milli(job, share + grain) is None:
            grain //= 2
        wanted = set(range(share + grain, FULL_GPU_MILLI + 1, grain))
        if job is self._inference:
            wanted |= {option.share_needed_milli for option in self.choices.stream.inference_options}
        last = share
        for least in sorted(wanted):
            if least <= last:
                continue
            larger = self._grants.fitting_milli(job, least)
            if larger is None:
                return
            yield larger
            last = larger


def distribute_leftover(streams: Mapping[StreamId, GrantedStream], grants: Grants, grain_milli: int) -> None:
    """Grows the job that gains most per thousandth, until no job gains.

    A job may grow by several steps together, as a λ can need them. A growth changes the gains of one
    stream's jobs only, so only these are computed anew; those of other jobs are when they come next and no
    longer fit.

    Args:
        streams: every stream with a job that may grow.
        grants: current shares; modified, as shares grow.
        grain_milli: spacing of the larger shares that are tried.
    """
    if grants.spare_milli == 0:
        return
    # Negative gain per thousandth, job, and the share that it grows to.
    heap: list[tuple[float, Job, int]] = []
    current: dict[Job, tuple[float, Job, int]] = {}

    def update(stream: GrantedStream) -> None:
        for job in stream.growing:
            current.pop(job, None)
            growth = stream.best_growth(job, grain_milli)
            if growth is not None:
                rate, share_milli = growth
                current[job] = (-rate, job, share_milli)
                heapq.heappush(heap, current[job])

    for stream in streams.values():
        update(stream)
    while heap:
        entry = heapq.heappop(heap)
        _, job, share_milli = entry
        # A heap cannot drop an entry: one that was replaced comes all the same.
        if current.get(job) != entry:
            continue
        if grants.fitting_milli(job, share_milli) == share_milli:
            grants.grow_job(job, share_milli)
        update(streams[job.stream])


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

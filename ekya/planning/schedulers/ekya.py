"""Default scheduler: the best plan of its planners, never worth less than the thief's.

Plans are compared by the objective over all their phases, and what serves on after the window
(``worth_of_phases``). The candidates are ``serial``, which is nearly always the best, ``exact``, and the
remainder of the plan in progress. ``exact`` is the best plan of one phase within the window, and so never
below the paper's ``thief`` there. With the remainder as a candidate each plan is worth at least the rest of
the one before it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ekya.core.plan import Assignment, Phase, Plan
from ekya.core.units import StreamId
from ekya.core.view import RetrainOption, StreamView, WindowView
from ekya.planning.schedulers.exact import Exact
from ekya.planning.schedulers.objective import evaluate_phases, worth_of_phases
from ekya.planning.schedulers.phases import AssignmentWriter, written_phase
from ekya.planning.schedulers.pick import StreamChoices
from ekya.planning.schedulers.scheduler import Needs
from ekya.planning.schedulers.serial import Serial


@dataclass(frozen=True, slots=True)
class Ekya:
    """Chooses the best plan of several planners."""

    name: ClassVar[str] = "ekya"
    needs: ClassVar[Needs] = Needs(labels=True, inference_profile=True, micro_profile=True, early_parts=True)

    def plan(self, view: WindowView) -> Plan:
        """Returns the plan that is worth most; on a tie, the one in progress."""
        if not view.streams:
            return Plan((Phase(()),), 0.0)
        planners = (Serial(), Exact())
        plans = [planner.plan(view) for planner in planners]
        fresh = max(plans, key=lambda plan: worth_of_phases(view, plan.phases))
        remainder = best_remainder(view)
        if remainder is None or remainder.worth < worth_of_phases(view, fresh.phases):
            return fresh
        return plan_of_remainder(view, remainder)


@dataclass(frozen=True, slots=True)
class Remainder:
    """Rest of a plan, valid from now on.

    Attributes:
        phases: without reasons.
        options: the γ of each stream, by id.
        worth: by ``worth_of_phases``.
    """

    phases: tuple[Phase, ...]
    options: tuple[RetrainOption | None, ...]
    worth: float


def best_remainder(view: WindowView) -> Remainder | None:
    """Returns the best way to continue ``view.previous``; None where it does not fit the view any more.

    Its first phase either goes on, or has ended with a completion just now.
    """
    found = [_remainder(view, view.previous[skipped:]) for skipped in (0, 1)]
    fitting = [remainder for remainder in found if remainder is not None]
    return max(fitting, key=lambda remainder: remainder.worth, default=None)


def plan_of_remainder(view: WindowView, remainder: Remainder) -> Plan:
    """Returns the remainder as a plan, with updated reasons."""
    ends_us = {
        stream: end_us - view.now_us
        for stream, end_us in evaluate_phases(view, remainder.phases).completions_us
    }
    writers = [
        AssignmentWriter(view, stream, option, ends_us.get(stream.stream))
        for stream, option in zip(view.streams, remainder.options, strict=True)
    ]
    phases = [
        written_phase(
            writers,
            start_us,
            [one.inference_share_milli for one in phase.assignments],
            [one.retrain_share_milli for one in phase.assignments],
        )
        for start_us, phase in zip([0, *sorted(set(ends_us.values()))], remainder.phases, strict=False)
    ]
    return Plan(tuple(phases), evaluate_phases(view, phases).score)


def _remainder(view: WindowView, phases: Sequence[Phase]) -> Remainder | None:
    given = [{a.stream: a for a in phase.assignments} for phase in phases]
    if not given or any(stream.stream not in phase for phase in given for stream in view.streams):
        return None
    choices = [StreamChoices(view, stream) for stream in view.streams]
    options = tuple(_option(stream, given) for stream in view.streams)
    renewed = tuple(
        Phase(
            tuple(
                _renewed(choice, option, phase[choice.stream.stream])
                for choice, option in zip(choices, options, strict=True)
            )
        )
        for phase in given
    )
    if not all(_fits(view, phase) for phase in renewed):
        return None
    return Remainder(renewed, options, worth_of_phases(view, renewed))


def _option(stream: StreamView, given: Sequence[Mapping[StreamId, Assignment]]) -> RetrainOption | None:
    if stream.running is not None:
        return stream.running.option
    offered = {option.config: option for option in stream.retrain_options}
    named = (phase[stream.stream].retrain for phase in given)
    return next((offered[config] for config in named if config is not None and config in offered), None)


def _renewed(choice: StreamChoices, option: RetrainOption | None, old: Assignment) -> Assignment:
    inference = choice.choose_inference(old.inference_share_milli)
    same = option is not None and old.retrain == option.config
    locked = choice.stream.running is not None
    return Assignment(
        stream=old.stream,
        retrain=option.config if option is not None and (same or locked) else None,
        retrain_share_milli=old.retrain_share_milli if same else 0,
        inference=inference.option.config,
        inference_share_milli=old.inference_share_milli,
        below_min=inference.below_min,
        reason="",
    )


def _fits(view: WindowView, phase: Phase) -> bool:
    shares = [share for a in phase.assignments for share in (a.retrain_share_milli, a.inference_share_milli)]
    return sum(shares) <= view.capacity_milli and all(share % view.quantum_milli == 0 for share in shares)

"""Grants a plan the shares that can be enforced, on the GPUs where its jobs may run."""

from collections.abc import Mapping

from ekya.control.options import LoopOptions
from ekya.control.views import free_milli_at_home, held_milli, homes_of
from ekya.core.plan import Plan
from ekya.core.shares import Job, Work
from ekya.core.state import FleetState
from ekya.core.view import WindowView
from ekya.planning.granting.regrant import regrant_plan
from ekya.planning.placement.homes import AtHome, Grants
from ekya.planning.placement.pack import pack_shares
from ekya.planning.placement.rounding import ShareSteps
from ekya.planning.schedulers.allocation import (
    inference_floors,
    kept_floors,
    shares_of,
    with_floors,
)
from ekya.planning.schedulers.scheduler import Needs


def at_granted_shares(
    view: WindowView, plan: Plan, fleet: FleetState, options: LoopOptions, needs: Needs
) -> Plan:
    """Returns the plan at shares that can be enforced."""
    shares = shares_of(plan.phases[0])
    if not needs.fixed_shares:
        shares = _with_floors(view, shares, fleet, options)
    return regrant_plan(view, plan, _grants(shares, fleet, options), needs)


def _with_floors(
    view: WindowView, shares: Mapping[Job, int], fleet: FleetState, options: LoopOptions
) -> dict[Job, int]:
    """Raises shares to the inference floors, so that no plan starves inference; per GPU with home GPUs."""
    kept = {} if options.preparation_bursts else kept_floors(view, view.capacity_milli)
    if not options.homes:
        return _lifted(view, shares, kept, view.capacity_milli)
    homes = homes_of(fleet, options)
    lifted: dict[Job, int] = {}
    for gpu, free_milli in enumerate(free_milli_at_home(fleet, options)):
        here = {job: share for job, share in shares.items() if homes[job.stream] == gpu}
        lifted |= _lifted(view, here, kept, free_milli)
    return {job: lifted[job] for job in shares}


def _lifted(
    view: WindowView, shares: Mapping[Job, int], kept: Mapping[Job, int], capacity_milli: int
) -> dict[Job, int]:
    """Raises shares to the floors, at the cost of none that a stream has to keep a_MIN, if the others do."""
    floors = inference_floors(view)
    minimum = {job: min(kept.get(job, 0), share) for job, share in shares.items()}
    both = {job: max(floors.get(job, 0), least) for job, least in minimum.items()}
    fits = sum(both.values()) <= capacity_milli
    return with_floors(shares, both if fits else floors, capacity_milli, view.quantum_milli)


def _grants(shares: Mapping[Job, int], fleet: FleetState, options: LoopOptions) -> Grants:
    groups = options.training_groups
    steps = ShareSteps(options.share_step_milli, lambda job: groups if job.work is Work.RETRAINING else None)
    if options.homes:
        homes = homes_of(fleet, options)
        free = free_milli_at_home(fleet, options)
        return AtHome(options.packing, shares, lambda job: homes[job.stream], free, steps)
    return pack_shares(
        options.packing,
        shares,
        capacity_milli=options.capacity_milli,
        held_milli=held_milli(fleet, options),
        steps=steps,
    )

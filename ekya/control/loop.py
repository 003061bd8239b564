"""The control loop of every world: wait, write the journal, decide, write the journal, act."""

from collections.abc import Callable, Iterator

from ekya.control.loop_state import LoopState, scheduler_of
from ekya.control.options import LoopOptions
from ekya.control.protocols import Batch, Executor, Journal, Planner
from ekya.control.step import StepResult, loop_events_due, next_due_us, step
from ekya.core.events import WindowClosed, WindowOpened
from ekya.core.state import FleetState
from ekya.planning.schedulers.registry import make_scheduler
from ekya.planning.schedulers.scheduler import Needs

Observer = Callable[[Batch, StepResult], None]
"""Callback after the commands of each step have been issued, such as those of screen and metrics."""

Snapshot = Callable[[LoopState], None]
"""Callback before the batch that opens a window is written, with the state from which a run can resume."""

PlannerOf = Callable[[str], Planner]
"""Returns the planner of another scheduler, by its name."""


def first_state() -> LoopState:
    """Returns the state before any event."""
    return LoopState(FleetState(), {})


def run_loop(
    executor: Executor,
    journal: Journal,
    planner: Planner,
    needs: Needs,
    options: LoopOptions,
    observe: Observer,
    state: LoopState | None = None,
    snapshot: Snapshot = lambda state: None,
    planner_of: PlannerOf = lambda name: make_scheduler(name).plan,
) -> LoopState:
    """Runs windows until the last has closed, and returns the final state; arguments as in ``steps``."""
    known = first_state() if state is None else state
    for after in iterate_steps(
        executor, journal, planner, needs, options, observe, state, snapshot, planner_of
    ):
        known = after
    return known


def iterate_steps(
    executor: Executor,
    journal: Journal,
    planner: Planner,
    needs: Needs,
    options: LoopOptions,
    observe: Observer,
    state: LoopState | None = None,
    snapshot: Snapshot = lambda state: None,
    planner_of: PlannerOf = lambda name: make_scheduler(name).plan,
) -> Iterator[LoopState]:
    """Executes one step per iteration until the last window has closed; yields the state after each.

    Without a ``state`` to resume from, the executor's first events add the streams. ``snapshot`` is called
    for every window but the first. ``planner`` and ``needs`` are of the scheduler with which the run began.
    """
    state = first_state() if state is None else state
    scheduler: str | None = None
    while True:
        fleet = state.fleet
        until_us = 0 if fleet.window < 0 else next_due_us(fleet, options)
        came = executor.wait(until_us)
        batch = Batch(came.now_us, (*came.events, *loop_events_due(fleet, came.now_us, options)))
        if fleet.window >= 0 and any(isinstance(event, WindowOpened) for event in batch.events):
            snapshot(state)
        journal.record_batch(batch)
        chosen = scheduler_of(fleet, batch)
        if chosen is not None and chosen != scheduler:
            scheduler, needs, planner = chosen, make_scheduler(chosen).needs, planner_of(chosen)
        result = step(state, batch, options, needs, planner)
        journal.record_decision(batch.now_us, result.plan, result.commands)
        executor.execute_commands(result.commands)
        observe(batch, result)
        state = result.state
        yield state
        if closes_run(batch):
            return


def closes_run(batch: Batch) -> bool:
    """Returns whether a batch closes a window and opens none after it."""
    kinds = {type(event) for event in batch.events}
    return WindowClosed in kinds and WindowOpened not in kinds

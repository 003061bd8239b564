"""Replays a run's batches through the loop, which must issue the same commands (the parity test)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ekya.control.loop import first_state
from ekya.control.loop_state import LoopState, scheduler_of
from ekya.control.options import LoopOptions
from ekya.control.protocols import Batch, Planner
from ekya.control.remote_plan import plan_beside, remote_retrainings
from ekya.control.step import step
from ekya.core.commands import Command, StepRecord, of_plan
from ekya.planning.schedulers.registry import make_scheduler
from ekya.planning.schedulers.scheduler import Needs


@dataclass(frozen=True, slots=True)
class Replayed:
    """A recorded step, and the commands and state of its replay."""

    recorded: StepRecord
    commands: tuple[Command, ...]
    state: LoopState

    @property
    def same(self) -> bool:
        """True if the commands equal the recorded ones; older journals do not number plans."""
        plan = self.recorded.plan
        if plan is not None and plan.epoch == 0:
            return self.recorded.commands == tuple(of_plan(command, 0) for command in self.commands)
        return self.recorded.commands == self.commands


def replay_journal(
    steps: Iterable[StepRecord],
    options: LoopOptions,
    needs: Needs,
    planner: Planner,
    state: LoopState | None = None,
) -> Iterator[Replayed]:
    """Decides the recorded steps again from the recorded events alone.

    Remote retrainings are taken from the recorded plans, since no event reports these agreements.

    The first step with different commands is the last one: the events after it result from the recorded
    commands, and are meaningless for a loop that issued others.

    Args:
        steps: recorded.
        options, needs, planner: of the run, as it began.
        state: before the first of the steps; None for the first state of a run.
    """
    state = first_state() if state is None else state
    for recorded in steps:
        batch = Batch(recorded.now_us, recorded.events)
        if (chosen := scheduler_of(state.fleet, batch)) is not None:
            scheduler = make_scheduler(chosen)
            needs, planner = scheduler.needs, scheduler.plan
        asked = _as_agreed(planner, recorded) if not needs.elsewhere else planner
        result = step(state, batch, options, needs, asked)
        state = result.state
        replayed = Replayed(recorded, result.commands, state)
        yield replayed
        if not replayed.same:
            return


def _as_agreed(planner: Planner, recorded: StepRecord) -> Planner:
    remote = {} if recorded.plan is None else remote_retrainings(recorded.plan)
    return (lambda view: plan_beside(view, planner, remote)) if remote else planner

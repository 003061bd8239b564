"""Replays a run's batches through the loop, which must issue the same commands (the parity test)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ekya.control.loop import first_state
from ekya.control.options import LoopOptions
from ekya.control.protocols import Batch, Planner
from ekya.control.remote_plan import away_in, plan_beside
from ekya.control.step import LoopState, step
from ekya.core.commands import Command, of_plan
from ekya.core.step_record import StepRecord
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


def replay(
    turns: Iterable[StepRecord], options: LoopOptions, needs: Needs, planner: Planner
) -> Iterator[Replayed]:
    """Decides the recorded steps again from the recorded events alone.

    Remote retrainings are taken from the recorded plans, since no event reports these agreements.

    The first step with different commands is the last one: the events after it result from the recorded
    commands, and are meaningless for a loop that issued others.
    """
    state = first_state()
    for recorded in turns:
        asked = _as_agreed(planner, recorded) if not needs.elsewhere else planner
        turn = step(state, Batch(recorded.now_us, recorded.events), options, needs, asked)
        state = turn.state
        replayed = Replayed(recorded, turn.commands, state)
        yield replayed
        if not replayed.same:
            return


def _as_agreed(planner: Planner, recorded: StepRecord) -> Planner:
    away = {} if recorded.plan is None else away_in(recorded.plan)
    return (lambda view: plan_beside(view, planner, away)) if away else planner

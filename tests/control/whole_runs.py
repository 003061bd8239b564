"""Whole runs of the loop over a scripted fleet."""

from dataclasses import dataclass, field
from pathlib import Path

from script import OPTIONS, PLANNING_US, Camera, three_cameras
from scripted import ScriptedFleet

from ekya.control.loop import run_loop
from ekya.control.loop_state import LoopState
from ekya.control.options import LoopOptions
from ekya.control.protocols import Batch
from ekya.control.step import StepResult
from ekya.core import events as ev
from ekya.core.commands import StepRecord
from ekya.core.view import WindowView
from ekya.planning.schedulers.registry import make_scheduler
from ekya.results.storage.journal import FileJournal


@dataclass
class Run:
    """Record of a run; ``views`` holds the scheduler's last view in each step, or None without a call."""

    fleet: ScriptedFleet
    options: LoopOptions
    turns: list[StepRecord] = field(default_factory=list)
    states: list[LoopState] = field(default_factory=list)
    views: list[WindowView | None] = field(default_factory=list)

    def events(self, *kinds):
        return [event for turn in self.turns for event in turn.events if isinstance(event, kinds)]

    def commands(self, *kinds):
        return [command for turn in self.turns for command in turn.commands if isinstance(command, kinds)]


class _Ignored:
    """A journal that is discarded."""

    def record_batch(self, batch):
        pass

    def record_decision(self, now_us, plan, commands):
        pass


def run(
    scheduler: str,
    seed: int = 1,
    *,
    options: LoopOptions = OPTIONS,
    cameras: tuple[Camera, ...] | None = None,
    misfortunes: tuple[ev.Event, ...] = (),
    path: Path | None = None,
    tells_shares: bool = False,
    after_turn=lambda run: None,
    journal=None,
) -> Run:
    """Runs the loop once; ``after_turn`` is called after a step's commands are carried out.

    The journal is ``journal``, which takes snapshots too, or one at ``path``.
    """
    chosen = make_scheduler(scheduler)
    fleet = ScriptedFleet(options, cameras or three_cameras(), seed, misfortunes, tells_shares)
    done = Run(fleet, options)
    asked: list[WindowView] = []

    def planner(view):
        asked.append(view)
        fleet.charge(PLANNING_US)
        return chosen.plan(view)

    def observe(batch: Batch, turn: StepResult) -> None:
        assert len(asked) <= 1, "more than one plan in a turn"
        done.turns.append(StepRecord(batch.now_us, batch.events, turn.plan, turn.commands))
        done.states.append(turn.state)
        done.views.append(asked[-1] if asked else None)
        asked.clear()
        after_turn(done)

    if journal is not None:
        run_loop(fleet, journal, planner, chosen.needs, options, observe, snapshot=journal.write_snapshot)
        return done
    journal = FileJournal(path, scheduler, options) if path else _Ignored()
    run_loop(fleet, journal, planner, chosen.needs, options, observe)
    if path:
        journal.close()
    return done

"""Preparation on the trace of the shipped city: what inference keeps."""

from functools import cache
from pathlib import Path

import pytest

from ekya.control.journal_replay import replay_journal
from ekya.core import commands as cmd
from ekya.core.shares import Job, Work
from ekya.planning.schedulers.allocation import kept_floors
from ekya.planning.schedulers.registry import make_scheduler
from ekya.results.storage.trace_file import read_trace
from ekya.simulation.trace.simulate import Conditions, simulate

CITY = Path(__file__).parents[2] / "experiments" / "traces" / "city.parquet"


@cache
def played(scheduler, gpus):
    return simulate(read_trace(CITY), make_scheduler(scheduler), Conditions(gpus=gpus))


SCARCE = pytest.mark.xfail(
    reason="on a twentieth of a GPU a camera, labels take what inference lacks", strict=True
)


@pytest.mark.parametrize("gpus", [0.1, pytest.param(0.2, marks=SCARCE), 0.4, 0.5, 0.8, 1.2])
def test_simulate_ekya_is_not_half_a_point_below_not_retraining(gpus):
    assert played("ekya", gpus).mean_accuracy > played("no-retrain", gpus).mean_accuracy - 0.005


@pytest.mark.parametrize("gpus", [0.6, 0.7, 0.8, 1.2])
@pytest.mark.parametrize("scheduler", ["ekya", "thief"])
def test_simulate_preparation_pushes_no_inference_below_minimum(scheduler, gpus):
    run, chosen, views, held_milli = played(scheduler, gpus), make_scheduler(scheduler), [], 0

    def planner(view):
        views.append(view)
        return chosen.plan(view)

    for step, again in zip(
        run.steps, replay_journal(run.steps, run.options, chosen.needs, planner), strict=True
    ):
        assert again.same
        for command in step.commands:
            if isinstance(command, cmd.BeginPreparation):
                held_milli = command.share_milli
            elif isinstance(command, cmd.EndPreparation):
                held_milli = 0
        if step.plan is not None and held_milli:
            # A preparation gets a quantum, whatever inference needs.
            taken_milli = held_milli - run.options.quantum_milli
            could = kept_floors(views[-1], views[-1].capacity_milli + taken_milli)
            below = [one.stream for one in step.plan.phases[0].assignments if one.below_min]
            assert not any(could.get(Job(stream, Work.INFERENCE)) for stream in below)

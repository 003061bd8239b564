"""Two services in one process, of which north plans a retraining on south: all but cameras and Ray."""

import json
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace

import pytest
from bundles import GAMMA, bundle_with
from byhand import LAMBDAS, OPTIONS, A, B, S
from fake_service import TOKEN
from http_asking import serving
from lent_by_hand import Machine
from waiting import wait_until

from ekya.config.fleet_reading import load_fleet
from ekya.config.fleet_sections import LenderConfig, LendingConfig
from ekya.config.run_options import RunOptions
from ekya.config.shipped import shipped_path
from ekya.control.loop_state import LoopState
from ekya.control.protocols import Batch
from ekya.control.views import window_view
from ekya.core import commands as cmd
from ekya.core.state import FleetState, StreamState, WindowLabels, WindowProfiles
from ekya.core.units import JobId
from ekya.core.view import RetrainOption
from ekya.core.weights import Elsewhere
from ekya.fleet.run.live import own_coordinator, service_lending, trained_elsewhere
from ekya.fleet.run.live.service_lending import ServiceLending
from ekya.fleet.run.training import trainer as trainer_module
from ekya.planning.schedulers.registry import make_scheduler
from ekya.results.storage.run_folder import RunFolder


class Clock:
    """A ``RunClock`` at 110 s, which goes on by a millisecond in each step of the loop."""

    def __init__(self):
        self.at_us = 110 * S

    def now_us(self):
        return self.at_us


class Ticking:
    """An executor in which only time passes."""

    def __init__(self, clock):
        self.clock, self.executed = clock, []

    def wait(self, until_us):
        self.clock.at_us += 1000
        return Batch(self.clock.now_us(), ())

    def execute_commands(self, commands):
        self.executed += commands


class Service:
    """A service 110 s after its begin, in a window that ends at 200 s."""

    def __init__(self, folder, lending, capacity_milli):
        folder.mkdir()
        fleet = load_fleet(shipped_path("datasets/synthetic_city/fleet.yaml"))
        self.options = replace(OPTIONS, capacity_milli=capacity_milli)
        run = SimpleNamespace(
            folder=RunFolder(folder),
            fleet=fleet.model_copy(update={"lending": lending}),
            options=RunOptions(scheduler="thief"),
            constants=self.options,
            guests_gpu=0,
        )
        self.scheduler, self.brought = make_scheduler("thief"), []
        self.lending_part = ServiceLending(run, None)
        clock = Clock()
        self.executor = self.lending_part.wrap_executor(
            Ticking(clock), SimpleNamespace(report_progress=lambda *told: self.brought.append(told)), clock
        )

    def lending(self):
        return self.lending_part.desk

    def plan(self, **changes):
        """Plans with streams that have these changes; returns those that are to be retrained elsewhere."""
        streams = tuple(StreamState(stream, LAMBDAS, accuracy=0.5, **changes) for stream in (A, B))
        fleet = FleetState(streams, window=1, window_open_us=100 * S, window_end_us=200 * S)
        self.lending_part.observe_step(None, SimpleNamespace(state=LoopState(fleet, {})))
        view = window_view(fleet, 115 * S, self.options, self.scheduler.needs, {})
        plan = self.lending_part.wrap_planner(self.scheduler.plan)(view)
        return [one.stream for one in plan.phases[0].assignments if one.elsewhere is not None]


@pytest.fixture
def town(model, tmp_path, monkeypatch):
    """North, which borrows and has no room to train, and south, which lends; closed at the end."""
    context = SimpleNamespace(get_node_id=lambda: "a node")
    monkeypatch.setattr(service_lending, "ray", SimpleNamespace(get_runtime_context=lambda: context))
    machine = Machine()
    machine.warm_process = machine.close = lambda: None
    monkeypatch.setattr(service_lending, "TrainingProcesses", lambda *_: machine)
    monkeypatch.setattr(service_lending, "gather_bundles", lambda remote: lambda command: lambda: bundle)
    monkeypatch.setattr(own_coordinator, "LOOKS_EVERY_S", 0.02)
    monkeypatch.setattr(trainer_module, "_LOOK_S", 0.01)
    monkeypatch.setattr(trained_elsewhere, "TELLS_EVERY_US", 0)
    monkeypatch.setenv("SOUTH_TOKEN", TOKEN)
    bundle = bundle_with(model)
    with ExitStack() as stack:
        south = Service(tmp_path / "south", LendingConfig(lend=True), 2000)
        stack.callback(south.lending_part.close)
        asks = stack.enter_context(serving(south, tmp_path))
        lender = LenderConfig(url=asks.url.replace("://", "://ekya:${SOUTH_TOKEN}@"), name="south", mb_s=1000)
        borrows = LendingConfig(borrow_from=(lender,), samples_may_leave="crops")
        north = Service(tmp_path / "north", borrows, 700)
        stack.callback(north.lending_part.close)
        yield north, south, machine


WANTED = {
    "labels": WindowLabels(60, 30),
    "profiles": WindowProfiles(options=(RetrainOption(GAMMA, 0.9, 60.0),)),
}


def borrowed(north, south):
    """Lets north plan until it borrows, and begins the retraining; returns its stream."""
    south.plan()
    planned = []
    wait_until(lambda: planned.extend(north.plan(**WANTED)) or planned)
    start = cmd.StartRetraining(planned[0], JobId(1), 1, GAMMA, 0, 0.5, 60.0, Elsewhere(190 * S))
    north.executor.execute_commands([start])
    assert [loan.offer.stream for loan in north.executor.borrowed_loans()] == planned
    return planned[0]


def records(path, stream):
    """Returns what was recorded of a stream's first loan."""
    every = [json.loads(line) for line in path.read_text().splitlines()]
    first = next(one["loan"] for one in every if one.get("stream") == stream)
    return [one for one in every if one["loan"] == first]


def test_a_retraining_is_planned_elsewhere_trained_and_comes_home(town, tmp_path) -> None:
    north, south, machine = town
    stream = borrowed(north, south)
    wait_until(lambda: north.executor.wait(0) and north.brought and north.brought[-1][3])
    command, accuracies, best, over = north.brought[-1]
    assert (command.job, len(accuracies), over) == (1, GAMMA.epochs, True)
    assert best().accuracy == max(accuracies)
    wait_until(lambda: north.executor.wait(0) and not north.executor.borrowed_loans())
    (made, ended, *_) = records(tmp_path / "north" / "loans.jsonl", stream)
    assert (made["host"], ended["outcome"]) == ("south", "arrived")
    assert sum(way["mb"] for way in ended["moved"]) > 0
    wait_until(lambda: machine.given_back)


def test_who_gives_up_ends_the_training_there(town, tmp_path) -> None:
    north, south, machine = town
    machine.waits = {1}
    stream = borrowed(north, south)
    wait_until(lambda: machine.taken)
    north.executor.execute_commands([cmd.StopRetraining(stream, JobId(1))])
    machine.goes_on.set()
    wait_until(lambda: machine.given_back)
    (_, ended, *_) = records(tmp_path / "north" / "loans.jsonl", stream)
    assert ended["outcome"] == "given up"

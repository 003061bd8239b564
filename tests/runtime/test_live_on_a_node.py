"""Tests of a run inside a Ray actor, on one of several Ray nodes, below a tier that knows other servers."""

import json
import os
import signal
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
import ray
import torch
import yaml
from live_runs import events_of
from ray._private import state as ray_state
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from ray_nodes import ray_nodes
from rich.console import Console
from waiting import LONG_GUARD_S, wait_until

from ekya.config.fleet_reading import load_fleet
from ekya.config.run_options import RunOptions
from ekya.config.shipped import shipped_path
from ekya.control.remote_plan import RemoteRetraining, plan_beside, running_remotely
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.weights import Elsewhere, RemoteCheckpoint
from ekya.fleet.run.live.service_lending import bundle_of
from ekya.gpu.backends.registry import choose_backend
from ekya.models.edge.checkpoints import from_bytes, load_model, to_bytes
from ekya.models.training.trainer import Compute
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_state import StateStore
from ekya.results.storage.run_tables import read_predictions
from ekya.runtime.driver.open_run import open_run, start_probe
from ekya.runtime.driver.run_session import NullCoordinator, RunSession

pytestmark = [pytest.mark.live, pytest.mark.long]

EAST, WEST = "east", "west"
WINDOW_S, WINDOWS = 5, 4
"""On a slow machine the first labels may not come before the third window."""
TIMEOUT_S = 120


class Tier(NullCoordinator):
    """Tier that delays the start until ``begin`` is set, and trains all remote retrainings itself.

    With ``ends`` the run stops when new weights serve.
    """

    def __init__(self, ends):
        self.ready, self.begin, self.stop = threading.Event(), threading.Event(), threading.Event()
        self._ends = ends
        self._held = {}
        self.trained = None

    def begin_ns(self):
        self.ready.set()
        assert self.begin.wait(TIMEOUT_S)
        return super().begin_ns()

    def wrap_planner(self, plan):
        def beside(view):
            away = {
                stream.stream: RemoteRetraining(
                    min(option.config for option in stream.retrain_options), SOON, "elsewhere"
                )
                for stream in view.streams
                if stream.retrain_options and stream.running is None
            }
            return plan_beside(view, plan, away | running_remotely(view))

        return beside

    def wrap_executor(self, inner, exchange, clock):
        self._inner, self._exchange = inner, exchange
        return self

    def wait(self, until_us):
        return self._inner.wait(until_us)

    def execute_commands(self, commands):
        for command in commands:
            if isinstance(command, cmd.StartRetraining) and command.elsewhere:
                self._train(command)
            else:
                self._inner.execute_commands([command])

    def _train(self, command):
        """Trains one epoch in place of another server, and brings its weights."""
        material = self._exchange.inputs_for_retraining(command.stream).fetch(TIMEOUT_S)
        bundle = bundle_of(command, material)
        retraining = replace(bundle, config=replace(bundle.config, epochs=1)).make_retraining(Compute())
        retraining.prepare_training()
        accuracy = retraining.run_epoch().validation_accuracy
        self.trained = to_bytes(retraining.model())
        best = RemoteCheckpoint(self.trained, accuracy, 1)
        self._exchange.report_progress(command, [accuracy], lambda: best, over=False)

    def observe_step(self, batch, result):
        if self._ends and any(isinstance(event, ev.ModelSwapped) for event in batch.events):
            self.stop.set()


SOON = Elsewhere(0)


class Server:
    """Runs one server's Ekya in a thread that is not the main thread of its process."""

    def __init__(self, ends):
        self.tier = Tier(ends)

    def run(self, fleet, options):
        chosen = choose_backend(options.shares)
        with start_probe(fleet, options, chosen) as probe:
            run = open_run(fleet, options, chosen, probe.result())
        console = Console(quiet=True)
        with run.open_shares() as shares:
            session = RunSession(run, shares, server="west", coordinator=self.tier, stop=self.tier.stop)
            return session.run(console)

    def wait_ready(self):
        return self.tier.ready.wait(TIMEOUT_S)

    def begin(self):
        self.tier.begin.set()

    def trained(self):
        return self.tier.trained

    def pid(self):
        return os.getpid()


@pytest.fixture(scope="module")
def nodes():
    with ray_nodes((EAST, WEST)) as made:
        yield made


@pytest.fixture
def fleet(tmp_path):
    raw = yaml.safe_load(shipped_path("datasets/synthetic_city/fleet.yaml").read_text())
    raw |= {"name": "one", "window_s": WINDOW_S, "windows": WINDOWS, "gpus": 1.0}
    raw["edge"] = {"model": "resnet18", "resolution": 32}  # it has everything to learn
    raw["preparation"] = {"share_milli": 700, "fraction": 0.15}
    raw["streams"] = raw["streams"][:1]
    raw["streams"][0]["source"]["fps"] = 4
    path = tmp_path / "one.yaml"
    path.write_text(yaml.safe_dump(raw))
    return load_fleet(path)


@pytest.fixture
def server_on(nodes):
    # A worker does not find the modules beside the tests, which this one imports.
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

    def make(node, ends=True):
        where = NodeAffinitySchedulingStrategy(nodes[node], soft=False)
        return ray.remote(Server).options(max_concurrency=4, scheduling_strategy=where).remote(ends)

    return make


def actors_of_the_run():
    return [told for told in ray_state.actors().values() if told["Name"] and told["State"] == "ALIVE"]


def serves_new_weights(folder):
    """Returns whether new weights would serve after a crash, by the state on disk."""
    if not folder.state.is_file():
        return False
    with StateStore(folder.state) as store:
        newest = store.read_models("cam-1")[-1:]
    return any(row.version == 1 and (folder.path / row.path).is_file() for row in newest)


def test_server_on_a_node_serves_weights_from_elsewhere(nodes, server_on, fleet, tmp_path):
    server = server_on(WEST)
    running = server.run.remote(fleet, RunOptions(runs=tmp_path, shares="cpu"))
    assert ray.get(server.wait_ready.remote(), timeout=TIMEOUT_S)
    expected = {
        "west/scheduler",
        "west/micro-profiler",
        "west/inference/gpu-0",
        "west/retraining/gpu-0",
    }
    # Trainers and the micro-profiler start after inference.
    wait_until(lambda: expected <= {told["Name"] for told in actors_of_the_run()}, actors_of_the_run)
    there = actors_of_the_run()
    assert {told["Address"]["NodeID"] for told in there} == {nodes[WEST]}
    folder = RunFolder(tmp_path / "one")
    assert not folder.journal.exists(), "it begins when everybody is ready"
    ray.get(server.begin.remote())
    assert ray.get(running, timeout=TIMEOUT_S) == folder.path
    assert actors_of_the_run() == []

    summary = json.loads(folder.summary.read_text())
    windows = [window["index"] for window in summary["streams"]["cam-1"]["windows"]]
    assert windows == list(range(len(windows)))
    assert len(windows) > 1
    assert summary["frames"]["lost"] == 0
    (swapped,) = events_of(folder, ev.ModelSwapped)
    # What came at the end of the window before did not serve.
    *late, epoch = events_of(folder, ev.RetrainProgress)
    assert swapped.job not in {one.job for one in late}
    assert (swapped.version, swapped.job, epoch.gpu_s) == (1, epoch.job, 0.0)
    assert swapped.validation_accuracy == epoch.validation_accuracy
    served = load_model(folder.model("cam-1", swapped.version))
    trained = from_bytes(ray.get(server.trained.remote()))
    assert served.classes == trained.classes
    assert torch.allclose(served.head.weight, trained.head.weight, atol=1e-3)


def test_server_that_dies_is_resumed_in_another_process(nodes, server_on, fleet, tmp_path):
    dying = server_on(WEST, ends=False)
    running = dying.run.remote(fleet, RunOptions(runs=tmp_path, shares="cpu"))
    ray.get(dying.begin.remote())
    folder = RunFolder(tmp_path / "one")
    wait_until(lambda: serves_new_weights(folder), guard_s=LONG_GUARD_S)
    os.kill(ray.get(dying.pid.remote()), signal.SIGKILL)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(running, timeout=TIMEOUT_S)

    successor = server_on(EAST, ends=False)
    running = successor.run.remote(fleet, RunOptions(runs=tmp_path, shares="cpu", resume=folder.path))
    ray.get(successor.begin.remote())
    assert ray.get(running, timeout=TIMEOUT_S) == folder.path
    summary = json.loads(folder.summary.read_text())
    assert [window["index"] for window in summary["streams"]["cam-1"]["windows"]] == list(range(WINDOWS))
    assert summary["frames"]["lost"] == 0
    assert events_of(folder, ev.StreamBack)
    answered = read_predictions(folder.predictions("cam-1"))
    assert answered.model_version[-1] >= 1
    assert (np.diff(answered.model_version) >= 0).all(), "what served last serves again"
    assert answered.t_us[-1] > (WINDOWS * WINDOW_S - 2) * 1e6

"""A run inside a Ray actor, on one of several Ray nodes, under a tier that knows other servers."""

import json
import threading
import time

import pytest
import ray
import yaml
from ray._private import state as ray_state
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from rich.console import Console

from ekya.config import RunOptions, load_fleet
from ekya.fleet.policy.names import NodeName
from ekya.fleet.run.training.emulated import emulated_fleet
from ekya.journal import read_journal
from ekya.runfolder import RunFolder
from ekya.runtime.above import NobodyAbove
from ekya.runtime.on_ray import open_run, run_on_ray
from ekya.shipped import shipped_path

pytestmark = pytest.mark.live

EAST, WEST = NodeName("east"), NodeName("west")
WINDOW_S = 5


class Tier(NobodyAbove):
    """Holds the beginning until it is told to, and ends the run in its second window."""

    def __init__(self):
        self.ready, self.begin, self.stop = threading.Event(), threading.Event(), threading.Event()

    def begin_ns(self):
        self.ready.set()
        assert self.begin.wait(120)
        return super().begin_ns()

    def observe(self, batch, turn):
        if turn.state.fleet.window == 1:
            self.stop.set()


class Server:
    """Runs one server's Ekya in a thread that is not its process's main thread."""

    def __init__(self):
        self.tier = Tier()

    def run(self, fleet, options):
        run = open_run(fleet, options)
        console = Console(quiet=True)
        return run_on_ray(run, console, server="west", above=self.tier, stop=self.tier.stop)

    def wait_ready(self):
        return self.tier.ready.wait(120)

    def begin(self):
        self.tier.begin.set()
        return time.monotonic_ns()


@pytest.fixture(scope="module")
def nodes():
    with emulated_fleet({EAST: 1000, WEST: 1000}) as made:
        yield made.nodes


@pytest.fixture
def fleet(tmp_path):
    raw = yaml.safe_load(shipped_path("datasets/synthetic_city/fleet.yaml").read_text())
    raw |= {"name": "one", "window_s": WINDOW_S, "windows": 2, "gpus": 1.0}
    raw["preparation"] = {"share_milli": 700, "fraction": 0.15}
    raw["streams"] = raw["streams"][:1]
    raw["streams"][0]["source"]["fps"] = 4
    path = tmp_path / "one.yaml"
    path.write_text(yaml.safe_dump(raw))
    return load_fleet(path)


@pytest.fixture
def server(nodes):
    where = NodeAffinitySchedulingStrategy(nodes[WEST].ray_node_id, soft=False)
    return ray.remote(Server).options(max_concurrency=4, scheduling_strategy=where).remote()


def actors_of_the_run():
    return [told for told in ray_state.actors().values() if told["Name"] and told["State"] == "ALIVE"]


def test_all_actors_of_a_run_are_on_its_node_and_it_begins_and_ends_when_it_is_told_to(
    nodes, server, fleet, tmp_path
):
    running = server.run.remote(fleet, RunOptions(runs=tmp_path, shares="cpu"))
    assert ray.get(server.wait_ready.remote(), timeout=120)
    there = actors_of_the_run()
    assert {told["Name"] for told in there} == {
        "west/scheduler",
        "west/micro-profiler",
        "west/inference/cam-1",
        "west/retraining/cam-1",
    }
    assert {told["Address"]["NodeID"] for told in there} == {nodes[WEST].ray_node_id}
    assert not RunFolder(tmp_path / "one").journal.read_text().count("WindowOpened")
    ray.get(server.begin.remote())
    folder = RunFolder(ray.get(running, timeout=120))
    assert actors_of_the_run() == []
    summary = json.loads(folder.summary.read_text())
    assert [window["index"] for window in summary["streams"]["cam-1"]["windows"]] == [0, 1]
    assert summary["frames"]["lost"] == 0
    _, _, turns = read_journal(folder.journal)
    assert WINDOW_S * 1e6 <= turns[-1].now_us < (WINDOW_S + 2) * 1e6

"""A run in a Ray cluster of two nodes, each a ``ray start`` of its own, that others use too."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
import ray
import yaml
from live_runs import EKYA, events_of, replayed
from ray._private import state
from ray._raylet import AuthenticationTokenLoader, Config
from ray.util.placement_group import placement_group_table
from waiting import LONG_GUARD_S, wait_until

from ekya.config.shipped import shipped_path
from ekya.core import events as ev
from ekya.results.storage.run_folder import RunFolder

pytestmark = [pytest.mark.live, pytest.mark.long]

RAY = Path(sys.executable).with_name("ray")
STORE_BYTES = 100 << 20
STARTS = 4
"""Ray gives its processes 30 s, which a busy machine may take."""
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a token of this test"}


@pytest.fixture(scope="module")
def cluster():
    """Starts a head and a node with a core each, which ask for a token; yields their address."""
    with running_cluster() as (address, _):
        yield address


@contextmanager
def running_cluster():
    """Starts the nodes for the block; yields their address, and the processes of the nodes."""
    # Short, since paths of sockets are limited.
    with tempfile.TemporaryDirectory(prefix="ek") as folder, pytest.MonkeyPatch.context() as patch:
        for name, value in {**TOKEN, "RAY_TMPDIR": folder, "RAY_worker_niceness": "0"}.items():
            patch.setenv(name, value)
        _read_environment_again()
        started = []
        try:
            head = _start(folder, "--head", "--port=0", "--num-cpus=1", "--include-dashboard=false")
            started.append(head)
            address = next(line for line in head.stdout if "--address='" in line).split("'")[1]
            started.append(_start(folder, f"--address={address}", "--num-cpus=1"))
            yield address, started
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.wait()
    _read_environment_again()


def _read_environment_again():
    """Has Ray forget the settings, and the token or the lack of one, of what ran before in this process."""
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def _start(folder, *arguments):
    """Starts a node in a process that lasts as long as the node, and waits until it is there."""
    command = [RAY, "start", *arguments, f"--object-store-memory={STORE_BYTES}", "--block"]
    for _ in range(STARTS):
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
        for line in process.stdout:
            if "Ray runtime started" in line:
                return process
    raise AssertionError(f"ray start {arguments} has failed")


@pytest.fixture
def fleet_of(tmp_path):
    """Writes the file of a fleet with as many streams as cores."""

    def made(streams, **changes):
        raw = yaml.safe_load(shipped_path("datasets/synthetic_city/fleet.yaml").read_text())
        raw |= {"gpus": float(streams), **changes}
        raw["preparation"] = {"share_milli": 700, "fraction": 0.15}
        raw["streams"] = raw["streams"][:streams]
        for stream in raw["streams"]:
            stream["source"]["fps"] = 4
        for section in ("golden", "edge"):
            raw[section]["weights"] = str(shipped_path(raw[section]["weights"]))
        path = tmp_path / "fleet.yaml"
        path.write_text(yaml.safe_dump(raw))
        return path

    return made


def placed():
    """Returns the node of each actor, by its name."""
    actors = state.actors().values()
    return {one["Name"]: one["Address"]["NodeID"] for one in actors if one["State"] == "ALIVE"}


def run(address, *arguments, **environment):
    """Starts ``ekya run`` in a cluster, in a process group of its own."""
    return subprocess.Popen(
        [*EKYA, "run", "--address", address, *map(str, arguments)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
    )


def refused(address, *arguments, **environment):
    """Returns the last line of a run that ends with exit code 2."""
    process = run(address, *arguments, **environment)
    said, _ = process.communicate()
    assert process.returncode == 2, said
    return said.strip().splitlines()[-1]


def test_cluster_says_why_it_cannot_be_joined_and_holds_what_a_run_has_reserved(cluster, fleet_of, tmp_path):
    fleet = fleet_of(1, name="one", window_s=5, windows=500)
    assert "refuses Ray's token" in refused(cluster, fleet, RAY_AUTH_TOKEN="another token")
    assert "refuses Ray's token" in refused(cluster, fleet, RAY_AUTH_MODE="disabled")
    assert "4 is more than the 2 CPUs" in refused(cluster, fleet, "--gpus", 4)

    running = run("auto", fleet, "--runs", tmp_path, RAY_ADDRESS=cluster)
    ray.init(address=cluster, log_to_driver=False)
    try:
        folder = RunFolder(tmp_path / "one")
        wait_until(folder.journal.is_file, guard_s=LONG_GUARD_S)
        (group,) = [one for one in placement_group_table().values() if one["state"] == "CREATED"]
        assert group["name"].startswith("ekya/one/")
        assert list(group["bundles"].values()) == [{"CPU": 1.0}]
        assert set(placed().values()) == set(group["bundles_to_node_id"].values())
        assert "inference/gpu-0" in placed()

        said = refused(cluster, fleet, "--gpus", 2)
        assert f"1 by the reservation {group['name']}" in said
        os.killpg(running.pid, signal.SIGINT)
        said, _ = running.communicate()
        assert "stopped at" in said
        assert json.loads(folder.summary.read_text())["streams"]["cam-1"]["windows"]
        groups = placement_group_table().values
        wait_until(lambda: not [one for one in groups() if one["state"] == "CREATED"])
        wait_until(lambda: not placed())
        assert len([node for node in ray.nodes() if node["Alive"]]) == 2, "the cluster stays"
    finally:
        ray.shutdown()


def kill_node(process):
    """Kills a node with all of its processes, as a loss of power does."""
    for one in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            one.kill()


def test_streams_of_a_node_that_is_killed_go_on_on_the_other(fleet_of, tmp_path):
    with running_cluster() as (cluster, (_, node)):
        running = run(cluster, fleet_of(2, name="lost", window_s=10, windows=6), "--runs", tmp_path)
        folder = RunFolder(tmp_path / "lost")

        def labelled():
            known = events_of(folder, ev.LabelsReady) if folder.journal.is_file() else ()
            return {event.stream for event in known}

        wait_until(lambda: "cam-2" in labelled(), guard_s=LONG_GUARD_S)
        kill_node(psutil.Process(node.pid))
        said, _ = running.communicate()
    back = {event.role: event for event in events_of(folder, ev.WorkerBack)}
    assert {(one.stream, one.gpu, one.left_gpu) for one in back.values()} == {("cam-2", 0, 1)}, said
    assert {event.stream for event in events_of(folder, ev.WorkerDied)} == {"cam-2"}, said
    summary = json.loads(folder.summary.read_text())
    assert [node["streams"] for node in summary["host"]["nodes"]] == [["cam-1", "cam-2"], []]
    back_us = back[ev.Role.INFERENCE].t_us
    answers = {event.stream for event in events_of(folder, ev.NeedMeasured) if event.t_us > back_us}
    assert answers == {"cam-1", "cam-2"}
    replayed(folder)


def test_run_on_two_nodes_has_the_processes_of_each_stream_on_one(cluster, fleet_of, tmp_path):
    running = run(cluster, fleet_of(2, name="two", window_s=10, windows=3), "--runs", tmp_path)
    ray.init(address=cluster, log_to_driver=False)
    try:
        folder = RunFolder(tmp_path / "two")
        wait_until(folder.journal.is_file, guard_s=LONG_GUARD_S)
        wait_until(lambda: "retraining/gpu-1" in placed(), guard_s=LONG_GUARD_S)
        nodes = placed()
        assert len(set(nodes.values())) == 2
        assert nodes["inference/gpu-0"] == nodes["retraining/gpu-0"] == nodes["scheduler"]
        assert nodes["inference/gpu-1"] == nodes["retraining/gpu-1"] != nodes["scheduler"]
        said, _ = running.communicate()
        summary = json.loads(folder.summary.read_text())
        told = [(node["cores"], node["streams"]) for node in summary["host"]["nodes"]]
        assert told == [(1, ["cam-1"]), (1, ["cam-2"])], said
        assert summary["frames"]["lost"] == 0
        assert all(stream["counted_objects"] > 0 for stream in summary["streams"].values())
        assert {event.stream for event in events_of(folder, ev.LabelsReady)} == {"cam-1", "cam-2"}
        replayed(folder)
        wait_until(lambda: not placed())
    finally:
        ray.shutdown()

"""Deep-Edge's manager and its machines as a user starts them: a real training on two emulated Ray nodes."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from urllib.request import Request, urlopen

import cv2
import psutil
import pytest
from crews import NAMES, bars

from ekya.fleet.fitting.points_file import read_points, write_points
from ekya.fleet.papers.deep_edge.devices import NANO
from ekya.fleet.papers.deep_edge.workload import profile_points
from ekya.fleet.policy.deep_edge.profile import EdgeWork, Tried
from ekya.fleet.policy.places import NodeState
from ekya.models.edge.checkpoints import load_model

pytestmark = [pytest.mark.live, pytest.mark.long]

PATIENCE_S = 180
ROOT = Path(__file__).resolve().parents[3]
EKYA = (sys.executable, "-c", "import sys; from ekya.cli import main; sys.exit(main())", "fleet")


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def begun(folder, name, *words):
    """Starts an ekya command as a separate process, which Ctrl-C reaches as from a terminal."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    said = (folder / f"{name}.log").open("w")
    return subprocess.Popen([*EKYA, *map(str, words)], stdout=said, stderr=said, env=environment, cwd=folder)


def asked(url, method="GET"):
    with urlopen(Request(url, method=method), timeout=20) as answer:
        return json.loads(answer.read())


def awaited(condition, folder):
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            told = condition()
        except OSError:
            told = None
        if told:
            return told
        assert time.monotonic() < until_s, (folder / "manager.log").read_text()
        time.sleep(0.3)


def workers_of_the_last_node(manager):
    """Returns training processes of the node started last; the parameter server is on the other node."""
    children = psutil.Process(manager.pid).children(recursive=True)
    training = [one for one in children if "TrainingActor" in named(one)]
    last = max(one.parent().create_time() for one in training)
    return [one for one in training if one.parent().create_time() == last]


def named(process):
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def comes(node, count, first):
    """Writes ``count`` pictures to a node, numbered from ``first``."""
    drawn = bars(count, len(node.name) + count)
    for number, (crop, place) in enumerate(zip(drawn.crops, drawn.classes, strict=True), first):
        root = node / NAMES[place]
        root.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(root / f"{number:03d}.png"), crop)


@pytest.fixture
def folder(tmp_path):
    """Pictures on two nodes, and points of a machine without a GPU and without a measured update."""
    for node, count in (("east", 60), ("west", 40)):
        comes(tmp_path / node, count, 0)
    spec = "samples: {east: east, west: west}, out: cam.safetensors, model: mobilenet_v3_small, epochs: 40"
    (tmp_path / "stores.yaml").write_text(f"stores: {{cam: {{{spec}, trigger: {{new_samples: 101}}}}}}")
    points = [
        replace(point, update_s=0.0, after=replace(point.after, gpu=0.0), app="inference")
        for point in profile_points(NANO, 30)
    ]
    tried = Tried(EdgeWork(NANO, "mobilenet_v3_small", 32, 1), 0.0, 0.0, 8, 1000)
    write_points(tmp_path / "points.parquet", points, [tried])
    return tmp_path


def test_a_user_updates_a_model_over_two_nodes_one_of_which_loses_its_worker(folder) -> None:
    url = f"http://127.0.0.1:{(port := free_port())}"
    words = ["stores.yaml", "--points", "points.parquet", "--emulate", "east=0.6,west=0.6", "--port", port]
    manager = begun(folder, "manager", "manager", *words)
    machines = []
    try:
        awaited(lambda: asked(f"{url}/monitor"), folder)
        for node, more in (("east", ["--serves"]), ("west", [])):
            told = ["--node", node, "--kind", NANO, "--manager", url, "--app", "inference:10", *more]
            machines.append(begun(folder, node, "worker", *told))
        awaited(lambda: len(asked(f"{url}/monitor")["active"]) == 2, folder)
        plan = asked(f"{url}/launcher?store=cam", "POST")
        assert {one["node"] for one in plan["workers"]} == {"east", "west"}
        assert plan["server"] == "east"
        awaited(lambda: asked(f"{url}/accuracy?task=cam")["accuracies"], folder)
        start = asked(f"{url}/accuracy?task=cam")["start"]
        os.kill(workers_of_the_last_node(manager)[0].pid, signal.SIGKILL)
        ended = awaited(lambda: asked(f"{url}/monitor")["ended"], folder)["cam"]
        assert ended["reason"] == ""
        assert ended["failures"] == 1
        assert ended["accuracy"] >= start
        assert load_model(folder / "cam.safetensors").classes == tuple(sorted(NAMES))

        assert ended["launched_by"] == "request"
        comes(folder / "east", 101, 60)
        awaited(lambda: asked(f"{url}/monitor")["ended"]["cam"]["failures"] == 0, folder)
        assert asked(f"{url}/monitor")["ended"]["cam"]["launched_by"] == "trigger"
        said = (folder / "manager.log").read_text()
        assert "cam: its trigger launches an update on " in said
        assert "101 new samples since the last update began" in said
        learned = read_points(folder / "points.parquet")[30:]
        assert {point.after for point in learned} == {NodeState()}
        assert all(point.update_s > 0 and point.compute_s > 0 for point in learned)

        processes = psutil.Process(manager.pid).children(recursive=True)
        for machine in machines:
            machine.send_signal(signal.SIGINT)
        manager.send_signal(signal.SIGINT)
        assert [machine.wait(30) for machine in machines] == [130, 130]
        assert manager.wait(60) == 0
        gone, left = psutil.wait_procs(processes, timeout=20)
        assert gone
        assert not left
        assert "Traceback" not in (folder / "manager.log").read_text()
    finally:
        for process in (manager, *machines):
            process.kill()
            process.wait()

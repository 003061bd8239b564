"""Tests of joining a Ray cluster and of what is reserved there; ``test_live_cluster`` has real ones."""

import socket
import threading
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
from ray._private import services
from rich.console import Console

from ekya.config.fleet_reading import load_fleet
from ekya.config.run_options import RunOptions
from ekya.config.shipped import shipped_path
from ekya.core.errors import UserError
from ekya.runtime.driver import cluster, ray_of_run, reservation
from ekya.runtime.driver.cluster import (
    ClusterNode,
    address_to_join,
    joined_cluster,
    measure_ahead_ns,
    require_ekya,
    require_shared,
)
from ekya.runtime.driver.places import Place, is_node_lost
from ekya.runtime.driver.ray_of_run import opened_ray, settle_address
from ekya.runtime.driver.reservation import reserved_places

HERE, THERE = ClusterNode("here", "10.0.0.1", 8, 2), ClusterNode("there", "10.0.0.2", 4, 0)
SETTINGS = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))


@pytest.fixture(autouse=True)
def no_address(monkeypatch):
    for name in ("RAY_ADDRESS", "RAY_JOB_CONFIG_JSON_ENV_VAR", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def port_that_answers(monkeypatch):
    """Starts a server that answers with these bytes, and returns its port."""
    servers = []
    # Ray itself takes the address of a network for loopback.
    monkeypatch.setattr(services, "canonicalize_bootstrap_address", lambda address: address)

    def start(answer):
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)

        def serve():
            connection, _ = server.accept()
            with connection:
                connection.recv(99)
                connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        return server.getsockname()[1]

    yield start
    for server in servers:
        server.close()


def refusal(address):
    with pytest.raises(UserError) as refused, joined_cluster(address, "ekya/test"):
        pass
    return str(refused.value)


@pytest.mark.parametrize("inside_a_job", [False, True])
def test_address_of_the_environment_is_followed_in_a_job_and_else_a_line_says_that_it_is_not(
    monkeypatch, caplog, inside_a_job
):
    assert address_to_join(None) is None
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    if inside_a_job:
        monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    assert address_to_join("10.0.0.9:1") == "10.0.0.9:1"
    assert address_to_join(None) == ("auto" if inside_a_job else None)
    said = [] if inside_a_job else ["RAY_ADDRESS=10.0.0.1:6379 is ignored: --address auto would follow it"]
    assert caplog.messages == said


@pytest.mark.parametrize("address", ["head", "head:", "ray://head:10001", "local"])
def test_address_of_another_form_is_refused(address):
    assert "write auto, or HOST:PORT" in refusal(address)


def test_address_of_the_environment_is_looked_at_with_auto(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    assert refusal("auto").startswith("--address ray://head:10001: write auto")


def test_port_without_a_ray_is_refused_before_ray_tries(port_that_answers):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert "nothing answers there ([Errno 111] Connection refused)" in refusal(f"127.0.0.1:{port}")
    port = port_that_answers(b"HTTP/1.0 400 Bad request")
    assert "what answers there is no Ray" in refusal(f"127.0.0.1:{port}")


def test_machine_outside_the_cluster_is_refused(port_that_answers, monkeypatch):
    monkeypatch.setattr(services, "find_gcs_addresses", lambda: {"127.0.0.1:1"})
    assert "this machine is no node of that cluster" in refusal(f"127.0.0.1:{port_that_answers(SETTINGS)}")


@pytest.fixture
def joining(port_that_answers, monkeypatch):
    """Returns the address of a cluster that this machine is in, whose Ray fails as told."""

    def address(error):
        def fail(**_):
            raise error

        found = f"127.0.0.1:{port_that_answers(SETTINGS)}"
        monkeypatch.setattr(services, "find_gcs_addresses", lambda: {found.replace("127.0.0.1", "localhost")})
        monkeypatch.setattr(ray, "init", fail)
        monkeypatch.setattr(ray, "shutdown", lambda: None)
        return found

    return address


MISMATCH = """Version mismatch: The cluster was started with:
    Ray: 2.60.0
    Python: 3.11.7
This process on node 10.0.0.1 was started with:
    Ray: 2.59.1
    Python: 3.11.7
"""


@pytest.mark.parametrize(
    ("error", "cause", "said"),
    [
        (RuntimeError(MISMATCH), None, "another Ray or Python (Ray: 2.60.0, Python: 3.11.7, Ray: 2.59.1"),
        (ConnectionError("Failed"), RuntimeError("Unauthenticated: InvalidAuthToken"), "refuses Ray's token"),
        (ValueError("but no authentication token was found."), None, "there is none here"),
        (ConnectionError("Failed"), RuntimeError("odd\nthings"), "could not join it (Failed odd things)"),
    ],
)
def test_refusal_of_ray_becomes_a_sentence(joining, error, cause, said):
    error.__cause__ = cause
    assert said in refusal(joining(error))


class FakeRay:
    """Resources of nodes, and the placement groups that hold them.

    Args:
        free: GPUs and cores by node.
        refused: number of groups that are not made though there is room.
    """

    def __init__(self, free, refused=0):
        self.free, self.refused, self.now_s, self.groups, self.removed = free, refused, 0.0, [], []
        self.frees = {}

    def install(self, monkeypatch):
        context = SimpleNamespace(get_job_id=lambda: "05")
        monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
        monkeypatch.setattr(reservation, "_STATE", self)
        monkeypatch.setattr(reservation, "placement_group", self.make)
        monkeypatch.setattr(reservation, "remove_placement_group", self.removed.append)
        monkeypatch.setattr(reservation, "placement_group_table", self.table)
        monkeypatch.setattr(reservation, "time", self)
        return self

    @property
    def state(self):
        job = {"DriverPid": 7, "DriverIPAddress": "10.0.0.1"}
        return SimpleNamespace(
            job_table=lambda: [
                job | {"JobID": "04", "IsDead": False, "Entrypoint": "python train.py --key SECRET"},
                job | {"JobID": "03", "IsDead": True, "Entrypoint": "python over.py"},
                job | {"JobID": "05", "IsDead": False, "Entrypoint": "ekya run"},
            ]
        )

    def monotonic(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds
        for at_s, (node, resources) in self.frees.items():
            if self.now_s >= at_s:
                self.free[node] = resources

    def available_resources_per_node(self):
        return self.free

    def make(self, bundles, name, bundle_label_selector):
        nodes = [selector["ray.io/node-id"] for selector in bundle_label_selector]
        self.groups.append((name, bundles, nodes))
        made = len(self.groups) > self.refused
        return SimpleNamespace(id=len(self.groups), nodes=nodes, wait=lambda _: made)

    def table(self, group=None):
        if group is not None:
            return {"bundles_to_node_id": dict(enumerate(group.nodes))}
        held = {"state": "CREATED", "placement_group_id": "ab", "bundles": {0: {"GPU": 1.0, "CPU": 4.0}}}
        return {
            "ab": held | {"name": "", "bundles_to_node_id": {0: "here"}},
            "cd": held | {"name": "elsewhere", "bundles_to_node_id": {0: "there"}},
            "ef": held | {"name": "waits", "state": "PENDING", "bundles_to_node_id": {}},
        }


def test_gpu_is_reserved_with_its_part_of_the_cores_and_given_back(monkeypatch):
    fake = FakeRay({"here": {"GPU": 2.0, "CPU": 8.0}}).install(monkeypatch)
    with reserved_places([HERE], True, 1, "ekya/yard") as made:
        assert fake.groups == [("ekya/yard/05", [{"GPU": 1, "CPU": 4}], ["here"])]
        assert (made.nodes, made.cores) == ((HERE,), 4)
        assert made.strategy_at(0).placement_group_bundle_index == 0
        assert not fake.removed
    assert fake.removed == [made.group]


def test_all_cores_that_are_free_are_reserved_where_nothing_is_said(monkeypatch):
    fake = FakeRay({"here": {"CPU": 3.5}, "there": {"CPU": 4.0}}).install(monkeypatch)
    with reserved_places([HERE], False, None, "ekya/yard") as made:
        assert fake.groups[0][1:] == ([{"CPU": 1}] * 3, ["here"] * 3)
        assert (made.nodes, made.cores) == ((HERE,) * 3, 3)


def test_cores_of_other_nodes_are_reserved_after_those_of_this_one(monkeypatch):
    fake = FakeRay({"here": {"CPU": 2.0}, "there": {"CPU": 4.0}}).install(monkeypatch)
    with reserved_places([HERE, THERE], False, 3, "ekya/yard") as made:
        assert fake.groups[0][1:] == ([{"CPU": 1}] * 3, ["here", "here", "there"])
        assert (made.nodes, made.cores) == ((HERE, HERE, THERE), 3)
    with reserved_places([HERE, THERE], False, None, "ekya/yard") as made:
        assert len(made.nodes) == 6


def test_run_waits_for_a_core_of_its_own_node_whatever_others_have(monkeypatch):
    FakeRay({"there": {"CPU": 4.0}}).install(monkeypatch)
    said = r"of the 12 CPUs of 10.0.0.1 and other nodes, 1 whole ones \(one on 10.0.0.1\) were not free"
    with pytest.raises(UserError, match=said), reserved_places([HERE, THERE], False, None, "ekya"):
        pass


@pytest.fixture
def answers(monkeypatch):
    """Has nodes answer what a test says."""

    def give(answer):
        monkeypatch.setattr(cluster, "call_on_node", lambda node, function, *given: answer(*given))
        monkeypatch.setattr(ray, "get", lambda answered, timeout: answered)

    return give


@pytest.mark.parametrize(("version", "said"), [("", "has no Ekya, and"), ("0.0.1", "has Ekya 0.0.1, and")])
def test_node_without_this_version_is_refused(answers, version, said):
    answers(lambda: version)
    with pytest.raises(UserError, match=f"its node 10.0.0.2 {said}"):
        require_ekya(THERE)


def test_node_that_does_not_share_the_folder_of_runs_is_refused(answers, tmp_path):
    answers(lambda path: Path(path).is_file())
    require_shared(tmp_path / "runs", THERE)
    assert list((tmp_path / "runs").iterdir()) == []
    answers(lambda path: False)
    with pytest.raises(UserError, match=f"{tmp_path}: Ray's node 10.0.0.2 has no such folder"):
        require_shared(tmp_path, THERE)


def test_clock_of_a_node_is_that_of_the_fastest_answer(answers, monkeypatch):
    here = iter([0, 100, 0, 20, 0, 100, 0, 100, 0, 100])
    monkeypatch.setattr(cluster, "time", SimpleNamespace(monotonic_ns=here.__next__))
    there = iter([1000, 2010, 1000, 1000, 1000])
    answers(there.__next__)
    assert measure_ahead_ns(THERE) == 2000


def test_node_is_lost_where_ray_says_so_or_nothing_listens_any_more(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        node = {"NodeManagerAddress": "127.0.0.1", "NodeManagerPort": server.getsockname()[1], "Alive": True}
        nodes = [node | {"NodeID": "here"}, node | {"NodeID": "there", "Alive": False}]
        monkeypatch.setattr(ray, "nodes", lambda: nodes)
        assert [is_node_lost(one) for one in ("here", "there", "unknown")] == [False, True, True]
    assert is_node_lost("here")


def test_gpu_whose_cores_others_have_is_not_free(monkeypatch):
    FakeRay({"here": {"GPU": 2.0, "CPU": 3.0}}).install(monkeypatch)
    with (
        pytest.raises(UserError, match="1 whole ones were not free"),
        reserved_places([HERE], True, 1, "ekya"),
    ):
        pass


def test_run_waits_for_what_others_free_and_for_a_group_that_another_was_faster_to_make(monkeypatch):
    fake = FakeRay({"here": {}}, refused=1).install(monkeypatch)
    fake.frees[3.0] = ("here", {"CPU": 1.0})
    with reserved_places([HERE], False, 1, "ekya"):
        assert fake.now_s >= 3.0
        assert len(fake.groups) == 2
        assert len(fake.removed) == 1


def test_run_that_waits_in_vain_says_who_holds_what_and_no_more_of_their_commands(monkeypatch):
    FakeRay({"here": {"GPU": 1.0, "CPU": 4.0}}).install(monkeypatch)
    with pytest.raises(UserError) as refused, reserved_places([HERE], True, 2, "ekya"):
        pass
    assert str(refused.value) == (
        "Ray: of the 2 GPUs of 10.0.0.1, 2 whole ones were not free within 15 s (1 by the reservation ab; "
        "job 04 runs (python train.py, pid 7 on 10.0.0.1)); wait for those who hold them, or set gpus lower"
    )


@pytest.mark.parametrize(("node", "said"), [(HERE, "3 is more than the 2 G"), (THERE, "more than the 0 G")])
def test_more_than_there_is_is_refused_at_once(monkeypatch, node, said):
    fake = FakeRay({}).install(monkeypatch)
    with pytest.raises(UserError, match=said), reserved_places([node], True, 3, "ekya"):
        pass
    assert fake.now_s == 0.0


@pytest.mark.parametrize("places", [(HERE,), (HERE, THERE)])
@pytest.mark.parametrize(("gpus", "wanted"), [({"gpus": 1.2}, 2), ({"gpus": 2.0}, 2)])
def test_run_in_a_cluster_plans_with_what_it_has_reserved(monkeypatch, tmp_path, gpus, wanted, places):
    asked, fleet = [], load_fleet(shipped_path("datasets/synthetic_city/fleet.yaml"), gpus)

    @contextmanager
    def joined(address, namespace):
        asked.append((address, namespace))
        yield (HERE, THERE), "http://127.0.0.1:8265"

    @contextmanager
    def reserved(nodes, on_gpus, number, name):
        asked.append((nodes, on_gpus, number, name))
        yield SimpleNamespace(cores=len(places), nodes=places, strategy_at=str)

    monkeypatch.setattr(ray_of_run, "joined_cluster", joined)
    monkeypatch.setattr(ray_of_run, "reserved_places", reserved)
    monkeypatch.setattr(cluster, "call_on_node", lambda node, function, *given: function(*given))
    monkeypatch.setattr(ray, "get", lambda answer, timeout: answer)
    monkeypatch.setattr(ray_of_run, "measure_ahead_ns", lambda node: 5)
    monkeypatch.chdir(tmp_path)
    options = settle_address(RunOptions(address="auto", shares="cpu", resume=Path("runs/old")))
    assert (options.runs, options.resume) == (tmp_path / "runs", tmp_path / "runs/old")
    with opened_ray(fleet, options, Console(quiet=True)) as on_ray:
        assert on_ray.chosen.capability.capacity_milli == 1000 * len(places)
        assert on_ray.chosen.cores == len(places)
        assert on_ray.nodes == places
        assert on_ray.place_at(0) == Place("0")
        if THERE in places:
            assert on_ray.place_at(1) == Place("1", "there", 5)
        assert "http://127.0.0.1:8265" in on_ray.connect()
    name = "ekya/synthetic-city"
    assert asked == [("auto", name), ((HERE, THERE), False, wanted, name)]


def test_only_reserved_gpus_are_seen(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    with ray_of_run._only_gpus(("2", "1")):
        assert ray_of_run.os.environ["CUDA_VISIBLE_DEVICES"] == "2,1"
    assert ray_of_run.os.environ["CUDA_VISIBLE_DEVICES"] == "0,1,2"
    with ray_of_run._only_gpus(None):
        assert ray_of_run.os.environ["CUDA_VISIBLE_DEVICES"] == "0,1,2"

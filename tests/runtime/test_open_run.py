"""Tests of how a run groups its streams into processes."""

from dataclasses import replace

import pytest

from ekya.config.fleet_reading import load_fleet
from ekya.config.shipped import shipped_path
from ekya.gpu.backends.registry import choose_backend
from ekya.gpu.nvml import Gpu, GpuInventory
from ekya.planning.placement.homes import Processes
from ekya.runtime.driver import open_run
from ekya.runtime.driver.cluster import ClusterNode
from ekya.runtime.driver.open_run import Grouping, OpenRun, group_streams
from ekya.system.host import HostMemory

GPUS = GpuInventory(tuple(Gpu(at, "card", 80 << 30, 80 << 30, f"GPU-{at}") for at in range(2)), "1", "two")


@pytest.fixture
def grouped(monkeypatch):
    """Groups the four cameras of the shipped fleet on this many cores, and on GPUs under a backend."""

    def group(cores, backend="mps", processes="auto", gpus=1):
        monkeypatch.setattr(open_run, "list_gpus", lambda: GPUS)
        monkeypatch.setattr(open_run, "read_host_memory", lambda: HostMemory(1 << 40, 1 << 40))
        shipped = load_fleet(shipped_path("datasets/synthetic_city/fleet.yaml"))
        fleet = shipped.model_copy(update={"processes": Processes(processes)})
        chosen = replace(choose_backend("cpu"), cores=cores)
        if backend != "cpu":
            most = 48 if backend == "mps" else None
            there = replace(chosen.capability, device="cuda", most_processes=most)
            chosen = replace(chosen, name=backend, capability=there)
        return group_streams(fleet, 1000 * gpus, chosen)

    return group


def test_streams_have_processes_where_cores_suffice_and_share_a_server_and_trainers_elsewhere(grouped):
    assert grouped(8).processes is Processes.STREAM
    server = grouped(6)
    why = "1 for inference and 3 for retraining on each GPU: two a camera are 8 on 6 cores"
    assert (server, server.trainer_milli) == (Grouping(Processes.GPU, 3, why), 300)
    assert grouped(6, gpus=2).trainers == 2, "no more than streams"
    assert grouped(8, processes="gpu").trainers == 4


@pytest.mark.parametrize(
    ("backend", "why"), [("cpu", "core: cores stand for GPUs"), ("duty-cycle", "GPU: without MPS")]
)
def test_one_trainer_has_all_of_a_gpu_without_mps(grouped, backend, why):
    alone = grouped(16, backend)
    assert (alone.processes, alone.trainers, alone.trainer_milli) == (Processes.GPU, 1, 1000)
    assert alone.why.startswith(f"1 for inference and 1 for retraining on each {why}")


def test_nodes_of_a_cluster_are_told_with_what_is_reserved_there_and_their_streams():
    here, there = ClusterNode("here", "10.0.0.1", 8, 0), ClusterNode("there", "10.0.0.2", 4, 0)
    run = OpenRun(None, None, None, None, choose_backend("cpu"), None, None, nodes=(here, here, there))
    assert run.summarize_nodes({"b": 1, "a": 0}) == [
        {"node": "10.0.0.1", "cores": 2, "streams": ["a", "b"]},
        {"node": "10.0.0.2", "cores": 1, "streams": []},
    ]

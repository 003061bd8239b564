import os
import pickle
import socket
import sys

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekya.errors import UserError
from ekya.gpu import mps
from ekya.gpu.bucket import Clocks
from ekya.gpu.cores import usable_cores
from ekya.gpu.cpu import CpuShares
from ekya.gpu.mps import MpsAnswer, MpsShares, ask_daemon
from ekya.gpu.nvml import Gpu, GpuInventory, list_gpus
from ekya.gpu.protocol import ShareJob
from ekya.gpu.registry import SHARE_BACKENDS, Machine, choose_backend

NO_GPU = GpuInventory((), None, "no NVIDIA driver answers")
ONE_GPU = GpuInventory((Gpu(0, "a GPU", 8 << 30, 7 << 30, "GPU-1"),), "600.1", "1 NVIDIA GPU")
TRAINER = ShareJob("retraining/cam-1", "retraining", 437)


def answers():
    return MpsAnswer(True, "an MPS daemon answers")


def is_silent():
    return MpsAnswer(False, "no MPS daemon runs here")


MACHINES = [Machine(2, NO_GPU, is_silent), Machine(2, ONE_GPU, is_silent), Machine(2, ONE_GPU, answers)]


@pytest.mark.parametrize("name", SHARE_BACKENDS)
@given(shares=st.dictionaries(st.text("abc-12", min_size=1), st.integers(0, 3000), max_size=8))
def test_every_backend_grants_no_more_than_asked_and_than_there_is(name, shares):
    backend = SHARE_BACKENDS[name](MACHINES[2])
    capability = backend.probe()
    grants = backend.quantise(shares)
    assert grants.share_milli.keys() == shares.keys()
    assert all(0 <= grants.share_milli[job] <= asked for job, asked in shares.items())
    assert all(share % capability.step_milli == 0 for share in grants.share_milli.values())
    assert sum(grants.share_milli.values()) <= capability.capacity_milli
    assert grants.lost_milli == sum(shares.values()) - sum(grants.share_milli.values())
    if sum(shares.values()) <= capability.capacity_milli:
        assert grants.lost_milli < max(1, len(shares)) * capability.step_milli


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", SHARE_BACKENDS)
def test_every_backend_says_why_and_has_capacity_only_where_it_works(name, machine):
    capability = SHARE_BACKENDS[name](machine).probe()
    assert capability.why
    assert (capability.capacity_milli > 0) == capability.usable


@pytest.mark.parametrize("name", SHARE_BACKENDS)
def test_what_a_run_opens_travels_to_the_processes_of_its_jobs(name):
    with SHARE_BACKENDS[name](MACHINES[2]).open(1) as opened:
        there = pickle.loads(pickle.dumps(opened))
        assert there.actor_env(TRAINER) == opened.actor_env(TRAINER)


def test_auto_takes_the_first_that_works_and_says_why_not_the_others():
    chosen = choose_backend(machine=MACHINES[1])
    assert chosen.name == "cpu"
    assert "not mps: no MPS daemon runs here" in chosen.why
    assert choose_backend(machine=MACHINES[2]).name == "mps"
    assert "no NVIDIA driver answers" in choose_backend(machine=MACHINES[0]).why


def test_a_named_backend_that_cannot_work_is_the_users_error():
    with pytest.raises(UserError, match=r"--shares mps: no MPS daemon runs here; use --shares auto"):
        choose_backend("mps", MACHINES[1])
    with pytest.raises(UserError, match="no such share backend; use one of auto, mps, cpu"):
        choose_backend("magic", MACHINES[0])


def test_mps_caps_what_is_started_anew_and_leaves_inference_alone():
    backend = MpsShares(ONE_GPU, answers)
    assert backend.actor_env(TRAINER) == {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "43"}
    assert backend.actor_env(ShareJob("inference/cam-1", "inference", 100)) == {}
    assert backend.actor_env(ShareJob("retraining/cam-1", "retraining", 0)) == {}


def test_a_live_mps_client_says_that_its_share_stays(monkeypatch):
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "43")
    resized = MpsShares(ONE_GPU, answers).attach(TRAINER).resize(900)
    assert resized.share_milli == 430
    assert "cannot change" in resized.note


def test_a_client_that_was_started_without_a_cap_says_so(monkeypatch):
    monkeypatch.delenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", raising=False)
    assert MpsShares(ONE_GPU, answers).attach(TRAINER).resize(430).share_milli == 1000


def test_told_to_an_mps_client_waits_between_batches_under_its_cap(monkeypatch):
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "43")
    now = [0]

    def wait(_condition, seconds):
        now[0] += round(seconds * 1e9)

    clocks = Clocks(lambda: now[0], lambda: 0, wait)
    handle = MpsShares(ONE_GPU, answers, duty_cycle=True, clocks=clocks).attach(TRAINER)
    assert handle.resize(900).share_milli == 430
    assert handle.resize(215).share_milli == 215
    for _ in range(300):
        with handle.scope():
            now[0] += 10_000_000
    assert handle.measured().share_milli == pytest.approx(215, rel=0.05)


def test_the_cpu_backend_keeps_its_jobs_on_one_thread():
    assert CpuShares(2).actor_env(TRAINER)["OMP_NUM_THREADS"] == "1"


def test_a_missing_driver_is_not_an_error(monkeypatch):
    def fail():
        raise pynvml.NVMLError_LibraryNotFound

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    inventory = list_gpus()
    assert inventory.gpus == ()
    assert inventory.driver is None
    assert "no NVIDIA driver answers" in inventory.why


@pytest.fixture
def daemon(tmp_path, monkeypatch):
    """A control program on the PATH that answers as the given shell line says."""

    def make(line, pipe=True):
        program = tmp_path / mps.CONTROL
        program.write_text(f"#!/bin/sh\n{line}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
        if pipe:
            os.mkfifo(tmp_path / "control")

    return make


def test_a_daemon_counts_only_when_its_pipe_answers(daemon):
    daemon('read line; test "$line" = get_server_list')
    assert ask_daemon().running


def test_a_daemon_that_refuses_is_quoted(daemon):
    daemon("echo 'Cannot find MPS control daemon process'; exit 1")
    assert ask_daemon() == MpsAnswer(False, "the MPS daemon refuses (Cannot find MPS control daemon process)")


def test_a_program_without_a_pipe_is_no_daemon(daemon):
    daemon("exit 0", pipe=False)
    assert "no MPS daemon runs here" in ask_daemon().why


def test_a_path_that_no_socket_can_have_is_named(daemon, monkeypatch):
    daemon("exit 0")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/tmp/" + "x" * 120)
    assert "longer than 107 bytes" in ask_daemon().why


def test_the_length_limit_is_the_kernels():
    if sys.platform != "linux":
        pytest.skip("the limit differs")
    with pytest.raises(OSError, match="too long"), socket.socket(socket.AF_UNIX) as sock:
        sock.bind("/" + "x" * (mps.MAX_SOCKET_BYTES + 1))


@pytest.mark.parametrize(("text", "most"), [("100000 100000", 1), ("max 100000", 999), ("150000 100000", 1)])
def test_a_containers_quota_limits_the_cores(tmp_path, text, most):
    (tmp_path / "cpu.max").write_text(text)
    assert usable_cores(tmp_path / "cpu.max") == min(most, usable_cores(tmp_path / "none"))

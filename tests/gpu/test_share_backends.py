import ctypes
import os
import pickle
import socket
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest
from fake_gpu import MS, FakeGpu
from waiting import HANG_GUARD_S

from ekya.core.errors import UserError
from ekya.gpu.backends.backend import Resized, ShareJob
from ekya.gpu.backends.cpu import CpuShares
from ekya.gpu.backends.registry import SHARE_BACKENDS, Machine, choose_backend
from ekya.gpu.mps.backend import MpsShares, NoCudaError, make_context
from ekya.gpu.mps.control import MAX_SOCKET_BYTES
from ekya.gpu.mps.service import MpsEnvironment, MpsFound, find_mps
from ekya.gpu.nvml import Gpu, GpuInventory, list_gpus

NO_GPU = GpuInventory((), None, "no NVIDIA driver answers")
ONE_GPU = GpuInventory((Gpu(0, "a GPU", 8 << 30, 7 << 30, "GPU-1"),), "600.1", "1 NVIDIA GPU")
TRAINER = ShareJob("retraining/cam-1", "retraining", 437)


def has_mps(_inventory):
    return MpsFound(
        True, "nvidia-cuda-mps-control can serve each GPU", Path("/usr/bin/nvidia-cuda-mps-control")
    )


def has_no_mps(inventory):
    return MpsFound(False, "nvidia-cuda-mps-control is not here" if inventory.gpus else inventory.why)


MACHINES = [
    Machine(2, NO_GPU, has_no_mps),
    Machine(2, ONE_GPU, has_no_mps),
    Machine(2, ONE_GPU, has_mps),
]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", SHARE_BACKENDS)
def test_backend_reason_is_given_and_capacity_only_if_usable(name, machine):
    capability = SHARE_BACKENDS[name](machine).probe_machine()
    assert capability.why
    assert (capability.capacity_milli > 0) == capability.usable


@pytest.mark.parametrize("name", SHARE_BACKENDS)
def test_backend_opened_state_is_sent_to_job_processes(name, fake_mps):
    with SHARE_BACKENDS[name](Machine(2, ONE_GPU, find_mps)).open(1) as opened:
        there = pickle.loads(pickle.dumps(opened))
        assert there.actor_env(TRAINER) == opened.actor_env(TRAINER)


def test_registry_auto_takes_first_usable_with_reasons():
    chosen = choose_backend(machine=MACHINES[1])
    assert chosen.name == "duty-cycle"
    assert "not mps: nvidia-cuda-mps-control is not here" in chosen.why
    assert choose_backend(machine=MACHINES[2]).name == "mps"
    assert choose_backend(machine=MACHINES[0]).name == "cpu"
    assert "no NVIDIA driver answers" in choose_backend(machine=MACHINES[0]).why


def test_registry_named_unusable_backend_is_a_user_error():
    with pytest.raises(UserError, match=r"mps: nvidia-cuda-mps-control is not here; use --shares auto"):
        choose_backend("mps", MACHINES[1])
    known = "use one of auto, mps, duty-cycle, cpu"
    with pytest.raises(UserError, match=f"there is no such share backend; {known}"):
        choose_backend("magic", MACHINES[0])
    with pytest.raises(UserError, match=f"there is no such share backend any more; {known}"):
        choose_backend("mps+green", MACHINES[2])


@pytest.mark.parametrize(("compute", "most"), [(6, 16), (7, 48), (9, 48), (None, 48)])
def test_mps_takes_as_many_processes_as_its_gpu(compute, most):
    inventory = replace(ONE_GPU, gpus=(replace(ONE_GPU.gpus[0], compute=compute),))
    assert MpsShares(inventory, has_mps).probe_machine().most_processes == most


def opened(**options):
    clients = tuple(
        {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/e/pipe", "CUDA_VISIBLE_DEVICES": gpu} for gpu in ("GPU-1", "GPU-2")
    )
    environment = MpsEnvironment(Path("/usr/bin/nvidia-cuda-mps-control"), clients)
    return MpsShares(ONE_GPU, has_mps, environment=environment, **options)


@pytest.fixture
def client(fake_mps, monkeypatch):
    """Turns this process into a job's process: started with an environment, and known to a server."""

    @contextmanager
    def make(percentage, **options):
        fake_mps.behave(clients=[os.getpid()])
        working = {"connect": lambda: None, "start_cuda": FakeGpu().start_cuda, **options}
        with MpsShares(ONE_GPU, **working).open(1) as backend:
            for name, value in backend.actor_env(TRAINER).items():
                monkeypatch.setenv(name, value)
            monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", percentage)
            yield backend
            fake_mps.behave()

    return make


def test_mps_caps_trainers_but_not_inference():
    def percentage(role, share_milli):
        job = ShareJob("job", role, share_milli)
        return opened().actor_env(job)["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"]

    assert percentage("retraining", 437) == "44", "the rest is waited for"
    assert percentage("preparation", 300) == "30"
    assert percentage("preparation", 1500) == "100"
    assert percentage("retraining", 0) == "90"
    assert percentage("inference", 100) == "100"


def test_mps_job_environment_names_daemon_and_gpu():
    env = opened().actor_env(replace(TRAINER, gpu=1))
    assert env["CUDA_VISIBLE_DEVICES"] == "GPU-2"
    assert env["CUDA_MPS_PIPE_DIRECTORY"] == "/tmp/e/pipe"


def test_mps_trainer_waits_under_its_cap(client):
    gpu = FakeGpu()
    with client("43", start_cuda=gpu.start_cuda, clocks=gpu.clocks) as backend:
        handle = backend.attach_job(TRAINER)
    resized = handle.resize(900)
    assert (resized.share_milli, resized.note) == (430, "the job cannot have more than its cap, which stays")
    assert handle.resize(215).share_milli == 215
    for _ in range(300):
        with handle.scope():
            gpu.launch(10)  # The host only queues the kernel.
    assert handle.measured().share_milli == pytest.approx(215, rel=0.05)


def test_mps_inference_is_measured_and_never_waits(client):
    gpu = FakeGpu()
    with client("100", start_cuda=gpu.start_cuda, clocks=gpu.clocks) as backend:
        handle = backend.attach_job(replace(TRAINER, role="inference", share_milli=0))
    assert handle.resize(10) == Resized(10, 0)
    for _ in range(30):
        with handle.scope():
            gpu.launch(10)
    assert (gpu.now_ns, gpu.waits) == (0, 0)
    gpu.now_ns = 300 * MS
    assert handle.measured().used_us == 300_000


def test_mps_process_outside_the_server_does_not_work(client, fake_mps, monkeypatch):
    monkeypatch.setattr("ekya.gpu.mps.backend.JOIN_WITHIN_S", 0.0)
    with client("43") as backend:
        fake_mps.behave(clients=[])
        with pytest.raises(UserError, match=r"cam-1 cannot work at a share: .* on 0 of its 1 servers"):
            backend.attach_job(TRAINER)


def test_mps_process_without_cuda_reports_why(client):
    def refuse():
        raise NoCudaError("cuInit gives CUDA error 100")

    with client("43") as backend, pytest.raises(UserError, match="cuInit gives CUDA error 100"):
        replace(backend, connect=refuse, sleep=lambda _s: pytest.fail("it would not help")).attach_job(
            TRAINER
        )


def test_mps_first_connection_is_retried(client):
    answers = [NoCudaError("cuInit gives CUDA error 807", mps_starts=True)] * 3
    slept = []

    def connect():
        if answers:
            raise answers.pop()

    with client("43") as backend:
        replace(backend, connect=connect, sleep=slept.append).attach_job(TRAINER)
    assert answers == []
    assert slept == sorted(slept), "each pause is at least as long as the one before"
    assert len(slept) == 3


def test_mps_server_that_never_starts_raises(client):
    slept = []

    def refuse():
        raise NoCudaError("cuInit gives CUDA error 805", mps_starts=True)

    with client("43") as backend, pytest.raises(UserError, match=r"cam-1 cannot work at a share: .* 805"):
        replace(backend, connect=refuse, sleep=slept.append).attach_job(TRAINER)
    assert 1 < sum(slept) < 20


@pytest.mark.parametrize(
    ("error", "passes"), [(807, True), (805, True), (808, False), (100, False), (0, None)]
)
def test_cuda_context_errors_of_starting_server_are_temporary(monkeypatch, error, passes):
    def answers(*_arguments):
        return error

    driver = SimpleNamespace(cuInit=answers, cuDeviceGet=answers, cuDevicePrimaryCtxRetain=answers)
    monkeypatch.setattr(ctypes, "CDLL", lambda _library: driver)
    if passes is None:
        make_context()
        return
    told = "takes no more clients" if error == 808 else f"cuInit gives CUDA error {error}"
    with pytest.raises(NoCudaError, match=told) as caught:
        make_context()
    assert caught.value.mps_starts == passes


def test_mps_without_daemon_makes_no_context(fake_mps, client, monkeypatch):
    monkeypatch.setattr("ekya.gpu.mps.backend._BACK_WITHIN_S", 0.0)
    started = []
    with client("43") as backend:
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(fake_mps.folders))
        with pytest.raises(UserError, match="cam-1 cannot work at a share: the MPS daemon refuses"):
            replace(backend, connect=lambda: started.append(1)).attach_job(TRAINER)
    assert started == [], "it would stay without MPS while the process lives"


def test_cuda_context_needs_a_driver():
    if list_gpus().driver is not None:
        pytest.skip("there is one")
    with pytest.raises(NoCudaError, match="libcuda"):
        make_context()


def test_mps_job_before_the_daemons_raises(fake_mps):
    with pytest.raises(RuntimeError, match="before it is opened"):
        MpsShares(ONE_GPU).actor_env(TRAINER)
    assert fake_mps.calls() == []


def test_cpu_backend_uses_one_thread_for_each_job():
    assert CpuShares(2).actor_env(TRAINER)["OMP_NUM_THREADS"] == "1"


def test_inventory_missing_driver_is_no_error(monkeypatch):
    def fail():
        raise pynvml.NVMLError_LibraryNotFound

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    inventory = list_gpus()
    assert inventory.gpus == ()
    assert inventory.driver is None
    assert "no NVIDIA driver answers" in inventory.why


def test_folder_length_limit_matches_the_kernel():
    if sys.platform != "linux":
        pytest.skip("the limit differs")
    with pytest.raises(OSError, match="too long"), socket.socket(socket.AF_UNIX) as sock:
        sock.bind("/" + "x" * (MAX_SOCKET_BYTES + 1))


def test_gpu_modules_import_neither_torch_nor_a_driver():
    code = """
import importlib, pkgutil, sys
import ekya.gpu
for found in pkgutil.walk_packages(ekya.gpu.__path__, "ekya.gpu."):
    importlib.import_module(found.name)
assert "torch" not in sys.modules, "a backend that is only probed must not wait for torch"
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=HANG_GUARD_S)

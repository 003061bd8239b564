import pickle
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_gpu import FakeDriver, FakeGpu
from waiting import HANG_GUARD_S

from ekya.core.errors import UserError
from ekya.core.gpus import GpuGroups
from ekya.gpu.backends.backend import ShareJob
from ekya.gpu.backends.registry import SHARE_BACKENDS, Machine, choose_backend
from ekya.gpu.cuda_context import NoCudaError
from ekya.gpu.green.backend import GreenShares
from ekya.gpu.green.claims import SmClaims
from ekya.gpu.green.gated_levels import GatedLevels
from ekya.gpu.green.green_context_pool import GreenProcess, GreenProcesses
from ekya.gpu.green.levels import LevelPool
from ekya.gpu.green.mps_clients import MpsGreenShares
from ekya.gpu.green.sm_layout import SmLayout, SmReport, SmSpan
from ekya.gpu.mps.backend import MpsShares
from ekya.gpu.mps.service import MpsEnvironment, MpsFound, MpsGpu
from ekya.gpu.nvml import Gpu, GpuInventory

NO_GPU = GpuInventory((), None, "no NVIDIA driver answers")
TWO_GPUS = GpuInventory(
    tuple(Gpu(place, "a GPU", 8 << 30, 7 << 30, f"GPU-{place}") for place in range(2)),
    "600.1",
    "2 NVIDIA GPUs",
)


def h200s():
    return SmReport((SmLayout(8, 16, 4),) * 2, "the driver can split 132 SMs in steps of 8")


def working_mps(_inventory):
    return MpsFound(True, "nvidia-cuda-mps-control can serve each GPU", Path("/usr/bin/control"))


def silent_mps(inventory):
    return MpsFound(False, "nvidia-cuda-mps-control is not here" if inventory.gpus else inventory.why)


def no_split():
    return SmReport((), "these cuda.bindings have no cuDevSmResourceSplitByCount")


@pytest.fixture
def made(tmp_path):
    """Fake driver and GPU of each device, and the function that makes them."""
    made = {}

    def make(device):
        driver, gpu = FakeDriver(), FakeGpu()
        pool = LevelPool(driver)
        made[device] = driver, gpu
        path = tmp_path / str(device)
        return GreenProcess(
            GatedLevels(pool, gpu, lambda: ()), gpu, lambda: SmClaims(path, pool.layout.groups)
        )

    made["make"] = make
    return made


def green(made):
    return GreenShares(TWO_GPUS, h200s, True, GreenProcesses(made["make"]))


def test_green_jobs_of_one_process_get_separate_spans(made):
    with green(made).open(2) as shares:
        handles = [
            shares.attach(ShareJob(name, "retraining", 500, gpu))
            for name, gpu in (("a", 0), ("b", 0), ("c", 1))
        ]
        groups = [
            made[gpu][0].groups_on(one.level.stream) for one, gpu in zip(handles, (0, 0, 1), strict=True)
        ]
        assert not groups[0] & groups[1]
        assert len(groups[2]) == 8
        assert made[0][0].calls.count("split") == 1
        for one in handles:
            one.release()
    assert made[0][0].closed and made[1][0].closed


def test_green_grant_names_its_multiprocessors():
    grants = GreenShares(TWO_GPUS, h200s, True).quantise({"a": 700, "b": 260, "c": 990, "d": 30})
    assert grants.share_milli == {"a": 667, "b": 243, "c": 970, "d": 30}
    assert grants.spans["a"].gpu == grants.spans["b"].gpu != grants.spans["c"].gpu
    assert grants.lost_milli == 70
    assert grants.spans["c"] == SmSpan(grants.spans["c"].gpu, 0, 16)
    assert "d" not in grants.spans, "what is less than a group has none of its own"
    assert GreenShares(TWO_GPUS, no_split, True).quantise({"a": 740}).lost_milli == 740


def test_green_alone_requires_a_shared_process():
    assert GreenShares(TWO_GPUS, h200s, True).probe().usable
    apart = GreenShares(TWO_GPUS, h200s, False).probe()
    assert not apart.usable
    assert "processes of their own" in apart.why
    assert GreenShares(TWO_GPUS, no_split, True).probe().why == no_split().why
    assert GreenShares(NO_GPU, h200s, True).probe().why == NO_GPU.why


def process_state(_device):
    return threading.Lock()


def test_green_process_state_is_never_pickled():
    there = pickle.loads(pickle.dumps(GreenShares(TWO_GPUS, h200s, True)))
    assert there.probe() == GreenShares(TWO_GPUS, h200s, True).probe()
    processes = GreenProcesses(process_state)
    held = processes.of(0)
    # A lock cannot be pickled, as the resources of a process cannot.
    assert pickle.loads(pickle.dumps(processes)).of(0) is not held


def _mps_green(machine):
    backend = SHARE_BACKENDS["mps+green"](machine)
    assert isinstance(backend, MpsGreenShares)
    gpus = tuple(MpsGpu(gpu.uuid, Path("/tmp/m") / gpu.uuid) for gpu in TWO_GPUS.gpus)
    return replace(backend, mps=replace(backend.mps, environment=MpsEnvironment(Path("/control"), gpus)))


def test_green_mps_client_may_use_all_multiprocessors():
    backend = _mps_green(Machine(2, TWO_GPUS, working_mps, h200s))
    for role, share in (("retraining", 300), ("inference", 100), ("preparation", 250)):
        assert backend.actor_env(ShareJob("a", role, share, 1)) == {
            "CUDA_MPS_PIPE_DIRECTORY": "/tmp/m/GPU-1",
            "CUDA_VISIBLE_DEVICES": "GPU-1",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100",
        }
    capability = backend.probe()
    assert (capability.enforcement, capability.live_resize, capability.groups) == (
        "hard",
        True,
        GpuGroups(8, 132),
    )


def test_green_mps_client_checks_daemon_and_sees_one_gpu(made, monkeypatch):
    backend = _mps_green(Machine(2, TWO_GPUS, working_mps, h200s))
    backend = replace(backend, green=replace(backend.green, processes=GreenProcesses(made["make"])))
    joined = []
    monkeypatch.setattr(MpsShares, "require_client", lambda _self, job: joined.append(job.gpu))
    handle = backend.attach(ShareJob("a", "retraining", 500, gpu=1))
    assert handle.resize(250).share_milli == 243
    assert joined == [1]
    assert set(made) == {"make", 0}
    handle.release()


def test_green_process_outside_mps_makes_no_contexts(made):
    def no_cuda():
        raise NoCudaError("cuInit gives CUDA error 805")

    backend = _mps_green(Machine(2, TWO_GPUS, working_mps, h200s))
    there = SimpleNamespace(wait_for_daemon=lambda _within_s: None)
    mps = replace(backend.mps, connect=no_cuda, environment=there)
    backend = MpsGreenShares(mps, replace(backend.green, processes=GreenProcesses(made["make"])))
    with pytest.raises(UserError, match="cannot work at a share: cuInit gives CUDA error 805"):
        backend.attach(ShareJob("a", "retraining", 500))
    assert set(made) == {"make"}


def test_registry_auto_tries_all_and_gives_reasons():
    def chosen(ask, split, one_process=False, inventory=TWO_GPUS):
        return choose_backend(machine=Machine(2, inventory, ask, split, one_process))

    assert list(SHARE_BACKENDS) == ["mps+green", "mps", "green", "duty-cycle", "cpu"]
    assert chosen(working_mps, h200s).name == "mps+green"
    without_green = chosen(working_mps, no_split)
    assert without_green.name == "mps"
    assert f"not mps+green: {no_split().why}" in without_green.why
    assert chosen(silent_mps, h200s, one_process=True).name == "green"
    apart = chosen(silent_mps, h200s)
    assert apart.name == "duty-cycle"
    assert "not green: its jobs run in processes of their own" in apart.why
    assert chosen(silent_mps, h200s, inventory=NO_GPU).name == "cpu"


def test_registry_named_backend_is_never_replaced():
    machine = Machine(2, TWO_GPUS, working_mps, no_split)
    with pytest.raises(UserError, match=r"--shares mps\+green: these cuda.bindings have no"):
        choose_backend("mps+green", machine)
    with pytest.raises(UserError, match="--shares green: its jobs run in processes of their own"):
        choose_backend("green", Machine(2, TWO_GPUS, silent_mps, h200s))
    assert choose_backend("duty-cycle", machine).name == "duty-cycle"


def test_gpu_modules_import_without_cuda_and_driver():
    code = """
import importlib, pkgutil, sys
class NoCuda:
    def find_spec(self, name, path=None, target=None):
        if name == "cuda" or name.startswith("cuda."):
            raise ImportError(name)
sys.meta_path.insert(0, NoCuda())
import ekya.gpu
names = [found.name for found in pkgutil.walk_packages(ekya.gpu.__path__, "ekya.gpu.")]
light = [name for name in names if name != "ekya.gpu.backends.torch_streams"]
for name in light:
    importlib.import_module(name)
assert "torch" not in sys.modules, "a backend that is only probed must not wait for torch"
assert len(names) > 15
from ekya.gpu.green.cuda_driver import read_layouts
print(read_layouts().why)
"""
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=HANG_GUARD_S
    )
    assert answer.returncode == 0, answer.stderr
    assert "cuda.bindings is not installed" in answer.stdout

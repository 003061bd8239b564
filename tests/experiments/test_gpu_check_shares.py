"""Tests of the checks of shares, in one process and of clients of MPS: each must be able to fail."""

import importlib
import statistics
from types import SimpleNamespace

import pytest
import torch
from fake_gpu import FakeDriver, FakeGpu

from ekya.gpu.green.claims import SmClaims
from ekya.gpu.green.green_context_pool import GreenProcess
from ekya.gpu.green.levels import GatedLevels, LevelPool, spans_ahead
from ekya.system.numeric_result import Checked

pytest.importorskip("cuda.bindings")
# Imported outside of the tests, so that loading torch does not count as a test's time.
shares = importlib.import_module("gpu_check_shares")
kernels = importlib.import_module("gpu_check_kernels")
CHECKS = importlib.import_module("gpu_check").CHECKS
MODULES = {check.module: importlib.import_module(check.module) for check in CHECKS}


class FakeKernels:
    """Kernels on a fake GPU, whose speed depends only on the multiprocessors of the stream."""

    def __init__(self, world):
        self.world, self.sms = world, world.driver.sms

    def where(self, stream):
        return self.world.sms_of(stream)

    def compute(self, stream, blocks, rounds):
        assert stream == self.world.gpu.current(), "a kernel on a stream that is not marked"
        sms = len(self.world.sms_of(stream)) ** self.world.power * 132 ** (1 - self.world.power)
        self.world.gpu.launch(blocks * rounds / sms / 3000)


class World:
    """One GPU, one process, and the fakes that replace CUDA in the checks."""

    def __init__(self, folder):
        self.driver, self.gpu, self.power, self.bad = FakeDriver(), FakeGpu(), 1.0, ()
        self.overlapping, self.file = False, folder / "claims"
        self.plain = 77

    def open_process(self):
        pool = LevelPool(self.driver)
        levels = GatedLevels(pool, self.gpu, lambda: [Checked("product", "float16", 0.0, self._is_fine())])
        levels.make_ahead(spans_ahead(pool.layout))
        return GreenProcess(levels, self.gpu, lambda: SmClaims(self.file, pool.layout.groups))

    def sms_of(self, stream):
        """Returns the SMs of a stream; the last group has those that do not fill one."""
        if stream in (self.plain, FakeGpu.DEFAULT):
            return set(range(132))
        groups = self.driver.groups_on(stream)
        ids = {8 * group + place for group in groups if group != "rest" for place in range(8)}
        ids |= set(range(128, 132)) if "rest" in groups else set()
        return {0} | ids if self.overlapping else ids

    def _is_fine(self):
        return len(self.sms_of(self.gpu.current())) not in self.bad


@pytest.fixture
def world(tmp_path, monkeypatch):
    made = World(tmp_path)
    # The module keeps the process that it opened; a reloaded one has none.
    importlib.reload(shares)
    monkeypatch.setattr(shares, "DEVICE", "cpu")
    monkeypatch.setattr(shares, "open_process", made.open_process)
    monkeypatch.setattr(shares, "Kernels", lambda: FakeKernels(made))
    monkeypatch.setattr(shares, "TorchStreams", lambda _device: made.gpu)
    monkeypatch.setattr(shares, "CudaCalls", lambda: None)
    monkeypatch.setattr(shares, "CudaDriver", lambda _calls: made.driver)
    monkeypatch.setattr(shares, "_plain_stream", lambda: made.plain)
    monkeypatch.setattr(shares, "_model", lambda: torch.nn.Linear(1024, 4))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    stream = SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setattr(
        torch.cuda,
        "current_stream",
        lambda: SimpleNamespace(cuda_stream=made.gpu.current(), synchronize=stream.synchronize),
    )
    # The backward pass of a CPU tensor runs in the calling thread, so it finds that thread's stream.
    return made


def met(check):
    return {finding.name: finding.met for finding in check()}


@pytest.mark.parametrize("name", ["split", "gate", "disjoint", "speed", "beside", "resize"])
def test_shares_correct_gpu_meets_every_expectation(world, name, monkeypatch):
    monkeypatch.setattr(shares, "RESIZES", 20)
    found = met(getattr(shares, name))
    # The time of a resize depends on this machine.
    found.pop("a resize in the running process", None)
    assert found and all(found.values()), found


def test_speed_expected_is_the_part_of_132_multiprocessors(world):
    figures = [finding.figures for finding in shares.speed()]
    assert [one["sms"] for one in figures] == [32, 64, 96]
    assert [one["expected"] for one in figures] == pytest.approx([0.24, 0.48, 0.73], abs=0.005)


def test_speed_outside_tolerance_is_unmet(world):
    world.power = 0.9
    assert set(met(shares.speed).values()) == {False}


def test_beside_jobs_get_96_and_36_multiprocessors(world):
    (found,) = shares.beside()
    assert found.figures["sms"] == [96, 36]
    assert found.figures["kept"] == pytest.approx([1.0, 1.0], rel=0.01)


def test_disjoint_overlapping_multiprocessor_is_unmet(world):
    world.overlapping = True
    assert False in met(shares.disjoint).values()


def test_gate_wrong_results_name_the_number_of_multiprocessors(world):
    world.bad = (40,)
    (found,) = shares.gate()
    assert not found.met
    assert "on 40: a product in float16 has values that are not finite" in found.measured


def test_resize_moved_weights_are_unmet(world, monkeypatch):
    monkeypatch.setattr(shares, "RESIZES", 4)
    monkeypatch.setattr(shares.os, "getpid", iter(range(100)).__next__)
    assert not met(shares.resize)["process and addresses of the weights after all resizes"]


def test_restart_time_is_the_median_of_its_processes(monkeypatch):
    monkeypatch.setattr(shares.subprocess, "run", lambda *_args, **_options: None)
    (found,) = shares.restart()
    assert found.figures["median_s"] == statistics.median(found.figures["all_s"]) < 1.0


def test_share_checks_in_list_exist():
    for check in CHECKS:
        assert callable(getattr(MODULES[check.module], check.function))


def test_kernels_compile_for_h200(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
    try:
        code = kernels._compiled()
    except RuntimeError as error:
        pytest.skip(f"no NVRTC here: {str(error).splitlines()[0]}")
    assert code.startswith(b"\x7fELF")
    assert b"where" in code and b"compute" in code


pytest.importorskip("cuda.bindings")
mps = importlib.import_module("gpu_check_mps")


def place(ran_on, granted):
    return {"ids": list(range(ran_on)), "granted_sms": granted}


def test_mps_ids_that_begin_at_0_in_each_client_are_met():
    finding = mps.places_finding([place(88, 88), place(44, 44)])
    assert (finding.met, finding.measured) == (True, "88 of 88 and 44 of 44")


@pytest.mark.parametrize("ran_on", [0, 43, 132])
def test_mps_other_number_than_granted_is_unmet(ran_on):
    assert not mps.places_finding([place(88, 88), place(ran_on, 44)]).met


@pytest.mark.parametrize(
    ("together", "met"), [([99.0, 91.0], True), ([99.0, 60.0], False), ([75.0, 50.0], False)]
)
def test_mps_clients_on_their_own_multiprocessors_keep_their_speed(together, met):
    assert mps.apart_finding([100.0, 100.0], together).met is met


@pytest.mark.parametrize(
    ("together", "met"), [([50.0, 50.0], True), ([99.0, 99.0], False), ([60.0, 65.0], False)]
)
def test_mps_clients_on_the_same_multiprocessors_share_the_speed(together, met):
    assert mps.same_finding(100.0, together).met is met

"""Tests of the checks of training and inference at shares: with given rates, and once for real on the CPU."""

import importlib
from dataclasses import replace

import pytest
from fake_reader import Reader
from gpu_check_report import BEGIN, END, Machine, write_up

from ekya.core.configs import RetrainConfig
from ekya.core.events import GpuUse
from ekya.gpu.backends.cpu import CpuShares
from ekya.gpu.window_meter import GpuMeter
from ekya.pipeline.speed_jobs import ProbeSpec, Rate

# Imported outside of the tests, so that loading torch does not count as a test's time.
check = importlib.import_module("gpu_check_work")
energy = importlib.import_module("gpu_check_energy")

SPEC = ProbeSpec("mobilenet_v3_small", 16, RetrainConfig(1, 32, 0, 1, 1.0), "cpu", 0.2)
QUARTERS = (250, 500, 750, 1000)


@pytest.fixture
def world(monkeypatch):
    """Fake processes as fast as their share, slowed down by ``beside`` when both work."""

    class World:
        beside, alone_at_a_quarter, free_p99_ms, asked, left = 1.0, 1.0, 9.0, [], 0

    def rates_at(shares):
        World.asked.append(dict(shares))
        working = [share for _, share in shares if share]
        slower = World.beside if len(working) == 2 and sum(working) <= 1000 else 1.0
        slower *= World.alone_at_a_quarter if working == [250] else 1.0
        p99_ms = World.free_p99_ms if sum(working) > 1000 else 5.0
        return [Rate(share, share, share, 6.0 * share * slower, 2.0, p99_ms) for _, share in shares]

    class Probes:
        def __init__(self, _backend, _spec, kinds):
            self.kinds = kinds

        def __enter__(self):
            return self.kinds

        def __exit__(self, *_):
            World.left += 1

    World.asked, World.left = [], 0
    monkeypatch.setattr(check, "rates_at", rates_at)
    monkeypatch.setattr(check, "probes", Probes)
    return World


STUDENT = ProbeSpec("fastestdet", 96, RetrainConfig(1, 8, 0, 1, 1.0), "cpu", 0.2)


def findings(spec=SPEC, meter="no NVML"):
    def both():
        half = yield from check.with_shares(CpuShares(2), "cpu", spec, QUARTERS, meter)
        yield from check.without_shares("cpu", half, spec)

    return list(both())


def test_work_jobs_run_alone_and_then_share_the_gpu(world):
    found = findings()
    assert [one.met for one in found] == [True, True, None, True, None, True]
    # While one works alone, the other rests.
    assert world.asked[0] == {"inference": 0}
    assert world.asked[1:5] == [{"training": share} for share in QUARTERS]
    assert world.asked[5:10] == [{"training": 0}, *({"inference": share} for share in QUARTERS)]
    assert world.asked[11:14] == [{"training": share, "inference": 1000 - share} for share in QUARTERS[:3]]
    assert world.asked[14] == {"training": 1000, "inference": 1000}
    assert len(world.asked) == 15
    assert world.left == 2
    assert found[1].measured.startswith("25%: 1500/s, p50 2.00 ms, p99 5.00 ms; 50%: 3000/s")
    assert found[5].figures["with_shares"]["training"]["granted_milli"] == 500


@pytest.mark.parametrize(
    ("name", "value", "unmet"),
    [
        ("beside", 0.85, [3]),
        ("beside", 0.95, []),
        ("alone_at_a_quarter", 0.8, [0, 1]),
        ("free_p99_ms", 4.0, [5]),
    ],
)
def test_work_slower_than_expected_is_unmet(world, name, value, unmet, monkeypatch):
    monkeypatch.setattr(world, name, value)
    assert [place for place, one in enumerate(findings()) if one.met is False] == unmet


def test_work_of_a_detector_makes_the_same_checks_without_energy(world):
    found = findings(STUDENT, meter=None)
    assert [one.met for one in found] == [True] * 4
    assert all("fastestdet" in one.name for one in found)
    assert world.asked[-1] == {"training": 1000, "inference": 1000}


class Usable(CpuShares):
    def probe_machine(self):
        return replace(super().probe_machine(), device="cuda")


class Refusing(Usable):
    def open(self, gpus):
        raise check.UserError("no daemon answers")


class Dying(CpuShares):
    """Backend whose processes die."""

    def attach_job(self, job):
        raise ValueError("an illegal address")


@pytest.mark.live
@pytest.mark.virtual
def test_work_dead_process_reports_its_error():
    with pytest.raises(RuntimeError, match=r"for training has died \(ValueError: an illegal address\)"):
        list(check.with_shares(Dying(1), "cpu", SPEC, QUARTERS, "no NVML"))


def test_work_unusable_backend_is_reported_and_next_one_measured(world, monkeypatch):
    backends = {"no GPU": CpuShares(1), "first": Refusing(1), "second": Usable(1), "third": Usable(1)}
    monkeypatch.setattr(
        check, "SHARE_BACKENDS", {name: lambda _, one=one: one for name, one in backends.items()}
    )
    monkeypatch.setattr(
        check, "seen_by_cuda", lambda: importlib.import_module("ekya.gpu.nvml").GpuInventory((), None, "none")
    )
    for checked, count, model in ((check.work, 7, "resnet18"), (check.student, 5, "fastestdet")):
        found = list(checked())
        assert (found[0].met, found[0].measured) == (False, "no daemon answers")
        assert len(found) == count
        assert f"of a {model}" in found[0].name
        assert "by second" in found[1].name


def test_energy_of_images_is_power_over_speed():
    with GpuMeter([Reader()], every_s=60.0, clock_ns=iter(range(0, 10**12, 10**9)).__next__) as meter:
        (found,) = energy.of_images(meter, lambda: Rate(1.0, 1000, images_per_s=200.0))
    assert found.met
    # The fake counts 100 J from one reading to the next, and a second passes between them.
    assert found.figures["joules_per_1000_images"] == pytest.approx(500.0)


USE = GpuUse(0, "GPU-1", 2_000_000, 8, 4, 5, 0.9, "sm-utilization", 500.0, 100.0, 1000.0, "counter", 11)


def test_energy_of_jobs_is_divided_by_use():
    told = energy.modelled(USE, 600, 200)
    assert told.idle_j == pytest.approx(200.0)
    assert sorted(told.jobs_j.values()) == pytest.approx([200.0, 600.0])
    assert energy.modelled(replace(USE, energy_j=None), 600, 200) is None


def test_energy_of_jobs_names_the_model_as_source():
    with GpuMeter([Reader()], every_s=60.0, clock_ns=iter(range(0, 10**12, 10**9)).__next__) as meter:
        (found,) = energy.of_jobs(meter, lambda: [Rate(1.0, 600), Rate(1.0, 200)])
    assert found.met
    assert "by a model: " in found.measured
    assert set(found.figures["modelled_jobs_j"]) == {"inference", "retraining"}


def test_energy_without_pynvml_is_skipped(monkeypatch):
    missing = ModuleNotFoundError("No module named 'pynvml'", name="pynvml")

    def refuse(_name):
        raise missing

    monkeypatch.setattr(energy.importlib, "import_module", refuse)
    with energy.metered(None) as meter:
        assert meter == "the Python package pynvml is missing"
    (found,) = energy.of_jobs(meter, lambda: [])
    assert found.met is None


@pytest.mark.live
@pytest.mark.long
@pytest.mark.parametrize("spec", [SPEC, STUDENT], ids=lambda spec: spec.architecture)
def test_work_live_processes_fill_the_table(spec, tmp_path):
    """Runs on the CPU, in small; the rates depend on the load of this machine."""
    page = tmp_path / "gpu.md"
    page.write_text(f"{BEGIN}\n{END}\n")
    found = findings(spec)
    write_up(Machine("a CPU", "none", "2.11", "2026-01-31"), found, tmp_path / "gpu_check.json", page)
    assert len(found) == 6
    assert all(rate["images_per_s"] > 0 for one in found[:2] for rate in one.figures["rates"])
    assert [len(one.figures["rates"]) for one in (found[0], found[1], found[3])] == [4, 4, 3]
    assert "of 6 as expected" in page.read_text()

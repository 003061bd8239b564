"""Tests of ``ekya doctor``."""

import json

import pytest
from commands import gpu

from ekya import cli
from ekya.config.fleet_file import DEFAULT_FLEET
from ekya.config.fleet_reading import load_fleet
from ekya.config.shipped import shipped_path
from ekya.config.sizing import resolutions_to_measure
from ekya.gpu.mps.service import MpsFound
from ekya.gpu.nvml import GpuInventory
from ekya.models.edge.forward import ForwardWay, SelfTest
from ekya.pipeline.kept_measurements import SELF_TESTS, self_test_key
from ekya.runtime.driver.machine_report import examination_as_json, examine_machine


def test_doctor_without_gpu_reports_every_check_and_the_cpu_backend(tmp_path):
    no_gpu = GpuInventory((), None, "no NVIDIA driver answers")
    examination = examine_machine(tmp_path / "runs", no_gpu, lambda inventory: MpsFound(False, inventory.why))
    assert (examination.shares, examination.device) == ("cpu", "cpu")
    assert "not mps: no NVIDIA driver answers" in examination.reasons
    found = examination_as_json(examination)["findings"]
    what = ("CPU", "Memory", "Shared memory", "Disk", "GPU", "MPS", "Ray", "torch", "OpenCV", "Shipped fleet")
    assert {*what, "Forward passes"} == set(found)
    assert examination_as_json(examination)["measured"] == {}
    assert json.loads(json.dumps(examination_as_json(examination)))["gpus"] == examination.gpus


def test_doctor_with_a_kept_self_test_reports_it(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    no_gpu = GpuInventory((), None, "no NVIDIA driver answers")

    def forward():
        examination = examine_machine(tmp_path, no_gpu, lambda inventory: MpsFound(False, inventory.why))
        return examination_as_json(examination)["findings"]["Forward passes"]

    assert forward()["found"].startswith("not tested yet")
    fleet = load_fleet(shipped_path(DEFAULT_FLEET))
    key = self_test_key("cpu", fleet.edge.model, resolutions_to_measure(fleet))
    SELF_TESTS.save(
        key,
        SelfTest(way=ForwardWay(channels_last=True), plain_ms=8.0, chosen_ms=4.0, tried=(), took_s=0.5),
    )
    report = "channels last: 4.0 ms for a typical frame of a resnet18, plain 8.0 ms"
    assert forward() == {"found": report, "fine": True}


@pytest.mark.live
@pytest.mark.virtual
def test_doctor_with_measure_times_the_shipped_fleet(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    report = tmp_path / "doctor.json"
    assert cli.main(["doctor", "--runs", str(tmp_path), "--measure", "--json", str(report)]) == 0
    report = json.loads(report.read_text())
    assert report["measured"]["forward"]["way"] in report["findings"]["Forward passes"]["found"]
    assert report["findings"]["Measured"]["found"].startswith("a frame ")


def test_doctor_with_mps_reports_it(tmp_path):
    gpus = GpuInventory((gpu(0),), "600.1", "1 NVIDIA GPU")
    found = MpsFound(True, "/usr/bin/nvidia-cuda-mps-control can serve each GPU")
    examination = examine_machine(tmp_path / "runs", gpus, lambda _inventory: found)
    assert examination_as_json(examination)["findings"]["MPS"] == {"found": found.why, "fine": True}
    assert any(found.why in reason for reason in examination.reasons)
    assert examination.device == "cuda"

"""What a service does around its run, without a run."""

import sqlite3
import threading
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
from rich.console import Console
from service_folder import CAM, a_service, names, put
from waiting import HANG_GUARD_S

from ekya.config.fleet_reading import load_fleet
from ekya.config.run_options import RunOptions
from ekya.config.shipped import shipped_path
from ekya.control.protocols import Batch
from ekya.core import commands as cmd
from ekya.core.errors import FullDiskError
from ekya.service.process import FleetService, serve_fleet


@pytest.mark.parametrize(
    ("commands", "again"), [((cmd.StartAgain("a class was added"),), True), ((cmd.EndPreparation(1),), False)]
)
def test_service_ends_to_start_again_when_the_loop_says_so(commands, again):
    fleet, stop = load_fleet(shipped_path("datasets/synthetic_city/fleet.yaml")), threading.Event()
    service = FleetService(SimpleNamespace(fleet=fleet), True, ExitStack(), stop)
    service.observe_step(Batch(0, ()), SimpleNamespace(commands=commands))
    assert (service.starts_again, stop.is_set()) == (again, again)


def test_service_that_goes_on_removes_what_is_old_before_a_full_disk_ends_it(tmp_path, monkeypatch):
    def full(_shares):
        raise FullDiskError("rtsp://me:secret@10.0.0.5/live: the disk is full")

    folder = a_service(tmp_path)
    put(folder, f"predictions/{CAM}/2020-01-01T00.parquet", "old")
    options = RunOptions(name="yard", resume=folder.path, endless=True)
    monkeypatch.setattr("ekya.service.process.choose_backend", full)
    with pytest.raises(FullDiskError, match=r"rtsp://\*\*\*@10.0.0.5/live"):
        serve_fleet(load_fleet(folder.fleet), options, True, Console(quiet=True))
    answers = {name for name in names(folder.path) if name.startswith("predictions/")}
    assert f"predictions/{CAM}/2020-01-01T00.parquet" not in answers
    assert f"predictions/{CAM}/2026-11-25T17.parts/000000000000-000000000009.parquet" in answers


def test_service_removes_what_is_old_also_after_failures(tmp_path, monkeypatch, caplog):
    began = threading.Semaphore(0)

    def held(*_):
        raise sqlite3.OperationalError("database is locked")

    def collect_held(*_):
        began.release()
        held()

    folder = a_service(tmp_path, http={"port": 0})
    fleet = load_fleet(folder.fleet)
    monkeypatch.setattr("ekya.service.process.collect_or_warn", collect_held)
    monkeypatch.setattr("ekya.service.process.StatusKeeper.past", held)
    run = SimpleNamespace(folder=folder, fleet=fleet, options=SimpleNamespace(resume=None))
    with ExitStack() as stack:
        service = FleetService(run, False, stack, threading.Event())
        service.attach(SimpleNamespace(fleet=fleet, now_us=lambda: 0))
        for _ in range(2):
            service.collect()
            assert began.acquire(timeout=HANG_GUARD_S)
    assert "past is not kept (database is locked)" in caplog.text
    assert "the next window tries again" in caplog.text

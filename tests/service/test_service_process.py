"""What a service does around its run, without a run."""

import threading
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from ekya.config.fleet_reading import load_fleet
from ekya.config.shipped import shipped_path
from ekya.control.protocols import Batch
from ekya.core import commands as cmd
from ekya.service.process import FleetService


@pytest.mark.parametrize(
    ("commands", "again"), [((cmd.StartAgain("a class was added"),), True), ((cmd.EndPreparation(1),), False)]
)
def test_service_ends_to_start_again_when_the_loop_says_so(commands, again):
    fleet, stop = load_fleet(shipped_path("datasets/synthetic_city/fleet.yaml")), threading.Event()
    service = FleetService(SimpleNamespace(fleet=fleet), True, ExitStack(), stop)
    service.observe(Batch(0, ()), SimpleNamespace(commands=commands))
    assert (service.starts_again, stop.is_set()) == (again, again)

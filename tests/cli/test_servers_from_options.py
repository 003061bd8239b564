"""Servers of a file, as they are read for virtual time, and for this machine."""

import pytest
import yaml
from commands import live_camera, on_a_machine_with, write_fleet

from ekya.cli.servers_from_options import read_all_servers, read_servers_here
from ekya.core.errors import UserError
from ekya.fleet.policy.places import SiteName
from ekya.gpu.backends import registry

EAST, NORTH, SOUTH = map(SiteName, ("east", "north", "south"))


@pytest.fixture
def file(tmp_path):
    """Writes a servers file with these servers; their fleet file leaves ``gpus`` open."""

    def write(*servers, **changes):
        fleet = write_fleet(tmp_path, **changes)
        raw = yaml.safe_load(fleet.read_text())
        del raw["gpus"]
        fleet.write_text(yaml.safe_dump(raw))
        path = tmp_path / "town.yaml"
        path.write_text(yaml.safe_dump({"fleet": "fleet.yaml", "servers": list(servers)}))
        return path

    return write


@pytest.fixture
def machine(monkeypatch):
    """Gives this machine a number of GPUs."""
    return lambda gpus: monkeypatch.setattr(registry, "choose_backend", on_a_machine_with(gpus))


def here(site, **its):
    return {"site": site, **its}


CAMERA = live_camera("rtsp://u:${CAM_PASSWORD}@10.0.0.9/live")


@pytest.mark.parametrize("gpus", [1, 4])
def test_servers_of_this_machine_share_it(gpus, file, machine) -> None:
    """Of several GPUs all servers of a machine begin with the first."""
    machine(gpus)
    servers = read_servers_here(file(here(NORTH), here(EAST)), {"windows": 2}, "auto")
    for server in servers.servers:
        assert server.fleet.capacity_milli == 500
    assert {server.fleet.windows for server in servers.servers} == {2}


@pytest.mark.parametrize("changes", [{}, {"gpus": 0.01}])
def test_other_sizes_are_left_to_the_machine_that_measures_its_costs(changes, file, machine) -> None:
    """By the costs of another machine a fleet might be refused that runs on this one's GPU."""
    machine(1)
    path = file(here(NORTH, changes=changes))
    (server,) = read_servers_here(path, {}, "auto").servers
    assert server.fleet.is_set("gpus")
    assert server.fleet.gpus == changes.get("gpus", 1)
    assert not server.fleet.is_set("quantum_milli")
    assert not server.fleet.is_set("inference.every")


def test_servers_that_together_need_more_than_there_is_are_refused(file, machine) -> None:
    machine(1)
    path = file(here(EAST), here(SOUTH, changes={"gpus": 3}))
    with pytest.raises(UserError, match=r"gpus: 3.5, of all servers here, is more than the 1 that are here"):
        read_servers_here(path, {}, "auto")


def test_passwords_of_cameras_must_be_set(file, machine, monkeypatch) -> None:
    machine(1)
    monkeypatch.delenv("CAM_PASSWORD", raising=False)
    path = file(here(NORTH, changes={"gpus": 1}), **CAMERA)
    with pytest.raises(UserError, match=r"key 'streams.cam-1.source.url': .*CAM_PASSWORD"):
        read_servers_here(path, {}, "auto")
    monkeypatch.setenv("CAM_PASSWORD", "secret")
    assert [server.terms.site for server in read_servers_here(path, {}, "auto").servers] == [NORTH]


def test_on_virtual_time_all_servers_are_read_and_none_has_a_live_camera(file) -> None:
    path = file(here(NORTH, changes={"gpus": 40}), here(SOUTH))
    assert [server.terms.site for server in read_all_servers(path, {}).servers] == [NORTH, SOUTH]
    with pytest.raises(UserError, match="a live camera cannot be watched on virtual time"):
        read_all_servers(file(here(NORTH), **CAMERA), {})


def test_a_scheduler_that_needs_weights_from_elsewhere_is_refused_for_each_command(file, machine) -> None:
    machine(1)
    path = file(here(NORTH), here(SOUTH))
    for read in (
        lambda changes: read_all_servers(path, changes),
        lambda changes: read_servers_here(path, changes, "auto"),
    ):
        with pytest.raises(UserError, match=r"scheduler: cloud (brings|serves) weights"):
            read({"scheduler": "cloud"})

"""Servers of a file, as each command reads them: those of this machine, one site's, or all."""

import pytest
import yaml
from commands import live_camera, on_a_machine_with, write_fleet

from ekya.cli.servers_from_options import read_all_servers, read_server_of_site, read_servers_here
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


def elsewhere(site, **its):
    return {"site": site, "address": f"10.0.0.{len(site)}:7070", **its}


CAMERA = live_camera("rtsp://u:${CAM_PASSWORD}@10.0.0.9/live")


def test_only_fleet_files_of_this_machine_are_read(file, machine) -> None:
    machine(1)
    path = file(elsewhere(SOUTH, fleet="/on/south/alone.yaml"), here(NORTH))
    servers = read_servers_here(path, {}, "auto")
    assert [server.terms.site for server in servers.servers] == [NORTH]
    assert servers.sites == (NORTH, SOUTH)
    assert servers.addresses == {SOUTH: "10.0.0.5:7070"}


@pytest.mark.parametrize("gpus", [1, 4])
def test_servers_of_this_machine_share_it_and_their_sites_fit_them_alike(gpus, file, machine) -> None:
    """Of several GPUs all servers of a machine begin with the first."""
    machine(gpus)
    path = file(here(NORTH), here(EAST), elsewhere(SOUTH))
    servers = read_servers_here(path, {"windows": 2}, "auto")
    for server in servers.servers:
        assert server.fleet.capacity_milli == 500
        assert read_server_of_site(path, {"windows": 2}, "auto", server.terms.site).fleet == server.fleet
    assert {server.fleet.windows for server in servers.servers} == {2}


def test_a_server_with_an_address_has_its_machine_for_itself(file, machine) -> None:
    machine(1)
    path = file(here(NORTH), here(EAST), elsewhere(SOUTH))
    assert read_server_of_site(path, {}, "auto", SOUTH).fleet.capacity_milli == 1000
    assert read_server_of_site(path, {}, "auto", NORTH).fleet.capacity_milli == 500


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


def test_a_machine_without_servers_of_its_own_needs_no_gpu(file, monkeypatch) -> None:
    def nothing_works(shares):
        raise UserError("--shares mps: there is no GPU")

    monkeypatch.setattr(registry, "choose_backend", nothing_works)
    assert read_servers_here(file(elsewhere(SOUTH)), {}, "mps").servers == ()
    with pytest.raises(UserError, match="there is no GPU"):
        read_servers_here(file(here(NORTH)), {}, "mps")


@pytest.mark.parametrize(
    ("site", "said"),
    [
        ("west", "--site west: .*town.yaml has no such server; it has east, south"),
        (SOUTH, "gpus: 3, of all servers here, is more than the 1 that are here"),
    ],
)
def test_a_site_that_cannot_be_run_here_is_refused(site, said, file, machine) -> None:
    machine(1)
    path = file(here(EAST), elsewhere(SOUTH, changes={"gpus": 3}))
    with pytest.raises(UserError, match=said):
        read_server_of_site(path, {}, "auto", SiteName(site))


def test_passwords_of_cameras_must_be_set_where_their_server_runs(file, machine, monkeypatch) -> None:
    machine(1)
    monkeypatch.delenv("CAM_PASSWORD", raising=False)
    path = file(here(NORTH, changes={"gpus": 1}), elsewhere(SOUTH, changes={"gpus": 1}), **CAMERA)
    unset = r"key 'streams.cam-1.source.url': .*CAM_PASSWORD"
    for site in (NORTH, SOUTH):
        with pytest.raises(UserError, match=unset):
            read_server_of_site(path, {}, "auto", site)
    with pytest.raises(UserError, match=unset):
        read_servers_here(path, {}, "auto")
    monkeypatch.setenv("CAM_PASSWORD", "secret")
    assert read_server_of_site(path, {}, "auto", NORTH).terms.site == NORTH
    monkeypatch.delenv("CAM_PASSWORD")
    assert read_servers_here(file(elsewhere(SOUTH), **CAMERA), {}, "auto").servers == ()


def test_on_virtual_time_all_servers_are_read_and_none_has_a_live_camera(file) -> None:
    path = file(here(NORTH, changes={"gpus": 40}), elsewhere(SOUTH))
    assert [server.terms.site for server in read_all_servers(path, {}).servers] == [NORTH, SOUTH]
    with pytest.raises(UserError, match="a live camera cannot be watched on virtual time"):
        read_all_servers(file(here(NORTH), **CAMERA), {})


def test_a_scheduler_that_needs_weights_from_elsewhere_is_refused_for_each_command(file, machine) -> None:
    machine(1)
    path = file(here(NORTH), elsewhere(SOUTH))
    for read in (
        lambda changes: read_all_servers(path, changes),
        lambda changes: read_servers_here(path, changes, "auto"),
        lambda changes: read_server_of_site(path, changes, "auto", SOUTH),
    ):
        with pytest.raises(UserError, match=r"scheduler: cloud (brings|serves) weights"):
            read({"scheduler": "cloud"})

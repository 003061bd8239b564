"""Tests of the command line of ``ekya fleet run``: errors that are reported before anything starts."""

import pytest
import yaml
from commands import on_a_machine_with

from ekya import cli
from ekya.config.shipped import shipped_path
from ekya.core.errors import UserError
from ekya.fleet.run.live.launched_servers import LaunchedServers
from ekya.gpu.backends import registry


@pytest.fixture
def file(tmp_path):
    fleet = str(shipped_path("datasets/synthetic_city/fleet.yaml"))
    servers = [{"site": "north", "streams": ["cam-1"]}, {"site": "south", "streams": ["cam-3"]}]
    path = tmp_path / "town.yaml"
    path.write_text(yaml.safe_dump({"fleet": fleet, "servers": servers}))
    return path


def raises(error):
    def call(*arguments):
        raise error

    return call


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--fail", "north"], "--fail north: write SITE@SECONDS"),
        (["--fail", "west@3"], "there is no server west; they are north, south"),
        (["--tier", "nobody"], "--tier nobody: no tier has this name; choose from"),
        (["--scheduler", "cloud"], "choose another scheduler, such as ekya"),
        (["--scheduler", "bound"], "scheduler"),
        (["--windows", "0"], "--windows"),
    ],
)
def test_fleet_run_with_invalid_options_is_refused(words, said, file, tmp_path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["fleet", "run", str(file), "--clock", "virtual", *words]) == 2
    assert said in " ".join(capfd.readouterr().err.replace("│", " ").split())
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("here", "gpus", "said"),
    [
        (
            2,
            (1.0, 1.0),
            "begin with this machine's first GPU, and they ask for 2 of it",
        ),
        (3, (1.5, 0.3), "and they ask for 1.3 of it"),
        (1, (1.0, 0.5), "1.5, of all servers here, is more than the 1 that are here"),
        (1, (0.4, 0.6), None),
    ],
)
def test_fleet_run_here_asks_for_at_most_the_first_gpu(
    here, gpus, said, file, tmp_path, monkeypatch, capfd
) -> None:
    monkeypatch.chdir(tmp_path)
    raw = yaml.safe_load(file.read_text())
    for server, its in zip(raw["servers"], gpus, strict=True):
        server["changes"] = {"gpus": its, "preparation": {"share_milli": 100, "fraction": 0.15}}
    file.write_text(yaml.safe_dump(raw))
    monkeypatch.setattr(registry, "choose_backend", on_a_machine_with(here))
    monkeypatch.setattr(LaunchedServers, "launch", raises(UserError("servers begin")))
    assert cli.main(["fleet", "run", str(file)]) == 2
    assert (said or "servers begin") in " ".join(capfd.readouterr().err.replace("│", " ").split())


def test_fleet_run_finds_out_before_it_starts_anything(file, tmp_path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(LaunchedServers, "launch", raises(AssertionError("it has begun")))
    raw = yaml.safe_load(file.read_text())
    for server in raw["servers"]:
        server["changes"] = {"gpus": 0.5, "preparation": {"share_milli": 100, "fraction": 0.15}}
    file.write_text(yaml.safe_dump(raw))
    assert cli.main(["fleet", "run", str(file), "--fail", "west@3"]) == 2
    assert "--fail west: there is no server west; they are north, south" in capfd.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_fleet_run_takes_up_only_what_is_a_run(tmp_path, capfd) -> None:
    assert cli.main(["fleet", "run", "--resume", str(tmp_path)]) == 2
    said = " ".join(capfd.readouterr().err.split())
    assert "live.json: cannot be read" in said
    assert "name the folder of a run of ekya fleet run" in said

"""Tests of the command line of ``ekya fleet doctor``, without sites."""

import json

import pytest
import yaml

from ekya import cli
from ekya.fleet.run import doctor
from ekya.fleet.run.host_facts import FleetFacts, Link, SiteHostFacts
from ekya.fleet.servers_file import load_servers


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A servers file whose fleet file is on other machines; ``here`` has no address."""
    monkeypatch.setenv("EKYA_FLEET_TOKEN", "t" * 40)
    servers = [
        {"site": "north", "address": "10.0.0.1:7070"},
        {"site": "south", "address": "10.0.0.2:7070"},
        {"site": "here"},
    ]
    links = {"mb_s": 12.5, "ways": [{"from": "south", "to": "north", "mb_s": 50.0}]}
    path = tmp_path / "town.yaml"
    path.write_text(yaml.safe_dump({"fleet": "elsewhere.yaml", "links": links, "servers": servers}))
    return path


def host(site, *wrong):
    findings = {
        "GPU 0": {"found": "NVIDIA H100, 80 of 80 GB free, driver 600.1", "fine": True},
        "Memory": {"found": "31.5 GB free", "fine": True},
        "Disk": {"found": "99.0 GB free for /srv/runs", "fine": True},
    }
    return SiteHostFacts(site, {"Python": "3.11.9", "ray": "2.60.0"}, {"findings": findings}, wrong)


@pytest.fixture
def found(monkeypatch):
    """Has the command find these facts; returns a function that sets them, and what was asked for."""
    asked = {}

    def find(*wrong, mb_s=80_000.0):
        links = {("north", "south"): Link(mb_s, 400, 1500), ("south", "north"): Link(0.5 * mb_s, 400, -1500)}
        hosts = {"north": host("north"), "south": host("south", *wrong)}

        def examine(handles, within_s, watch):
            watch("sites", 1, 2)
            asked.update(handles=handles, within_s=within_s)
            return FleetFacts(hosts, links, ())

        monkeypatch.setattr(doctor, "examine_fleet", examine)
        return asked

    return find


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Missing argument 'SERVERS'"),
        (["gone.yaml"], "gone.yaml: there is no such file"),
        (["alone.yaml"], "alone.yaml: servers: none has an address, so all run on one machine"),
        (["town.yaml", "--write", "/tmp/x.yaml"], "name a file beside town.yaml"),
        (["town.yaml", "--token-file", "short"], "short: this is no token"),
    ],
)
def test_invalid_options_are_refused(words, said, file, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "alone.yaml").write_text(yaml.safe_dump({"servers": [{"site": "north"}]}))
    if "--token-file" in words:
        monkeypatch.delenv("EKYA_FLEET_TOKEN")
        (tmp_path / "short").write_text("secret")
        (tmp_path / "short").chmod(0o600)
    assert cli.main(["fleet", "doctor", *words]) == 2
    assert said in " ".join(capfd.readouterr().err.replace("│", " ").split())


def test_a_fleet_without_problems_ends_with_exit_code_0(found, file, monkeypatch, capfd):
    monkeypatch.setenv("COLUMNS", "200")
    asked = found()
    assert cli.main(["fleet", "doctor", str(file), "--timeout", "9"]) == 0
    assert asked["within_s"] == 9.0
    told = capfd.readouterr().out
    assert "No problem was found." in told
    (south,) = (line for line in told.splitlines() if line.startswith("│ south"))
    for part in (
        "3.11.9, 2.60.0",
        "NVIDIA H100",
        "31.5 GB",
        "99.0 GB",
        "-1.5 ± 0.2 ms",
        "40000 MB/s, 0.4 ms, to north",
    ):
        assert part in south


def test_the_doctors_of_servers_with_an_address_are_asked(found, file):
    asked = found()
    cli.main(["fleet", "doctor", str(file)])
    addresses = {site: (its.address, its.name, its.token) for site, its in asked["handles"].items()}
    assert addresses == {
        "north": ("10.0.0.1:7070", "doctor", "t" * 40),
        "south": ("10.0.0.2:7070", "doctor", "t" * 40),
    }


def test_problems_are_a_line_each_and_end_with_exit_code_1(found, file, tmp_path, capfd):
    found("yard.mp4 cannot be read; change its permissions", mb_s=10.0)
    report = tmp_path / "facts.json"
    assert cli.main(["fleet", "doctor", str(file), "--json", str(report)]) == 1
    told = capfd.readouterr().out.splitlines()
    assert "- south: yard.mp4 cannot be read; change its permissions" in told
    report = json.loads(report.read_text())
    assert not report["fine"]
    assert report["problems"][0] == "south: yard.mp4 cannot be read; change its permissions"
    # 10 of 12.5 MB/s is enough, 5 of 50 is not.
    assert [one.partition(":")[0] for one in report["problems"][1:]] == ["south to north"]
    assert report["sites"]["south"]["ahead_us"] == -1500
    way = {"from": "north", "to": "south", "mb_s": 10.0, "round_trip_us": 400, "ahead_us": 1500}
    assert way in report["links"]


def test_measured_links_are_written_into_the_servers_file(found, file, tmp_path):
    found(mb_s=54.3219)
    measured = tmp_path / "measured.yaml"
    cli.main(["fleet", "doctor", str(file), "--write", str(measured)])
    before, after = (load_servers(path, reads=lambda _: False) for path in (file, measured))
    assert after.links.mb_s == {("south", "north"): 27.2, ("north", "south"): 54.3}
    assert after.links.usual_mb_s == 12.5
    assert (after.terms, after.addresses) == (before.terms, before.addresses)

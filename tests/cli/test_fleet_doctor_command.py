"""Tests of the command line of ``ekya fleet doctor``, without Ray."""

import contextlib
import json

import pytest
import yaml

from ekya import cli
from ekya.config.shipped import shipped_path
from ekya.fleet.run import cluster, doctor
from ekya.fleet.run.host_facts import FleetFacts, HostFacts, Link
from ekya.fleet.servers_file import load_servers

ADDRESS = ["--address", "10.0.0.1:6379"]


@pytest.fixture
def file(tmp_path):
    raw = yaml.safe_load(shipped_path("datasets/synthetic_city/fleet.yaml").read_text())
    raw["streams"] = [
        {"id": "gate", "source": {"kind": "camera", "url": "rtsp://me:${GATE_PASSWORD}@10.0.0.9/live"}},
        *raw["streams"],
    ]
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(raw))
    servers = [
        {"site": "north", "streams": ["gate"], "changes": {"http": {"port": 8500}}},
        {"site": "south", "streams": ["cam-3"]},
    ]
    links = {"mb_s": 12.5, "ways": [{"from": "south", "to": "north", "mb_s": 50.0}]}
    path = tmp_path / "town.yaml"
    path.write_text(yaml.safe_dump({"fleet": "fleet.yaml", "links": links, "servers": servers}))
    return path


def host(*wrong):
    findings = {
        "GPU 0": {"found": "NVIDIA H100, 80 of 80 GB free, driver 600.1", "fine": True},
        "Memory": {"found": "31.5 GB free", "fine": True},
        "Disk": {"found": "99.0 GB free for /srv/runs", "fine": True},
    }
    versions = {"Python": "3.11.9", "ray": "2.60.0"}
    return HostFacts(versions, {"findings": findings}, ("/root/.ray/auth_token", "600"), wrong, 40000)


@pytest.fixture
def found(monkeypatch):
    """Has the command find these facts; returns a function that sets them, and what was asked for."""
    asked = {}

    def find(*wrong, mb_s=80_000.0):
        links = {
            way: Link(mb_s * factor, 400, 0)
            for way, factor in ((("north", "south"), 1), (("south", "north"), 0.5), (("north", "head"), 0.1))
        }
        hosts = {"head": host(), "north": host(), "south": host(*wrong)}

        def examine(of_sites, of_others, address, within_s, watch):
            watch("nodes", 1, 3)
            asked.update(of_sites, others=of_others, address=address, within_s=within_s)
            return FleetFacts(hosts, links, ())

        monkeypatch.setattr(cluster, "joined_cluster", lambda address: contextlib.nullcontext())
        monkeypatch.setattr(doctor, "examine_fleet", examine)
        return asked

    return find


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--address"),
        ([*ADDRESS, "--servers", "gone.yaml"], "gone.yaml: there is no such file"),
        ([*ADDRESS, "--write", "measured.yaml"], "name a file beside that of --servers"),
        (
            [*ADDRESS, "--servers", "town.yaml", "--write", "/tmp/x.yaml"],
            "name a file beside that of --servers",
        ),
        (["--address", "127.0.0.1:1"], "there is no Ray cluster"),
    ],
)
def test_invalid_options_are_refused(words, said, file, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["fleet", "doctor", *words]) == 2
    assert said in " ".join(capfd.readouterr().err.replace("│", " ").split())


def test_a_fleet_without_problems_ends_with_exit_code_0(found, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    asked = found()
    assert cli.main(["fleet", "doctor", *ADDRESS, "--timeout", "9"]) == 0
    assert (asked["address"], asked["within_s"], asked["others"].port) == ("10.0.0.1:6379", 9.0, 8470)
    assert asked["others"].runs == tmp_path / "runs"
    told = capfd.readouterr().out
    assert "No problem was found." in told
    (north,) = (line for line in told.splitlines() if line.startswith("│ north"))
    for part in (
        "3.11.9, 2.60.0",
        "NVIDIA H100",
        "31.5 GB",
        "99.0 GB",
        "+0.0 ± 0.2 ms",
        "8000 MB/s, 0.4 ms, to head",
    ):
        assert part in north


def test_problems_are_a_line_each_and_end_with_exit_code_1(found, file, tmp_path, capfd):
    found("yard.mp4 is missing; copy it to this path", mb_s=10.0)
    report = tmp_path / "facts.json"
    words = ["fleet", "doctor", *ADDRESS, "--servers", str(file), "--json", str(report)]
    assert cli.main(words) == 1
    told = capfd.readouterr().out.splitlines()
    assert "- south: yard.mp4 is missing; copy it to this path" in told
    report = json.loads(report.read_text())
    assert not report["fine"]
    assert report["problems"][0] == "south: yard.mp4 is missing; copy it to this path"
    # 10 of 12.5 MB/s is enough, 5 of 50 is not; the file says nothing of the head.
    assert [one.partition(":")[0] for one in report["problems"][1:]] == ["south to north"]
    assert report["nodes"]["south"]["token"] == ["/root/.ray/auth_token", "600"]
    assert report["nodes"]["south"]["ahead_us"] == 0
    way = {"from": "north", "to": "south", "mb_s": 10.0, "round_trip_us": 400, "ahead_us": 0}
    assert way in report["links"]


def test_each_server_is_asked_for_what_its_fleet_names(found, file):
    asked = found()
    cli.main(["fleet", "doctor", *ADDRESS, "--servers", str(file)])
    fleets = {server.terms.site: server.fleet for server in load_servers(file).servers}
    assert asked["north"].variables == ("GATE_PASSWORD",)
    assert (asked["north"].port, asked["south"].port) == (8500, 8470)
    assert asked["south"].variables == ()
    assert {fleets["south"].edge.weights, fleets["south"].golden.weights} <= set(asked["south"].files)
    assert asked["others"].files == ()


def test_measured_links_are_written_into_the_servers_file(found, file, tmp_path):
    found(mb_s=54.3219)
    measured = tmp_path / "measured.yaml"
    cli.main(["fleet", "doctor", *ADDRESS, "--servers", str(file), "--write", str(measured)])
    before, after = load_servers(file), load_servers(measured)
    assert after.links.mb_s == {("south", "north"): 27.2, ("north", "south"): 54.3}
    assert after.links.usual_mb_s == 12.5
    assert after.servers == before.servers

"""Tests of the command line of ``ekya fleet simulate``."""

import json

import pytest
from commands import error_line

from ekya import cli
from ekya.fleet.papers.deep_edge import laws, testbed
from ekya.fleet.papers.deep_edge.boosted import Models
from ekya.fleet.papers.worlds import WORLDS
from ekya.fleet.policy.deep_edge.estimates import ANY_EDGE
from ekya.fleet.sim.engine import FleetEngine

S = 1_000_000


def played(capfd, *words):
    assert cli.main(["fleet", "simulate", *words, "--json", "-"]) == 0
    return json.loads(capfd.readouterr().out)


@pytest.fixture
def knows(monkeypatch):
    """Gives Deep-Edge's policies the true models: fitting takes seconds and has its own test."""
    truth = Models(laws, ANY_EDGE, (), {})
    monkeypatch.setattr(testbed, "learned", lambda _held_back: truth)


SMALL = {"deep-edge": ("--first", "1")}
"""Arguments that shorten a world whose number of nodes is fixed."""


@pytest.mark.usefixtures("knows")
@pytest.mark.parametrize("world", sorted(WORLDS))
def test_fleet_simulate_plays_every_policy_of_every_world(capfd, world) -> None:
    report = played(capfd, world, *SMALL.get(world, ("--nodes", "2", "--first", "4")))
    assert [mean["policy"] for mean in report["mean"]] == list(WORLDS[world].policies)
    assert all(run["unfinished_jobs"] == 0 and run["total_cost"] > 0 for run in report["runs"])


def test_fleet_simulate_with_restart_charges_moves(capfd) -> None:
    words = ["andreas-two-gpu", "--nodes", "4", "--policy", "andreas,worth,edf"]
    free, paid = played(capfd, *words)["runs"], played(capfd, *words, "--restart", "60")["runs"]
    assert [run["lost_s"] for run in free] == [0, 0, 0]
    assert all(run["migrations"] > 0 for run in (free[0], free[1], paid[0]))
    assert paid[0]["lost_s"] > 0
    assert paid[0]["total_cost"] > free[0]["total_cost"]
    # Our policy plans with the cost of a move; a policy that never moves a job is unaffected.
    assert paid[1]["migrations"] < free[1]["migrations"]
    assert {**paid[2], "host": free[2]["host"]} == free[2]


def test_fleet_simulate_deep_edge_is_ahead_of_fair(capfd) -> None:
    report = played(capfd, "deep-edge", "--seeds", "2020,2023,2024")
    mean = {mean["policy"]: mean for mean in report["mean"]}
    assert mean["deep-edge-joint"]["epoch_s"] < mean["deep-edge"]["epoch_s"] < mean["fair"]["epoch_s"]
    assert mean["fair"]["late_apps"] > 0
    assert [mean[name]["late_apps"] for name in ("deep-edge", "deep-edge-joint", "fair-kept")] == [0, 0, 0]


def test_fleet_simulate_with_two_seeds_reports_means(capfd) -> None:
    words = ["andreas-two-gpu", "--nodes", "2", "--first", "4", "--policy", "edf", "--seeds", "1,2"]
    report = played(capfd, *words)
    assert [run["seed"] for run in report["runs"]] == [1, 2]
    (mean,) = report["mean"]
    assert mean["total_cost"] == pytest.approx(sum(run["total_cost"] for run in report["runs"]) / 2, abs=1e-6)
    assert played(capfd, *words)["mean"] == report["mean"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["moon"], "WORLD moon: there is no such world; choose one of andreas-two-gpu"),
        (
            ["okita", "--policy", "fifo"],
            "--policy fifo: no policy of okita has this name; choose from okita",
        ),
        (["okita", "--policy", "drf,drf"], "--policy: the same one stands there twice"),
        (["okita", "--seeds", "1,1"], "--seeds: the same one stands there twice"),
        (["deep-edge", "--nodes", "7"], "--nodes 7: deep-edge's testbed has 5, a TX2, three Nanos and a Pi"),
        (["okita", "--restart", "60"], "--restart: okita says itself what an interruption costs"),
        (["deep-edge", "--restart", "60"], "--restart: deep-edge says itself what an interruption costs"),
        (["deep-edge", "--first", "2"], "--first 2: in deep-edge each seed has one update"),
    ],
)
def test_fleet_simulate_with_invalid_options_is_refused(capfd, words, sentence) -> None:
    assert cli.main(["fleet", "simulate", *words]) == cli.USER_ERROR
    assert error_line(capfd).startswith(f"ekya: {sentence}")


@pytest.mark.parametrize("finished", [0, 1])
def test_fleet_simulate_after_ctrl_c_reports_finished_runs(capfd, tmp_path, monkeypatch, finished) -> None:
    whole, begun = FleetEngine.run, []

    def interrupted(engine):
        begun.append(engine)
        if len(begun) > finished:
            raise KeyboardInterrupt
        return whole(engine)

    monkeypatch.setattr(FleetEngine, "run", interrupted)
    report = tmp_path / "report.json"
    words = ["andreas-two-gpu", "--nodes", "2", "--first", "4", "--policy", "edf,fifo", "--json", str(report)]
    assert cli.main(["fleet", "simulate", *words]) == cli.STOPPED
    said = capfd.readouterr().out
    assert f"Stopped after {finished} of 2 runs." in said
    assert ("Policy" in said) == bool(finished)
    assert len(json.loads(report.read_text())["runs"]) == finished

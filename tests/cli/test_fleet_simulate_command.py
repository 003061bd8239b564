"""Tests of the command line of ``ekya fleet simulate``."""

import json

import pytest

from ekya import cli
from ekya.cli import fleet_simulate
from ekya.cli.fleet_simulate import read_outages
from ekya.core.errors import UserError
from ekya.fleet import deep_edge_testbed
from ekya.fleet.deep_edge_testbed import KNOWN, Models
from ekya.fleet.policy.deep_edge.solvers import SOLVERS
from ekya.fleet.run.profiles import save_profiles
from ekya.fleet.sim.andreas_workload import PROFILE_NAMES
from ekya.fleet.sim.deep_edge.truth import Truth
from ekya.fleet.sim.deep_edge.workload import POINTS
from ekya.fleet.sim.engine import Outage
from ekya.fleet.worlds import WORLDS

S = 1_000_000


def played(capfd, *words):
    assert cli.main(["fleet", "simulate", *words, "--json", "-"]) == 0
    return json.loads(capfd.readouterr().out)


@pytest.fixture
def knows(monkeypatch):
    """Gives Deep-Edge's policies the true models: fitting takes seconds and has its own test."""
    truth = Models(Truth(), KNOWN, (), {})
    monkeypatch.setattr(deep_edge_testbed, "learned", lambda _held_back, _fitted: truth)


SMALL = {"deep-edge": ("--jobs", "1")}
"""Arguments that shorten a world whose number of nodes is fixed."""


@pytest.mark.usefixtures("knows")
@pytest.mark.parametrize("world", sorted(WORLDS))
def test_every_world_can_be_played_by_everybody_who_decides_there(capfd, world) -> None:
    told = played(capfd, world, *SMALL.get(world, ("--nodes", "2", "--jobs", "4")))
    assert [mean["policy"] for mean in told["mean"]] == list(WORLDS[world].policies)
    assert all(run["unfinished_jobs"] == 0 and run["total_cost"] > 0 for run in told["runs"])


def test_a_node_that_fails_costs_something(capfd) -> None:
    words = ["andreas-two-gpu", "--nodes", "2", "--jobs", "6", "--policy", "fifo"]
    whole = played(capfd, *words)["runs"][0]
    halved = played(capfd, *words, "--fail", "node-001@100")["runs"][0]
    assert halved["makespan_s"] > whole["makespan_s"]


def test_in_andreas_moves_are_for_nothing_unless_a_start_takes_something(capfd) -> None:
    words = ["andreas-two-gpu", "--nodes", "4", "--policy", "andreas,worth,edf"]
    free, paid = played(capfd, *words)["runs"], played(capfd, *words, "--restart", "60")["runs"]
    assert [run["lost_s"] for run in free] == [0, 0, 0]
    assert all(run["migrations"] > 0 for run in (free[0], free[1], paid[0]))
    assert paid[0]["lost_s"] > 0
    assert paid[0]["total_cost"] > free[0]["total_cost"]
    # Our policy plans with the cost of a move; a policy that never moves a job is unaffected.
    assert paid[1]["migrations"] < free[1]["migrations"]
    assert {**paid[2], "host": free[2]["host"]} == free[2]


def test_andreas_jobs_take_what_a_store_of_profiles_says(capfd, tmp_path) -> None:
    store = tmp_path / "profiles.json"
    words = ["andreas-two-gpu", "--nodes", "2", "--jobs", "1", "--policy", "edf"]
    (drawn,) = played(capfd, *words)["runs"]
    save_profiles(store, {name: {("V100", 1): 10 * S} for name in PROFILE_NAMES})
    (measured,) = played(capfd, *words, "--profiles", str(store))["runs"]
    assert measured["epoch_s"] == 10 < drawn["epoch_s"]
    save_profiles(store, {"LSTM-33": {("V100", 1): 1}})
    assert cli.main(["fleet", "simulate", *words, "--profiles", str(store)]) == cli.USER_ERROR
    assert "--profiles: profiles.LSTM-33: no job is called so; they are LSTM-32" in capfd.readouterr().err
    save_profiles(store, {"LSTM-32": {("V100", 1): 1}})
    assert cli.main(["fleet", "simulate", "okita", "--profiles", str(store)]) == cli.USER_ERROR
    assert "--profiles: only jobs of ANDREAS have any" in capfd.readouterr().err


@pytest.mark.usefixtures("knows")
def test_deep_edge_is_told_of_what_its_paper_compares(capfd) -> None:
    told = played(capfd, "deep-edge", "--seeds", "2020,2023,2024")
    mean = {mean["policy"]: mean for mean in told["mean"]}
    assert mean["deep-edge-joint"]["epoch_s"] < mean["deep-edge"]["epoch_s"] < mean["fair"]["epoch_s"]
    assert mean["fair"]["late_apps"] > 0
    assert [mean[name]["late_apps"] for name in ("deep-edge", "deep-edge-joint", "fair-kept")] == [0, 0, 0]


@pytest.mark.usefixtures("knows")
def test_a_worker_of_deep_edge_that_fails_loses_its_epoch_and_the_server_ends_it(capfd) -> None:
    words = ["deep-edge", "--policy", "deep-edge", "--seeds", "2020", "--fail"]
    (halved,) = played(capfd, *words, "nano-1@150")["runs"]
    assert halved["lost_s"] > 0
    assert halved["unfinished_jobs"] == 0
    (ended,) = played(capfd, *words, "server@150")["runs"]
    assert (ended["unfinished_jobs"], ended["epoch_s"]) == (1, None)
    assert cli.main(["fleet", "simulate", *words, "server@150"]) == 0
    assert capfd.readouterr().out.splitlines()[4].split()[5] == "-"


def test_deep_edge_decides_by_models_that_are_fitted_once_and_says_how_far_it_is(monkeypatch) -> None:
    monkeypatch.setattr(deep_edge_testbed, "POINTS", dict.fromkeys(POINTS, 120))
    parts = []
    (policy,) = deep_edge_testbed.deciders(("deep-edge",), parts.append).values()
    assert parts == sorted(parts)
    assert (len(parts), parts[-1]) == (12, 1.0)
    assert policy.solver is SOLVERS["deep-edge"]
    assert 0 < policy.limits.exec_error < 0.5


def test_seeds_are_played_and_averaged(capfd) -> None:
    told = played(
        capfd, "andreas-two-gpu", "--nodes", "2", "--jobs", "4", "--policy", "edf", "--seeds", "1,2"
    )
    assert [run["seed"] for run in told["runs"]] == [1, 2]
    (mean,) = told["mean"]
    assert mean["total_cost"] == pytest.approx(sum(run["total_cost"] for run in told["runs"]) / 2, abs=1e-6)
    again = played(
        capfd, "andreas-two-gpu", "--nodes", "2", "--jobs", "4", "--policy", "edf", "--seeds", "1,2"
    )
    assert again["mean"] == told["mean"]


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
        (["okita", "--fail", "site-1"], "--fail site-1: write NODE@SECONDS, or NODE@FROM:TO"),
        (["okita", "--nodes", "2", "--fail", "moon@5"], "--fail moon: there is no such node"),
        (["deep-edge", "--nodes", "7"], "--nodes 7: deep-edge's testbed has 5, a TX2, three Nanos and a Pi"),
        (["okita", "--restart", "60"], "--restart: okita says itself what an interruption costs"),
        (["deep-edge", "--restart", "60"], "--restart: deep-edge says itself what an interruption costs"),
        (["deep-edge", "--jobs", "2"], "--jobs 2: in deep-edge each seed has one update"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(capfd, words, sentence) -> None:
    assert cli.main(["fleet", "simulate", *words]) == cli.USER_ERROR
    said = capfd.readouterr().err
    assert said.startswith(f"ekya: {sentence}")
    assert said.count("\n") == 1


@pytest.mark.parametrize("finished", [0, 1])
def test_after_ctrl_c_what_was_finished_is_told(capfd, tmp_path, monkeypatch, finished) -> None:
    whole, begun = fleet_simulate._played, []

    def interrupted(*run):
        begun.append(run)
        if len(begun) > finished:
            raise KeyboardInterrupt
        return whole(*run)

    monkeypatch.setattr(fleet_simulate, "_played", interrupted)
    told = tmp_path / "told.json"
    words = ["andreas-two-gpu", "--nodes", "2", "--jobs", "4", "--policy", "edf,fifo", "--json", str(told)]
    assert cli.main(["fleet", "simulate", *words]) == cli.STOPPED
    said = capfd.readouterr().out
    assert f"Stopped after {finished} of 2 runs." in said
    assert ("Policy" in said) == bool(finished)
    assert len(json.loads(told.read_text())["runs"]) == finished


def test_outages_are_read_as_they_are_written() -> None:
    assert read_outages(["a@5", "b@x@7.5:8"]) == (Outage("a", 5 * S), Outage("b@x", 7_500_000, 8 * S))
    for wrong in ("a", "@5", "a@", "a@5:4", "a@x", "a@1:2:3", "a@-1"):
        with pytest.raises(UserError, match="--fail"):
            read_outages([wrong])


def test_the_group_alone_says_what_it_can_do(capfd) -> None:
    assert cli.main(["fleet"]) == 0
    assert "simulate" in capfd.readouterr().out

"""`ekya fleet simulate`, as a user calls it."""

import json

import pytest

from ekya import cli
from ekya.commands.fleet_simulate import read_outages
from ekya.errors import UserError
from ekya.fleet.sim.engine import Outage
from ekya.fleet.worlds import WORLDS

S = 1_000_000


def played(capfd, *words):
    assert cli.main(["fleet", "simulate", *words, "--json", "-"]) == 0
    return json.loads(capfd.readouterr().out)


@pytest.mark.parametrize("world", sorted(WORLDS))
def test_every_world_can_be_played_by_everybody_who_decides_there(capfd, world) -> None:
    told = played(capfd, world, "--nodes", "2", "--jobs", "4")
    assert [mean["policy"] for mean in told["mean"]] == list(WORLDS[world].policies)
    assert all(run["unfinished_jobs"] == 0 and run["total_cost"] > 0 for run in told["runs"])


def test_a_node_that_fails_costs_something(capfd) -> None:
    words = ["andreas-two-gpu", "--nodes", "2", "--jobs", "6", "--policy", "fifo"]
    whole = played(capfd, *words)["runs"][0]
    halved = played(capfd, *words, "--fail", "node-001@100")["runs"][0]
    assert halved["makespan_s"] > whole["makespan_s"]


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
            "--policy fifo: nobody of that name decides in okita; choose from okita",
        ),
        (["okita", "--policy", "drf,drf"], "--policy: the same one stands there twice"),
        (["okita", "--seeds", "1,1"], "--seeds: the same one stands there twice"),
        (["okita", "--fail", "site-1"], "--fail site-1: write NODE@SECONDS, or NODE@FROM:TO"),
        (["okita", "--nodes", "2", "--fail", "moon@5"], "--fail moon: there is no such node"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(capfd, words, sentence) -> None:
    assert cli.main(["fleet", "simulate", *words]) == cli.USER_ERROR
    said = capfd.readouterr().err
    assert said.startswith(f"ekya: {sentence}")
    assert said.count("\n") == 1


def test_outages_are_read_as_they_are_written() -> None:
    assert read_outages(["a@5", "b@x@7.5:8"]) == (Outage("a", 5 * S), Outage("b@x", 7_500_000, 8 * S))
    for wrong in ("a", "@5", "a@", "a@5:4", "a@x", "a@1:2:3", "a@-1"):
        with pytest.raises(UserError, match="--fail"):
            read_outages([wrong])


def test_the_group_alone_says_what_it_can_do(capfd) -> None:
    assert cli.main(["fleet"]) == 0
    assert "simulate" in capfd.readouterr().out

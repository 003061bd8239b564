"""Recipes: what they list, refuse, write and compare, and the processes in which they run their cases."""

import csv
import importlib
import multiprocessing
import time
from pathlib import Path

import andreas_played as played
import gains
import psutil
import pytest
import typer
from cases import end_with_parent
from recipe import RESULTS, as_csv
from typer.testing import CliRunner
from waiting import wait_until

from ekya.core.errors import UserError
from ekya.fleet.papers.andreas.workload import FOUR_GPUS

FOLDER = Path(__file__).resolve().parents[2] / "experiments"
NAMES = ("figure2b", "trace_figures", "andreas_figures", "okita_figures", "deep_edge_figures")


# Imported outside of the tests, so that loading torch and matplotlib does not count as a test's time.
for name in NAMES:
    importlib.import_module(name)


@pytest.fixture
def recipe():
    """Imports a recipe by its name, in the way that it is imported when it runs."""
    return importlib.import_module


@pytest.mark.parametrize("name", NAMES)
def test_recipe_help_shows_usage(recipe, name):
    app = typer.Typer()
    app.command()(recipe(name).main)
    told = CliRunner().invoke(app, ["--help"])
    assert told.exit_code == 0
    assert "--json" in told.output


def test_recipe_of_every_figure_is_listed(recipe):
    recipes = recipe("all").RECIPES
    assert {one.script or one.name for one in recipes} >= set(NAMES)
    for script in {one.script for one in recipes if one.script}:
        figures = recipe(script).FIGURES
        assert {one.name for one in recipes if one.script == script} == figures.keys()
        traced = {one.name for one in recipes if one.traces and one.script == script}
        assert traced <= {name for name, figure in figures.items() if "trace" in figure.takes}


def test_trace_figure_unknown_name_or_unplayable_trace_is_refused(recipe, tmp_path):
    figures = recipe("trace_figures")
    with pytest.raises(UserError, match="there is no 'figure5'; choose from figure3, figure4"):
        figures.main("figure5", out=tmp_path)
    with pytest.raises(UserError, match="--trace: figure10 does not take it"):
        figures.main("figure10", trace=[Path("city.parquet")], out=tmp_path)
    with pytest.raises(UserError, match="--at: 'x' is no list of numbers; write it as 10,20,30"):
        recipe("andreas_figures").main("andreas_load", at="x", out=tmp_path)


def test_trace_figure_writes_a_row_for_every_configuration(recipe, tmp_path):
    recipe("trace_figures").main("figure3", out=tmp_path)
    rows = (tmp_path / "figure3.csv").read_text().splitlines()
    assert rows[0].startswith("data,stream,window,epochs")
    assert {row.split(",")[0] for row in rows[1:]} == {"generated"}
    assert (tmp_path / "figure3.png").read_bytes().startswith(b"\x89PNG")


def test_fleet_recipe_list_matches_files(recipe):
    there = {path.stem for path in FOLDER.glob("fleet_*.py")}
    for table in ("andreas_figures", "okita_figures", "deep_edge_figures"):
        there |= recipe(table).FIGURES.keys()
    assert {one.name for one in recipe("all").FLEET} == there


def test_chosen_group_gives_its_recipes_and_excludes_opt_in_ones(recipe):
    chosen, fleet = recipe("all").chosen, recipe("all").FLEET
    assert chosen("fleet") == fleet
    assert [one.name for one in chosen("fleet,figure6")] == ["figure6", *(one.name for one in fleet)]
    assert {one.name for one in fleet} - {one.name for one in chosen(None)} == {"fleet_live"}
    with pytest.raises(UserError, match="no recipe or group 'figure5'"):
        chosen("figure5,fleet")


@pytest.mark.parametrize("name", ["fleet_live", "fleet_servers"])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"seeds": "x"}, "--seeds x: these are not whole numbers"),
        ({"tier": "net,moon"}, "--tier moon: no tier has this name"),
        ({"json_to": "/moon/x.json"}, "--json /moon/x.json"),
    ],
)
def test_fleet_recipe_invalid_option_is_refused_before_any_run(recipe, name, words, said):
    with pytest.raises(UserError, match=said):
        recipe(name).main(**words)


def test_fleet_live_runs_path_is_a_file_raises_before_any_run(recipe, tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(UserError, match="there is a file of this name"):
        recipe("fleet_live").main(runs=tmp_path / "taken")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"fleet": "moon"}, "--fleet moon: there is no such fleet"),
        ({"tier": "none"}, "--tier none: servers by themselves are played in any case"),
        ({"scheduler": "moon"}, "there is no 'moon'; choose one of"),
    ],
)
def test_fleet_servers_invalid_option_is_refused_before_any_run(recipe, words, said):
    with pytest.raises(UserError, match=said):
        recipe("fleet_servers").main(**words)


@pytest.mark.parametrize(("name", "paper"), [("uniform", 0.56), ("paper's plan", 0.73)])
def test_figure4_matches_the_published_accuracy(recipe, name, paper):
    figure = recipe("figure4")
    assert figure.mean_accuracy(figure.play(name, figure.PLANS[name]())) == pytest.approx(paper, abs=0.01)


def test_figure4_schedulers_reach_at_least_the_published_plan(recipe):
    figure = recipe("figure4")
    means = {name: figure.mean_accuracy(figure.play(name, made())) for name, made in figure.PLANS.items()}
    assert all(means[name] >= means["paper's plan"] - 1e-9 for name in ("thief", "exact", "serial", "ekya"))


def test_figure4_accuracy_plans_keep_the_minimum(recipe):
    figure = recipe("figure4")
    for name in ("paper's plan", "ekya"):
        assert min(span.accuracy for span in figure.play(name, figure.PLANS[name]())) >= 0.4


def test_recipe_writes_rows_published_figures_and_picture(recipe, tmp_path):
    recipe("trace_figures").main("figure4", json_to=str(tmp_path / "figure4.json"), out=tmp_path)
    assert (tmp_path / "figure4.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "figure4.csv").read_text().startswith("plan,video,start_s")
    assert "uniform" in (tmp_path / "figure4_paper.csv").read_text()
    assert '"recipe": "figure4"' in (tmp_path / "figure4.json").read_text()


def test_recipe_output_folder_is_a_file_raises_user_error(recipe, tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(UserError, match="there is a file of this name"):
        recipe("trace_figures").main("figure4", out=tmp_path / "taken")


def test_figure6_capacity_ends_at_first_missed_target(recipe):
    capacity = recipe("sweep_figures").capacity
    assert capacity({2: 0.8, 4: 0.76, 6: 0.7, 8: 0.77}, 0.75) == 4
    assert capacity({2: 0.7}, 0.75) == 0


def test_fewest_gpus_interpolates_between_played_counts(recipe):
    fewest = recipe("played").fewest_gpus
    assert fewest([(1.0, 0.5), (2.0, 0.7)], 0.6) == pytest.approx(1.5)
    assert fewest([(1.0, 0.5), (2.0, 0.7)], 0.4) == 1.0
    assert fewest([(1.0, 0.5), (2.0, 0.7)], 0.8) is None


def test_gains_table_follows_from_the_rows():
    with (RESULTS / "gains.csv").open(newline="", encoding="utf-8") as file:
        rows = [
            gains.Row(row["script"], int(row["seed"]), row["scheduler"], float(row["accuracy"]), ())
            for row in csv.DictReader(file)
        ]
    assert as_csv(gains.shown(rows)) == (RESULTS / "gains_paper.csv").read_text(encoding="utf-8")


def test_no_policy_saves_more_than_the_bound() -> None:
    rows = [played.play(policy, FOUR_GPUS, 3, 101) for policy in played.policies(played.FREE)]
    most = played.most_below_first_principles(rows)
    assert 0 < most < 1
    assert all(played.below_first_principles(rows, name) <= most for name in played.COLOURS)


FORKED = multiprocessing.get_context("fork")


def killed_recipe(pipe):
    """Starts a worker, says which it is, and goes on."""
    worker = FORKED.Process(target=end_with_parent)
    worker.start()
    pipe.send(worker.pid)
    time.sleep(600)


def is_gone(process):
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_worker_of_a_killed_recipe_ends():
    here, there = FORKED.Pipe()
    killed = FORKED.Process(target=killed_recipe, args=(there,))
    killed.start()
    worker = psutil.Process(here.recv())
    killed.kill()
    killed.join()
    wait_until(lambda: is_gone(worker))

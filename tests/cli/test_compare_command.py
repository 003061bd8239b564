"""Tests of ``ekya compare``."""

import pytest
from commands import error_line, run_summary

import ekya.simulation.emulated.compare
from ekya import cli


@pytest.fixture
def comparing(monkeypatch):
    """Fake of ``emulated.compare`` whose accuracies depend on the seed alone; returns its calls."""
    asked = []

    def compare(fleet, schedulers, seeds, options):
        asked.append((fleet, schedulers, seeds))
        runs = [
            run_summary(scheduler=name, seed=seed, mean_accuracy=0.5 + 0.1 * seed)
            for seed in seeds
            for name in schedulers
        ]
        return {"runs": runs, "mean": {}}

    monkeypatch.setattr(ekya.simulation.emulated.compare, "compare", compare)
    return asked


def test_compare_with_two_seeds_prints_means(comparing, fleet, capfd):
    assert cli.main(["compare", str(fleet), "--schedulers", "thief,uniform", "--seeds", "1,2"]) == 0
    assert comparing[0][1:] == (("thief", "uniform"), (1, 2))
    out = capfd.readouterr().out
    assert "uniform" in out
    assert "65.0" in out
    assert "2 of 2" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--seeds", "1,x"], "--seeds 1,x: these are not whole numbers; write them as 0,1,2"),
        (["--seeds", "1,1"], "--seeds: the same one stands there twice"),
        (["--schedulers", "thief,thief"], "--schedulers: the same one stands there twice"),
        (["--schedulers", "thief,"], "scheduler: there is no ''"),
    ],
)
def test_compare_with_invalid_options_is_refused(comparing, arguments, says, capfd):
    assert cli.main(["compare", *arguments]) == 2
    assert says in error_line(capfd)

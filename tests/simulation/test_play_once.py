"""Tests of runs that are played once."""

import os
from pathlib import Path

import pytest

from ekya.config.fleet_reading import load_fleet
from ekya.config.shipped import shipped_path
from ekya.pipeline.costs import load_card
from ekya.planning.schedulers.registry import make_scheduler
from ekya.simulation.emulated import play_once as module
from ekya.simulation.emulated.play_once import play_once

pytestmark = pytest.mark.virtual

CARD = load_card(None)


@pytest.fixture
def labels(tmp_path):
    """A file that the fleet names."""
    path = tmp_path / "labels.csv"
    path.write_text("stream,frame,x0,y0,x1,y1,class,confidence\n")
    return path


@pytest.fixture
def fleet(labels):
    fleet = load_fleet(shipped_path("datasets/synthetic_city/fleet.yaml"))
    golden = fleet.golden.model_copy(update={"model": "file", "weights": labels})
    return fleet.model_copy(update={"golden": golden})


@pytest.fixture
def played(monkeypatch):
    """Folders of the runs that are played; they hold nothing."""
    folders = []
    monkeypatch.setattr(module, "emulate", lambda folder, *_: folders.append(folder.path))
    return folders


@pytest.fixture
def play(tmp_path, fleet):
    """Plays the fleet once, with some things changed."""

    def play(name="ekya-seed1", fleet=fleet, scheduler="ekya", seed=1, card=CARD):
        return play_once(tmp_path / "compare", name, fleet, scheduler, seed, card)

    return play


def test_finished_run_of_the_same_inputs_is_not_played_again(play, played, caplog):
    caplog.set_level("INFO")
    first = play()
    assert play() == first
    assert played == [first]
    assert f"ekya, seed 1: is finished in {first}" in caplog.text


@pytest.mark.parametrize(
    "changed",
    [
        {"seed": 2},
        {"scheduler": "uniform"},
        {"scheduler": "uniform:inference=300"},
        {"card": load_card(Path("h200"))},
    ],
    ids=["seed", "scheduler", "option", "card"],
)
def test_other_inputs_are_played(play, played, changed):
    assert play() != play(**changed)
    assert len(played) == 2


def test_other_fleet_file_content_or_code_is_played(play, played, fleet, labels, monkeypatch, tmp_path):
    play()
    play(fleet=fleet.model_copy(update={"windows": 2}))
    assert len(played) == 2
    os.utime(labels, (1, 1))
    play()
    assert len(played) == 3
    code = tmp_path / "package"
    code.mkdir()
    (code / "own.py").write_text("1")
    monkeypatch.setattr(module, "_find_code", lambda: [code])
    play()
    play()
    assert len(played) == 4
    (code / "own.py").write_text("2")
    play()
    assert len(played) == 5


def test_interrupted_run_and_that_of_an_object_are_played_again(play, played, monkeypatch):
    own = make_scheduler("uniform")
    assert play(scheduler=own) != play(scheduler=own)

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(module, "emulate", interrupt)
        play()
    assert play().name == "ekya-seed1-4"

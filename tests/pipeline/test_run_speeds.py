"""Tests of ``ekya speeds``, and of runs that use the kept speeds."""

import json

import pytest
from rich.console import Console

from ekya.cli.command import Output
from ekya.cli.machine import SpeedsConfig, speeds
from ekya.core.errors import UserError
from ekya.core.speed import LINEAR, CoRun, KindSpeeds, ModelSpeeds, SpeedCurve
from ekya.gpu.backends.registry import choose_backend
from ekya.pipeline.kept_measurements import SPEEDS, keep_refined, kept_speeds, speed_key, training_speed

BENT = SpeedCurve(((0, 0.0), (500, 0.8), (1000, 1.0)))
MEASURED = ModelSpeeds(KindSpeeds(BENT, (CoRun(2, 1.2),)), KindSpeeds(BENT, (CoRun(2, 1.0),)))


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def measured(monkeypatch):
    asked = []

    def measure(_backend, spec, progress):
        asked.append(spec)
        progress()
        return MEASURED

    monkeypatch.setattr("ekya.pipeline.speed_probe.measure_speeds", measure)
    return asked


def test_speeds_command_shows_and_keeps_the_curve(measured, tmp_path):
    to = tmp_path / "speeds.json"
    console = Console(width=100, record=True)
    speeds.run(SpeedsConfig(model="mobilenet_v3_small", shares="cpu", seconds=0.5), Output(console, str(to)))
    told = json.loads(to.read_text())
    assert (told["backend"], told["model"]) == ("cpu", "mobilenet_v3_small")
    assert told["planned_with"] == [[0, 0.0], [500, pytest.approx(0.6)], [1000, 1.0]]
    assert "2 jobs together" in console.export_text()
    assert (measured[0].architecture, measured[0].seconds) == ("mobilenet_v3_small", 0.5)
    assert measured[0].config.trainable_blocks > 0

    chosen = choose_backend("cpu")
    assert kept_speeds(chosen, "mobilenet_v3_small") == MEASURED
    assert training_speed(MEASURED).speed_at(500) == pytest.approx(0.6)
    assert kept_speeds(chosen, "resnet18") is None
    assert speed_key(chosen, "resnet18")["device"]


def test_training_speed_unmeasured_is_linear():
    assert training_speed(None) == LINEAR


def test_speeds_command_unknown_model_is_named(tmp_path):
    with pytest.raises(UserError, match="--model gpt: there is no such edge model; use one of resnet18"):
        speeds.run(SpeedsConfig(model="gpt", shares="cpu", seconds=0.5), Output(Console(), None))


def test_keep_refined_is_planned_with_in_the_next_run():
    chosen, seen = choose_backend("cpu"), SpeedCurve(((0, 0.0), (500, 0.55), (1000, 1.0)))
    keep_refined(chosen, "resnet18", seen)
    assert kept_speeds(chosen, "resnet18") is None
    SPEEDS.save(speed_key(chosen, "resnet18"), MEASURED)
    keep_refined(chosen, "resnet18", None)
    assert kept_speeds(chosen, "resnet18") == MEASURED
    keep_refined(chosen, "resnet18", seen)
    kept = kept_speeds(chosen, "resnet18")
    assert (kept.training, kept.inference) == (MEASURED.training, MEASURED.inference)
    assert training_speed(kept) == seen

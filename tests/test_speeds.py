"""`ekya speeds`, and what a run makes of what it kept."""

import json

import pytest
from rich.console import Console

from ekya.commands import speeds as command
from ekya.commands.output import Output
from ekya.core.commands import ResizeRetraining, StartRetraining
from ekya.core.configs import RetrainConfig
from ekya.core.events import RetrainProgress
from ekya.core.ids import JobId, StreamId
from ekya.core.speed import LINEAR, CoRun, KindSpeeds, ModelSpeeds, SpeedCurve
from ekya.core.turns import TurnRecord
from ekya.errors import UserError
from ekya.gpu.registry import choose_backend
from ekya.speeds import kept_speeds, key_of, refine_kept, training_speed
from ekya.workers.speed_file import save_speeds, speeds_path

BENT = SpeedCurve(((0, 0.0), (500, 0.8), (1000, 1.0)))
SPEEDS = ModelSpeeds(KindSpeeds(BENT, (CoRun(2, 1.2),)), KindSpeeds(BENT, (CoRun(2, 1.0),)))


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def measured(monkeypatch):
    asked = []

    def measure(_backend, spec, told):
        asked.append(spec)
        told()
        return SPEEDS

    monkeypatch.setattr(command, "measure_speeds", measure)
    return asked


def test_what_was_measured_is_shown_kept_and_planned_with(measured, tmp_path):
    to = tmp_path / "speeds.json"
    console = Console(width=100, record=True)
    command.measure("mobilenet_v3_small", "cpu", 0.5, Output(console, str(to)))
    told = json.loads(to.read_text())
    assert (told["backend"], told["model"]) == ("cpu", "mobilenet_v3_small")
    assert told["planned_with"] == [[0, 0.0], [500, pytest.approx(0.6)], [1000, 1.0]]
    assert "2 jobs together" in console.export_text()
    assert (measured[0].architecture, measured[0].seconds) == ("mobilenet_v3_small", 0.5)
    assert measured[0].config.trainable_blocks > 0

    chosen = choose_backend("cpu")
    assert kept_speeds(chosen, "mobilenet_v3_small") == SPEEDS
    assert training_speed(SPEEDS).speed(500) == pytest.approx(0.6)
    assert kept_speeds(chosen, "resnet18") is None
    assert key_of(chosen, "resnet18").device


def test_where_nobody_measured_speed_is_taken_for_linear():
    assert training_speed(None) == LINEAR


def test_a_model_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match="--model gpt: there is no such edge model; use one of resnet18"):
        command.measure("gpt", "cpu", 0.5, Output(Console(), None))


def a_run_at(*shares):
    """A retraining with two epochs at each share, the second half as fast at half the share."""
    stream, job, gamma = StreamId("a"), JobId(1), RetrainConfig(9, 16, 0, 0, 1.0)
    turns, t_us = [TurnRecord(0, (), None, (StartRetraining(stream, job, 1, gamma, shares[0], 0.5, 1.0),))], 0
    for share in shares:
        turns.append(TurnRecord(t_us, (), None, (ResizeRetraining(stream, job, share),)))
        for _ in range(2):
            t_us += 10**9 // share
            turns.append(TurnRecord(t_us, (RetrainProgress(t_us, stream, job, 1, 0.5, 1.0),), None, ()))
    return turns


def test_what_jobs_did_in_a_run_is_planned_with_in_the_next():
    chosen = choose_backend("cpu")
    refine_kept(chosen, "resnet18", a_run_at(500, 1000))
    assert kept_speeds(chosen, "resnet18") is None
    save_speeds(speeds_path(), key_of(chosen, "resnet18"), SPEEDS)
    refine_kept(chosen, "resnet18", a_run_at(500))
    assert kept_speeds(chosen, "resnet18") == SPEEDS
    refine_kept(chosen, "resnet18", a_run_at(500, 1000))
    kept = kept_speeds(chosen, "resnet18")
    assert (kept.training, kept.inference) == (SPEEDS.training, SPEEDS.inference)
    assert 0.5 < training_speed(kept).speed(500) < training_speed(SPEEDS).speed(500)

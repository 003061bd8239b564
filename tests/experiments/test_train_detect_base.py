import re
from pathlib import Path

import pytest
import torch
import torch._dynamo
import train_detect_base as base
import typer
from rendered_frames import FrameStudio
from typer.testing import CliRunner

from ekya.models.edge.architecture_table import FASTESTDET
from ekya.models.edge.detection.weights import open_detector_weights
from ekya.models.golden.checksum import sha256_of
from ekya.streams.synthetic.scene import KINDS

# torch._dynamo: torch's optimisers import it at their first step, which would count as a test's time.
PLAN = base.Plan(steps=2, batch=2, side=64, seed=3)


@pytest.fixture(scope="module")
def studios():
    studio = FrameStudio.open(PLAN.seed, PLAN.side)
    return {side: studio.of_side(side) for side in PLAN.sides}


def test_frames_of_a_plan_grow_in_size_and_difficulty():
    plan = base.Plan(steps=100)
    sides, counts, hard = zip(*(plan.phase_at(step) for step in range(100)), strict=True)
    assert list(sides) == sorted(sides) and sides[0] == 128 and sides[-1] == 256
    assert list(counts) == sorted(counts, reverse=True) and counts[-1] == plan.batch
    assert list(hard) == sorted(hard) and (hard[0], hard[-1]) == (0, 1)
    assert plan.frames == sum(counts)
    assert all(side % 32 == 0 for side in sides)


def test_learning_rate_rises_first_and_is_small_in_the_end():
    plan = base.Plan(steps=1000)
    rates = [plan.rate_at(step) for step in range(1000)]
    assert rates[0] < rates[50] < rates[99]
    assert 0.95 * plan.rate < max(rates) <= plan.rate
    assert rates[-1] < 0.03 * plan.rate


def test_stopped_training_goes_on_as_if_it_had_not_been(studios, tmp_path):
    whole, stopped, resumed = (base.Training(PLAN, studios) for _ in range(3))
    while not whole.done:
        whole.step()
    stopped.step()
    stopped.save(tmp_path / "state")
    resumed.restore(tmp_path / "state")
    assert resumed.steps_done == 1
    while not resumed.done:
        resumed.step()
    weights = whole.model().state_dict()
    for name, tensor in resumed.model().state_dict().items():
        assert torch.equal(tensor, weights[name]), name


def test_base_is_written_with_its_card(tmp_path: Path):
    out = tmp_path / "base.safetensors"
    given = ["--steps", "2", "--batch", "2", "--side", "64", "--tested", "3", "--out", str(out)]
    app = typer.Typer()
    app.command()(base.main)
    result = CliRunner().invoke(app, given, catch_exceptions=False)
    assert result.exit_code == 0
    card = out.with_suffix(".md").read_text(encoding="utf-8")
    assert re.findall(r"sha256: `([0-9a-f]{64})`", card) == [sha256_of(out)]
    assert "--steps 2" in card
    assert open_detector_weights(out, FASTESTDET, KINDS).classes == KINDS

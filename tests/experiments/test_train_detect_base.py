"""Rendered frames, and the training of a detector on them."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torch._dynamo
import train_detect_base as base
import typer
from rendered_canvas import Canvas, Matte
from rendered_frames import FrameStudio
from typer.testing import CliRunner

from ekya.models.edge.architecture_table import FASTESTDET
from ekya.models.edge.detection.weights import open_detector_weights
from ekya.models.golden.checksum import sha256_of
from ekya.streams.synthetic.scene import KINDS

SIDE = 64


@pytest.fixture(scope="module")
def studio():
    return FrameStudio.open(seed=5, side=SIDE)


def empty():
    return Canvas.over(np.zeros((40, 80, 3), np.uint8))


def square(side):
    return Matte(np.full((side, side, 3), 200, np.float32), np.ones((side, side), np.float32))


def moved(x, y):
    return np.array([[1.0, 0, x], [0, 1.0, y]])


def test_frame_of_a_number_is_always_the_same(studio):
    once, again = studio.frames([7, 8]), studio.of_side(32).of_side(SIDE).frames([8, 7])
    assert np.array_equal(once.images, again.images[::-1])
    assert np.array_equal(once.objects[0].boxes, again.objects[1].boxes)
    assert not np.array_equal(once.images[0], once.images[1])


@pytest.mark.parametrize("hard", [0.0, 1.0])
def test_objects_lie_in_their_frame_and_every_class_occurs(studio, hard):
    frames = studio.frames(range(60), hard)
    assert frames.images.shape == (60, SIDE, SIDE, 3)
    for objects in frames.objects:
        for boxes in (objects.boxes, objects.doubtful):
            assert (boxes >= 0).all() and (boxes <= 1).all()
            assert (boxes[:, 2:] > boxes[:, :2]).all()
    assert set(frames.labels().tolist()) == set(range(len(KINDS)))


def test_easy_frames_show_fewer_and_larger_objects(studio):
    easy, hard = studio.frames(range(60), 0.0), studio.frames(range(60), 1.0)
    assert easy.objects_in_each().max() <= 2 < hard.objects_in_each().max()

    def heights(frames):
        boxes = np.concatenate([objects.boxes for objects in frames.objects])
        return boxes[:, 3] - boxes[:, 1]

    assert np.median(heights(easy)) > 2 * np.median(heights(hard))


def test_pasted_body_has_the_box_of_its_pixels():
    canvas = empty()
    box, area = canvas.paste(square(10), moved(20, 5))
    canvas.note(2, box, area)
    rows, columns = np.nonzero(canvas.picture.max(axis=2) > 100)
    assert box == (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
    assert canvas.classes().tolist() == [2]
    assert canvas.visible() == pytest.approx([1.0])


def test_body_outside_the_picture_is_visible_in_part():
    canvas = empty()
    canvas.note(0, *canvas.paste(square(10), moved(75, 0)))
    assert canvas.boxes().tolist() == [[75, 0, 80, 10]]
    assert canvas.visible() == pytest.approx([0.5])


def test_hidden_body_is_not_visible():
    canvas = empty()
    for x in (10, 14):
        canvas.note(0, *canvas.paste(square(10), moved(x, 10)))
    assert canvas.visible() == pytest.approx([0.4, 1.0])


def test_part_of_a_canvas_has_enlarged_boxes():
    canvas = empty()
    canvas.take(1, (20, 10, 30, 20))
    canvas.take(3, (70, 10, 80, 20))
    part = canvas.cut((10, 0, 50, 40), side=80)
    assert part.picture.shape == (80, 80, 3)
    assert part.boxes().tolist() == [[20, 20, 40, 40], [80, 20, 80, 40]]
    inside, outside = part.visible()
    assert inside > 0.9 and outside == 0.0


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

"""Trains the common base of the detectors on rendered frames with boxes.

    python experiments/train_detect_base.py

Takes about twenty minutes of one core. Writes the weights, in 16 bits, and their card beside them. With
``--state FILE`` the training can be stopped and goes on where it was.
"""

import io
import logging
import math
import time
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from city_windows import one_thread
from rendered_frames import CITY_FRAMES, FrameStudio
from rich.console import Console
from rich.logging import RichHandler
from rich.table import Table
from torch import nn

from ekya.core.errors import UserError
from ekya.models.edge.architecture_table import FASTESTDET
from ekya.models.edge.checkpoints import load_model, save_model
from ekya.models.edge.detection.read_objects import BoxCandidates, Found, fleet_outputs, found_in
from ekya.models.edge.model import EdgeModel, build_edge_model, to_input
from ekya.models.golden.checksum import sha256_of
from ekya.models.training.frames import FrameObjects, LabelledFrames
from ekya.models.training.goals import goal_of, judged_frames
from ekya.streams.synthetic.scene import KINDS
from ekya.system.files import write_bytes_atomic, write_text_atomic

ROOT = Path(__file__).resolve().parents[1]
HELD_OUT = 10**9
"""Number of the first frame that is not trained on."""

_MOST = 1000
_WARM_UP, _SAID_EVERY, _KEPT_EVERY = 100, 50, 200
_LARGEST_GRADIENT = 10.0
_BATCH = 16
_RARE, _SMALL = -3.5, -1.0
_EASY_UNTIL, _HARD_FROM = 0.15, 0.65
_SIZES = ((0.5, (0.5, 2.0)), (0.75, (0.75, 1.5)), (math.inf, (1.0, 1.0)))
"""Until which part of the steps frames are of which part of the side, and how many times as many."""

log = logging.getLogger("train_detect_base")


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings with which the base is trained.

    It begins with small frames of few large objects. Of full scenes alone fresh weights learn next to nothing
    in the first thousands of frames.

    Attributes:
        steps: batches.
        batch: frames in a batch of the largest frames, every one new; of smaller ones up to twice as many.
        side: of the last frames, pixels.
        rate: highest learning rate of AdamW; it rises for a hundred steps and falls along a cosine.
        seed: of weights and frames.
    """

    steps: int
    batch: int = 16
    side: int = 256
    rate: float = 4e-3
    seed: int = 0

    def phase_at(self, step: int) -> tuple[int, int, float]:
        """Returns side and number of a step's frames, and how hard they are."""
        done = step / self.steps
        hard = min(1.0, max(0.0, (done - _EASY_UNTIL) / (_HARD_FROM - _EASY_UNTIL)))
        part, more = next(sizes for until, sizes in _SIZES if done < until)
        return max(32, round(part * self.side / 32) * 32), round(more * self.batch), hard

    @property
    def sides(self) -> tuple[int, ...]:
        """Sides of the frames."""
        return tuple(sorted({self.phase_at(step)[0] for step in range(self.steps)}))

    @property
    def frames(self) -> int:
        """Number of frames in all steps."""
        return sum(self.phase_at(step)[1] for step in range(self.steps))

    def rate_at(self, step: int) -> float:
        """Returns the learning rate of a step."""
        falling = 0.5 * (1 + math.cos(math.pi * step / self.steps))
        return self.rate * min(1.0, (step + 1) / _WARM_UP) * (0.02 + 0.98 * falling)


class Training:
    """A training from fresh weights, which can be saved between two steps.

    Args:
        plan: how.
        studios: draw the frames, by side.
    """

    def __init__(self, plan: Plan, studios: Mapping[int, FrameStudio]) -> None:
        self._plan, self._studios = plan, studios
        self._model = _fresh(plan.seed).to(memory_format=torch.channels_last)
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(), plan.rate, weight_decay=0.01, fused=True
        )
        self.steps_done = 0

    @property
    def done(self) -> bool:
        """True after the last step."""
        return self.steps_done >= self._plan.steps

    def step(self) -> float:
        """Takes one step on new frames and returns its loss."""
        side, count, hard = self._plan.phase_at(self.steps_done)
        first = self.steps_done * _MOST
        frames = self._studios[side].frames(range(first, first + count), hard)
        for group in self._optimizer.param_groups:
            group["lr"] = self._plan.rate_at(self.steps_done)
        model = self._model.train()
        outputs = model(to_input(frames.images, "cpu", channels_last=True))
        loss = goal_of(frames, KINDS, model.detector, "cpu").loss(outputs, torch.arange(len(frames)))
        self._optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), _LARGEST_GRADIENT)
        self._optimizer.step()
        self.steps_done += 1
        return float(loss.detach())

    def model(self) -> EdgeModel:
        """Returns a copy of the current model, ready to predict."""
        return deepcopy(self._model).to(memory_format=torch.contiguous_format).eval()

    def save(self, path: Path) -> None:
        """Writes the state of the training."""
        parts = {"model": self._model, "optimizer": self._optimizer}
        stream = io.BytesIO()
        torch.save({"steps": self.steps_done, **{key: of.state_dict() for key, of in parts.items()}}, stream)
        write_bytes_atomic(path, stream.getvalue())

    def restore(self, path: Path) -> None:
        """Goes on from a state that ``save`` wrote in a training with the same plan."""
        state = torch.load(path, weights_only=True)
        self.steps_done = int(state["steps"])
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])


def _fresh(seed: int) -> EdgeModel:
    """Returns fresh weights that expect few small objects: AdamW would take long to find that out."""
    model = build_edge_model(KINDS, 0, seed, FASTESTDET)
    biases = dict(model.named_parameters())
    nn.init.constant_(biases["head.objectness.4.bias"], _RARE)
    nn.init.constant_(biases["head.box.4.bias"][2:], _SMALL)
    return model


def train(plan: Plan, studios: Mapping[int, FrameStudio], state: Path | None) -> EdgeModel:
    """Trains a base; goes on from ``state``, if there is one, and keeps it there."""
    training = Training(plan, studios)
    if state is not None and state.is_file():
        training.restore(state)
        log.info("goes on after step %d", training.steps_done)
    began, first, losses = time.monotonic(), training.steps_done, []
    while not training.done:
        losses.append(training.step())
        if training.steps_done % _SAID_EVERY == 0:
            pace_s = (time.monotonic() - began) / (training.steps_done - first)
            left_s = pace_s * (plan.steps - training.steps_done)
            mean = float(np.mean(losses[-_SAID_EVERY:]))
            log.info("step %d of %d: loss %.3f, %.0f s left", training.steps_done, plan.steps, mean, left_s)
        if state is not None and (training.steps_done % _KEPT_EVERY == 0 or training.done):
            training.save(state)
    return training.model()


def card(plan: Plan, model: EdgeModel, held_out: LabelledFrames, checksum: str) -> str:
    """Returns the model card of the weights."""
    rows = "\n".join(f"| {of.name} | {of.objects} | {of.f1:.1%} |" for of in f1_by_class(model, held_out))
    return f"""# The common base of detectors, from rendered frames

A {model.architecture} for frames that are resized to a square, for when no weights from pictures are at hand.
Every camera's detector begins with these weights and is retrained from there.

- Made from fresh weights, on one thread, by
  `python experiments/train_detect_base.py --steps {plan.steps} --batch {plan.batch} --side {plan.side}
  --rate {plan.rate:g} --seed {plan.seed}`
- Data: {plan.frames} frames, each drawn once, with their true boxes. The city's bodies stand before clutter,
  at all sizes, vehicles also turned as solids. The first frames have {min(plan.sides)} pixels and show few
  large objects; the last are full scenes of {plan.side} pixels, {CITY_FRAMES:.0%} of them moments of the
  synthetic city, with streets and traffic that no run shows. All are lit, blurred and compressed at random.
  Objects that are mostly hidden, or smaller than a sixtieth of the frame, are neither objects nor background.
- AdamW with batch statistics, learning rate {plan.rate:g} falling along a cosine.
- No picture of a camera was used.
- Stored as safetensors with 16-bit kernels, loaded as 32 bits. The classes stand in the file's metadata:
  {", ".join(model.classes)}.
- sha256: `{checksum}`

F1 at IoU 0.5 with class on {len(held_out)} such full scenes that were not trained on:
{f1_of(model, held_out):.1%}.

| class | objects | F1 |
|---|---:|---:|
{rows}
"""


@dataclass(frozen=True, slots=True)
class ClassScore:
    """Scores of the objects of a class.

    Attributes:
        name: of the class.
        objects: number of objects.
        f1: at IoU 0.5, of boxes that are sure, in [0, 1].
    """

    name: str
    objects: int
    f1: float


def found_by(model: EdgeModel, frames: LabelledFrames) -> list[Found]:
    """Returns what a detector finds in each frame."""
    assert model.detector is not None
    in_fleet = fleet_outputs(model.classes, frames.names)
    found: list[Found] = []
    with torch.inference_mode():
        for start in range(0, len(frames), _BATCH):
            outputs = model(to_input(frames.images[start : start + _BATCH], "cpu"))
            found += found_in(
                BoxCandidates.of(model.detector.decode_outputs(outputs)), in_fleet, model.threshold
            )
    return found


def f1_of(model: EdgeModel, frames: LabelledFrames) -> float:
    """Returns the F1 over all objects, in [0, 1]."""
    return judged_frames(found_by(model, frames), frames.objects).accuracy(np.ones(len(frames)))


def f1_by_class(model: EdgeModel, frames: LabelledFrames) -> list[ClassScore]:
    """Returns the F1 of each class, as if the objects and boxes of the others were not there."""
    found, scores = found_by(model, frames), []
    for index, name in enumerate(frames.names):
        objects = tuple(_only_objects(of, index) for of in frames.objects)
        f1 = judged_frames([_only_found(of, index) for of in found], objects).accuracy(np.ones(len(frames)))
        scores.append(ClassScore(name, sum(len(of.classes) for of in objects), f1))
    return scores


def _only_found(found: Found, index: int) -> Found:
    rows = found.classes == index
    return Found(found.boxes[rows], found.classes[rows], found.confidence[rows])


def _only_objects(objects: FrameObjects, index: int) -> FrameObjects:
    rows = objects.classes == index
    return FrameObjects(objects.boxes[rows], objects.classes[rows], objects.doubtful)


def main(
    out: Annotated[Path, typer.Option(help="Where the weights go; the card goes beside them.")] = ROOT
    / "golden_models/synthetic_city_fastestdet_base.safetensors",
    steps: Annotated[int, typer.Option(min=1, help="Batches to train on.")] = 2400,
    batch: Annotated[int, typer.Option(min=2, help="Frames in a batch.")] = 16,
    side: Annotated[int, typer.Option(min=64, help="Of a frame, pixels; a multiple of 32.")] = 256,
    rate: Annotated[float, typer.Option(help="Highest learning rate.")] = 4e-3,
    seed: Annotated[int, typer.Option(min=0, help="Of weights and frames.")] = 0,
    state: Annotated[
        Path | None, typer.Option(help="Keeps the training here, and goes on from it if it exists.")
    ] = None,
    tested: Annotated[int, typer.Option(min=1, help="Frames to test on.")] = 500,
) -> None:
    """Train the base of the detectors and write it with its card."""
    if side % 32:
        raise UserError(f"--side {side}: is no multiple of 32; use {max(64, side // 32 * 32)}")
    console = Console()
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[RichHandler(console=console)])
    one_thread()
    plan = Plan(steps, batch, side, rate, seed)
    studio = FrameStudio.open(seed, side)
    studios = {one: studio.of_side(one) for one in plan.sides}
    model = train(plan, studios, state)
    save_model(model, out, {"recipe": "experiments/train_detect_base.py", "seed": str(seed)}, half=True)
    stored, held_out = load_model(out), studio.frames(range(HELD_OUT, HELD_OUT + tested))
    write_text_atomic(out.with_suffix(".md"), card(plan, stored, held_out, sha256_of(out)))
    table = Table("class", "objects", "F1", title=f"{out.name}: {f1_of(stored, held_out):.1%}")
    for of in f1_by_class(stored, held_out):
        table.add_row(of.name, str(of.objects), f"{of.f1:.1%}")
    console.print(table)


if __name__ == "__main__":
    typer.run(main)

"""The training loop: epochs of drawn batches, a checkpoint between steps, and the best weights.

Everything that is drawn follows from the seed, the epoch and the step, so a training that was killed goes on
from its checkpoint as if nothing had happened.
"""

import json
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ekya.core.errors import UserError
from ekya.core.units import StreamId
from ekya.models.supervised.crop_store import CropStore, Split
from ekya.models.supervised.network import TrainableNetwork
from ekya.models.supervised.recipe import (
    LABEL_SMOOTHING,
    MOST_GRADIENT,
    WEIGHT_DECAY,
    Recipe,
    draw_balanced,
    make_augmentation,
    to_pixels,
)
from ekya.models.training.trainer import training_precision
from ekya.models.weights import read_safetensors
from ekya.system.files import user_errors, write_bytes_atomic
from ekya.system.keeper import Keeper

CHECKPOINT = "checkpoint.safetensors"
"""Name of the file in the folder of a training that has begun."""

_MODEL, _OPTIMIZER = "model.", "optimizer."
_MOST_STOPPING = 4000


@dataclass(slots=True)
class TrainingState:
    """Where a training is; beside it there are only weights and the optimiser's averages.

    Attributes:
        epoch: that is under way, from 0.
        step: of the epoch, the next one.
        loss_sum: over the steps of the epoch.
        best: balanced accuracy and negative loss of the best epoch on the stopping part; None before one.
        best_epoch: from 0.
        losses, accuracies: training loss, and balanced accuracy on the stopping part, of each epoch.
    """

    epoch: int = 0
    step: int = 0
    loss_sum: float = 0.0
    best: tuple[float, float] | None = None
    best_epoch: int = -1
    losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)


class TrainingProgress(Protocol):
    """Receives the progress of a training. What it raises ends the training, whose checkpoint stays."""

    def show_stream(self, stream: StreamId, frames: int | None) -> None:
        """Called when the crops of a stream begin to be cut; ``frames`` is its length if it is known."""

    def show_cut_frames(self, frames: int) -> None:
        """Called when this many more frames are cut."""

    def show_start(self, state: TrainingState, recipe: Recipe) -> None:
        """Called before the first step, or the first after a resume."""

    def show_step(self, state: TrainingState) -> None:
        """Called after each step."""

    def show_epoch(self, state: TrainingState) -> None:
        """Called after each epoch, when it is measured."""


@dataclass(frozen=True, slots=True, eq=False)
class Training:
    """Trains a network on the crops of a store.

    Attributes:
        network: whose module is trained, on its device.
        store, split: the crops.
        recipe: how.
        folder: of checkpoint and best weights.
        device: torch's name.
        seed: of all that is drawn.
        progress: receives the progress.
    """

    network: TrainableNetwork
    store: CropStore
    split: Split
    recipe: Recipe
    folder: Path
    device: str
    seed: int
    progress: TrainingProgress

    def run(self) -> TrainingState:
        """Trains to the end, from the checkpoint if there is one, and leaves the best weights in the module.

        Raises:
            UserError: the checkpoint is damaged, the loss is not finite, or the disk is full.
        """
        module = self.network.module.to(self.device)
        optimizer = _make_optimizer(module)
        state = self._restore(optimizer)
        keeper = Keeper(lambda: self._keep(optimizer, state))
        self.progress.show_start(state, self.recipe)
        vary = make_augmentation(self.store.side)
        while state.epoch < self.recipe.epochs and state.epoch - 1 - state.best_epoch < self.recipe.patience:
            count = self.recipe.steps * self.recipe.batch
            rows = draw_balanced(self.store.classes, self.split.training, count, self.seed, state.epoch)
            batches = rows.reshape(self.recipe.steps, self.recipe.batch)
            module.train()
            for batch in batches[state.step :]:
                state.loss_sum += self._take_step(optimizer, state, batch, vary)
                state.step += 1
                keeper.save_if_due()
                self.progress.show_step(state)
            self._end_epoch(state)
            keeper.save_if_cheap()
            self.progress.show_epoch(state)
        module.load_state_dict(load_file(self.folder / "best.safetensors"))
        return state

    def _take_step(
        self,
        optimizer: torch.optim.Optimizer,
        state: TrainingState,
        batch: NDArray[np.int64],
        vary: nn.Module,
    ) -> float:
        # Torch's own generator is what the transforms draw from.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(
                int(np.random.SeedSequence((self.seed, state.epoch, state.step)).generate_state(1)[0])
            )
            crops = torch.stack([vary(crop) for crop in to_pixels(self.store.read_crops(batch))])
        for group in optimizer.param_groups:
            group["lr"] = self.recipe.rate_at(state.epoch * self.recipe.steps + state.step)
        with self._precision():
            answers = self.network.answer(crops.to(self.device))
        wanted = torch.from_numpy(self.store.classes[batch]).to(self.device)
        loss = cross_entropy(answers.float(), wanted, label_smoothing=LABEL_SMOOTHING)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.network.module.parameters(), MOST_GRADIENT)
        optimizer.step()
        return float(loss.detach())

    def _end_epoch(self, state: TrainingState) -> None:
        if not math.isfinite(state.loss_sum):
            raise UserError(
                f"--model: in epoch {state.epoch + 1} the loss of {self.network.architecture} is not finite; "
                "begin with trained weights (--weights)"
            )
        few = self.split.stopping[:: math.ceil(len(self.split.stopping) / _MOST_STOPPING)]
        predicted, loss = self.predict(few)
        accuracy = balanced_accuracy(count_confusions(self.store.classes[few], predicted))
        state.losses.append(state.loss_sum / self.recipe.steps)
        state.accuracies.append(accuracy)
        if state.best is None or (accuracy, -loss) > state.best:
            state.best, state.best_epoch = (accuracy, -loss), state.epoch
            best = {name: of.contiguous() for name, of in self.network.module.state_dict().items()}
            write_bytes_atomic(self.folder / "best.safetensors", save(best))
        state.epoch, state.step, state.loss_sum = state.epoch + 1, 0, 0.0

    def predict(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], float]:
        """Returns the classes of these crops, at least one, and the mean loss."""
        self.network.module.eval()
        predicted, loss = [rows[:0]], 0.0
        size = 2 * self.recipe.batch
        with torch.inference_mode(), self._precision():
            for at in range(0, len(rows), size):
                some = rows[at : at + size]
                crops = to_pixels(self.store.read_crops(some)).to(self.device).float() / 255
                answers = self.network.answer(crops).float()
                wanted = torch.from_numpy(self.store.classes[some]).to(self.device)
                loss += float(cross_entropy(answers, wanted, reduction="sum"))
                predicted.append(answers.argmax(1).cpu().numpy())
        return np.concatenate(predicted).astype(np.int64), loss / len(rows)

    def _precision(self) -> AbstractContextManager[Any]:
        precision = training_precision(self.device)
        kind = torch.device(self.device).type
        return torch.autocast(kind, torch.bfloat16, enabled=precision is not torch.float32)

    def _keep(self, optimizer: torch.optim.Optimizer, state: TrainingState) -> None:
        named = {_MODEL + name: of for name, of in self.network.module.state_dict().items()}
        for name, weight in self.network.module.named_parameters():
            for key, of in optimizer.state.get(weight, {}).items():
                named[f"{_OPTIMIZER}{key}.{name}"] = of
        held = {name: of.detach().cpu().contiguous() for name, of in named.items()}
        write_bytes_atomic(self._checkpoint, save(held, {"state": json.dumps(asdict(state))}))

    def _restore(self, optimizer: torch.optim.Optimizer) -> TrainingState:
        if not self._checkpoint.is_file():
            return TrainingState()
        try:
            with user_errors(self._checkpoint):
                held, metadata = read_safetensors(self._checkpoint.read_bytes())
            state = TrainingState(**json.loads(metadata["state"]))
            self.network.module.load_state_dict(_below(held, _MODEL))
            for name, weight in self.network.module.named_parameters():
                for key in ("step", "exp_avg", "exp_avg_sq"):
                    if (of := held.get(f"{_OPTIMIZER}{key}.{name}")) is not None:
                        # In the layout of the weight, so that sums over both add up in the same order.
                        like = weight if of.shape == weight.shape else of
                        optimizer.state[weight][key] = torch.empty_like(like).copy_(of)
        except (ValueError, KeyError, TypeError, RuntimeError) as error:
            raise UserError(
                f"{self._checkpoint}: the checkpoint is damaged; remove it to begin anew"
            ) from error
        state.best = None if state.best is None else (state.best[0], state.best[1])
        return state

    @property
    def _checkpoint(self) -> Path:
        return self.folder / CHECKPOINT


def _below(held: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): of for name, of in held.items() if name.startswith(prefix)}


def _make_optimizer(module: nn.Module) -> torch.optim.Optimizer:
    """Returns AdamW, without decay of biases and normalisations."""
    weights = list(module.parameters())
    groups = [
        {"params": [one for one in weights if one.ndim > 1], "weight_decay": WEIGHT_DECAY},
        {"params": [one for one in weights if one.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups)


def count_confusions(
    classes: NDArray[np.int64], predicted: NDArray[np.int64], count: int = 0
) -> NDArray[np.int64]:
    """Returns how often each class (row) was taken for each (column), of ``count`` or all that occur."""
    count = max(count, int(max(classes.max(initial=-1), predicted.max(initial=-1))) + 1)
    return np.bincount(classes * count + predicted, minlength=count * count).reshape(count, count)


def balanced_accuracy(confusions: NDArray[np.int64]) -> float:
    """Returns the mean over the classes that occur of the accuracy within each."""
    shown = confusions.sum(axis=1)
    return float(np.mean(np.diag(confusions)[shown > 0] / shown[shown > 0]))

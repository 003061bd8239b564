"""One retraining as a sequence of epochs (paper §2.2, §3.1; after iCaRL, [82])."""

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div

from ekya.core.configs import RetrainConfig
from ekya.learning.cutting import on_cpu, split_at
from ekya.learning.edge import EdgeModel, adapt, clone, known_outputs, to_input
from ekya.learning.labelled import LabelledCrops, class_mix_weights, concatenate, no_crops
from ekya.learning.memory import ExemplarMemory
from ekya.learning.passed import KnownFeatures, PassedCrops
from ekya.learning.predictor import FORWARD_BATCH

REPLAY_RATIO = 0.5
"""Exemplars mixed into an epoch, as a part of its new crops: each epoch draws others."""


@dataclass(frozen=True, slots=True)
class SgdRecipe:
    """How the weights are moved. The defaults were found on drifting windows of about 80 crops.

    The learning rate does not depend on how many epochs are planned, so the first epochs of a long
    retraining are those of a short one: this is what lets a micro-profile of a few epochs be
    extrapolated to every length (paper §4.3).

    Attributes:
        learning_rate: of the trunk's blocks at a batch of 16; scaled by the root of the batch size.
        head_learning_rate: of the head, likewise.
        momentum, weight_decay: of SGD.
        batch_statistics: normalise trained blocks by their batches, and learn the statistics from
            them, as fresh weights need. Otherwise by the start model's statistics, as frozen blocks
            always do: the crops of a window show few objects, and statistics of few objects cost
            more accuracy than they bring.
        decay_epochs: when so many epochs are done the rates are half, after twice as many a third.
    """

    learning_rate: float = 0.005
    head_learning_rate: float = 0.015
    momentum: float = 0.9
    weight_decay: float = 5e-4
    decay_epochs: float = 8.0
    batch_statistics: bool = False


DISTILLATION_WEIGHT = 0.5
"""Of the distillation beside the cross-entropy."""

DISTILLATION_TEMPERATURE = 2.0
"""Softens the start model's answers, so that its second choices teach too."""


@dataclass(frozen=True, slots=True)
class EpochResult:
    """What one epoch gave.

    Attributes:
        epoch: 1 for the first.
        validation_accuracy: in [0, 1], after the epoch.
        training_loss: mean over the epoch's batches.
    """

    epoch: int
    validation_accuracy: float
    training_loss: float


class Retraining:
    """Retrains a model with γ, epoch by epoch; between two epochs it holds no hidden state.

    Args:
        start: the model to begin with and to be distilled from; it is left as it is.
        config: γ.
        training: what to learn from; labels index ``classes``.
        validation: what accuracy is measured on; no track of ``training``.
        memory: exemplars to mix in, or None.
        classes: outputs of the retrained model.
        seed: of the head, the choice of tracks and the order of crops.
        device: where to compute, for example ``cuda``.
        scope: entered around every batch; a share backend waits here for its turn.
        distillation_weight: 0 switches distillation off.
        recipe: learning rates and the like.
        known: features of the crops, where a caller has them already. Only the head may train then, on
            all data and without exemplars.
        keep_activations: pass each crop through the frozen blocks once and keep what comes out, so that an
            epoch costs what trains. Otherwise the pictures are kept and passed anew in every epoch: much
            slower, and the way to train on crops whose activations do not fit into memory.
        passed: what the same blocks made of crops that passed them before; those pass no more.
        precision: what trained and frozen blocks compute in; weights, their gradients and losses stay in 32
            bits. See ``learning.precision``.
    """

    def __init__(
        self,
        start: EdgeModel,
        config: RetrainConfig,
        training: LabelledCrops,
        validation: LabelledCrops,
        *,
        memory: ExemplarMemory | None,
        classes: tuple[str, ...],
        seed: int,
        device: str = "cpu",
        scope: Callable[[], AbstractContextManager[None]] = nullcontext,
        distillation_weight: float = DISTILLATION_WEIGHT,
        recipe: SgdRecipe | None = None,
        known: KnownFeatures | None = None,
        keep_activations: bool = True,
        precision: torch.dtype = torch.float32,
        passed: PassedCrops | None = None,
    ) -> None:
        if len(training) == 0:
            raise ValueError("a retraining needs at least one training crop")
        if known is not None and (config.trainable_blocks or config.data_fraction < 1.0 or memory):
            raise ValueError("features are for a head that trains on all data and no exemplars")
        self._features = known
        self.config = config
        self.epochs_done = 0
        self._device, self._scope, self._seed = device, scope, seed
        self._keeps, self._precision = keep_activations, precision
        self._passed = passed if keep_activations else None
        self._recipe = recipe or SgdRecipe()
        self._distillation_weight = distillation_weight
        self._start, self._classes = start, classes
        self._fresh = fraction_of_tracks(training, config.data_fraction, seed)
        self._replay = _usable_exemplars(memory, validation)
        self._validation = validation
        self._weights = (
            class_mix_weights(training.classes, validation.classes) if known is None else known.weights
        )

    @property
    def architecture(self) -> str:
        """Of the start model and the retrained one."""
        return self._start.architecture

    @property
    def side(self) -> int:
        """Of the crops, in pixels."""
        return self._fresh.side

    @property
    def fresh_crops(self) -> int:
        """Training crops that γ's data fraction leaves, without exemplars."""
        return len(self._fresh)

    @property
    def prepared_crops(self) -> int:
        """Crops that ``prepare`` shows the model: fresh, exemplars and validation."""
        return sum(len(part) for part in self._prepared)

    @property
    def passed_crops(self) -> int:
        """Those of them that have passed the frozen blocks before."""
        if self._passed is None:
            return 0
        blocks = self.config.trainable_blocks
        return sum(int(self._passed.known(blocks, part.crops).sum()) for part in self._prepared)

    @property
    def _prepared(self) -> tuple[LabelledCrops, ...]:
        return self._fresh, self._replay, self._validation

    @property
    def epoch_crops(self) -> int:
        """Crops that an epoch trains on, exemplars included."""
        return crops_in_epoch(len(self._fresh), len(self._replay))

    @property
    def validation_crops(self) -> int:
        """Crops that measure the accuracy after each epoch."""
        return len(self._validation)

    @property
    def done(self) -> bool:
        """Whether every epoch of γ has run."""
        return self.epochs_done >= self.config.epochs

    def prepare(self) -> float:
        """Build the model, compute what stays the same over all epochs, and measure the start.

        Returns:
            Validation accuracy before the first epoch; 0.0 without validation crops.
        """
        frozen, _ = split_at(self._start, self.config.trainable_blocks)
        trained = adapt(self._start, self._classes, self.config.head_width, self._seed, on_cpu(frozen))
        trained = trained.to(self._device)
        self._model = trained
        self._prefix, self._suffix = split_at(trained, self.config.trainable_blocks)
        self._prefix.requires_grad_(False).eval()
        self._frozen = on_cpu(self._prefix)
        self._suffix.requires_grad_(True)
        self._optimiser = self._build_optimiser()
        everything = concatenate([self._fresh, self._replay])
        known = self._features
        self._inputs = self._through_prefix(everything) if known is None else known.training
        self._labels = torch.from_numpy(everything.classes).to(self._device)
        self._validation_inputs = (
            self._through_prefix(self._validation) if known is None else known.validation
        )
        if self._distillation_weight > 0:
            self._consult_teacher()
        return self._evaluate()

    def share(self, passed: PassedCrops) -> None:
        """Keeps there what the frozen blocks made of the crops, once they have been prepared."""
        crops = concatenate([self._fresh, self._replay]).crops
        passed.keep(self.config.trainable_blocks, crops, self._inputs)
        passed.keep(self.config.trainable_blocks, self._validation.crops, self._validation_inputs)

    def run_epoch(self) -> EpochResult:
        """Train on every fresh crop and some exemplars once, then validate."""
        rng = np.random.default_rng((self._seed, self.epochs_done))
        self._set_learning_rates()
        self._suffix.train(self._recipe.batch_statistics)
        losses = [self._step(batch) for batch in self._batches(rng)]
        self.epochs_done += 1
        accuracy = self._evaluate()
        # Read when all is done: to ask a device for a number stops it, so no step does.
        told = torch.stack(losses).cpu().numpy().astype(np.float64)
        return EpochResult(self.epochs_done, accuracy, float(np.mean(told)))

    def model(self) -> EdgeModel:
        """The model as it is now, on the CPU, ready to predict.

        A copy of what is trained; weights that are frozen never change, and all these models share them: to
        copy them too takes several times as long as an epoch of a head.
        """
        return clone(self._model, self._frozen).requires_grad_(False).to("cpu").eval()

    def _build_optimiser(self) -> torch.optim.SGD:
        rates = self._recipe
        scale = (self.config.batch_size / 16) ** 0.5
        trunk = [weight for block in self._suffix.blocks for weight in block.parameters()]
        groups = [{"params": list(self._suffix.head.parameters()), "base": rates.head_learning_rate * scale}]
        if trunk:
            groups.append({"params": trunk, "base": rates.learning_rate * scale})
        # Fused: on a CPU one pass over the weights instead of five, an eighth of a whole step.
        return torch.optim.SGD(
            groups,
            lr=rates.learning_rate,
            momentum=rates.momentum,
            weight_decay=rates.weight_decay,
            fused=True,
        )

    def _set_learning_rates(self) -> None:
        decay = 1.0 / (1.0 + self.epochs_done / self._recipe.decay_epochs)
        for group in self._optimiser.param_groups:
            group["lr"] = group["base"] * decay

    def _batches(self, rng: np.random.Generator) -> Iterator[Tensor]:
        fresh = np.arange(len(self._fresh))
        replayed = rng.choice(len(self._replay), self.epoch_crops - len(fresh), replace=False)
        order = rng.permutation(np.concatenate([fresh, len(fresh) + replayed.astype(np.int64)]))
        batches = batches_of(order, self.config.batch_size)
        together = torch.from_numpy(np.concatenate(batches)).to(self._device)
        yield from torch.split(together, [len(batch) for batch in batches])

    def _step(self, batch: Tensor) -> Tensor:
        with self._scope():
            logits = self._logits(self._inputs[batch])
            loss = cross_entropy(logits, self._labels[batch])
            if self._distillation_weight > 0:
                loss = loss + self._distillation_weight * self._distillation(logits, batch)
            self._optimiser.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            self._optimiser.step()
            return loss.detach()

    def _logits(self, inputs: Tensor) -> Tensor:
        """What the model makes of inputs, as they are kept, in 32 bits."""
        with self._in_precision():
            logits: Tensor = self._suffix(inputs if self._keeps else self._prefix(inputs))
        return logits.float()

    def _in_precision(self) -> AbstractContextManager[object]:
        mixed = self._precision is not torch.float32
        return torch.autocast(torch.device(self._device).type, self._precision) if mixed else nullcontext()

    def _distillation(self, logits: Tensor, batch: Tensor) -> Tensor:
        """How far the answers over the known classes are from those of the start model."""
        heat = DISTILLATION_TEMPERATURE
        answers = (logits[:, self._known] / heat).log_softmax(dim=1)
        divergence = kl_div(answers, self._teaching[batch], reduction="none").sum(dim=1)
        return heat * heat * (divergence * self._trusted[batch]).mean()

    def _consult_teacher(self) -> None:
        """Note the start model's soft answers, and where they may be trusted.

        It is no teacher on crops that drifted away from it: where the label is a class that it knows
        and it answers otherwise, only the label counts.
        """
        old, self._known = known_outputs(self._start.classes, self._classes)
        frozen, suffix = split_at(self._start, self.config.trainable_blocks)
        whole = suffix if self._keeps else nn.Sequential(frozen, suffix)
        teacher = copy.deepcopy(whole).to(self._device).eval()
        logits = self._in_batches(teacher, self._inputs)[:, old].float()
        self._teaching = (logits / DISTILLATION_TEMPERATURE).softmax(dim=1)
        known = torch.tensor(self._known, device=self._device)
        right = known[logits.argmax(dim=1)] == self._labels
        self._trusted = (right | ~torch.isin(self._labels, known)).float()

    @torch.no_grad()
    def _evaluate(self) -> float:
        if len(self._validation) == 0:
            return 0.0
        self._suffix.eval()
        answers = self._in_batches(self._logits, self._validation_inputs).argmax(dim=1).cpu().numpy()
        return float(np.average(answers == self._validation.classes, weights=self._weights))

    def _through_prefix(self, labelled: LabelledCrops) -> Tensor:
        if not self._keeps:
            return to_input(labelled.crops, self._device)

        def through(crops: NDArray[np.uint8]) -> Tensor:
            return self._in_batches(self._prefix, to_input(crops, self._device))

        if self._passed is None:
            return through(labelled.crops)
        return self._passed.completed(self.config.trainable_blocks, labelled.crops, through, self._device)

    @torch.no_grad()
    def _in_batches(self, module: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
        parts = []
        for part in torch.split(inputs, FORWARD_BATCH):
            with self._scope(), self._in_precision():
                parts.append(module(part))
        return torch.cat(parts)


def crops_in_epoch(fresh_crops: int, exemplars: int) -> int:
    """Crops that one epoch trains on: all fresh ones, and exemplars for ``REPLAY_RATIO`` of them."""
    return fresh_crops + min(exemplars, round(REPLAY_RATIO * fresh_crops))


def batches_of(order: NDArray[np.int64], batch_size: int) -> list[NDArray[np.int64]]:
    """Cut an order into batches. Batch normalisation needs two crops, so none is left alone."""
    if len(order) == 1:
        return [order.repeat(2)]
    cuts = list(range(batch_size, len(order), batch_size))
    if cuts and len(order) - cuts[-1] == 1:
        cuts.pop()
    return list(np.split(order, cuts))


def steps_in_epoch(crops: int, batch_size: int) -> int:
    """How many batches ``batches_of`` makes of so many crops; none of none."""
    batches = -(-crops // batch_size)
    left_alone = batches > 1 and crops - (batches - 1) * batch_size == 1
    return batches - left_alone


def fraction_of_tracks(labelled: LabelledCrops, fraction: float, seed: int) -> LabelledCrops:
    """The crops of a uniformly random part of the tracks, at least one track, in their order."""
    tracks = np.unique(labelled.tracks)
    count = max(1, round(fraction * len(tracks)))
    if count >= len(tracks):
        return labelled
    taken = np.random.default_rng((seed, len(tracks))).permutation(tracks)[:count]
    return labelled.take(np.flatnonzero(np.isin(labelled.tracks, taken)))


def _usable_exemplars(memory: ExemplarMemory | None, validation: LabelledCrops) -> LabelledCrops:
    """Exemplars of objects that do not validate: a long-lived object may be in both."""
    exemplars = memory.exemplars() if memory is not None else None
    if exemplars is None:
        return no_crops(validation.side)
    return exemplars.take(np.flatnonzero(~np.isin(exemplars.tracks, validation.tracks)))

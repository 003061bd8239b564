"""Model in training, cut at the freeze boundary, with access to its trained weights and gradients."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div

from ekya.core.configs import RetrainConfig
from ekya.models.edge.model import EdgeModel, adapt, clone, known_outputs, on_cpu, split_at, to_input
from ekya.models.edge.predictor import FORWARD_BATCH

DISTILLATION_WEIGHT = 0.5
"""Weight of the distillation loss relative to the cross-entropy."""

DISTILLATION_TEMPERATURE = 2.0
"""Softens the start model's outputs, so that its second choices count too."""

_NOT_MOVED: Mapping[str, Tensor] = MappingProxyType({})


class Trainee:
    """Copy of a start model with a requested head, whose last blocks can be trained.

    Args:
        start: the model to start from; it is not changed.
        config: γ, for its head and its trainable blocks.
        classes: outputs of the trained model.
        seed: of a new head.
        device: torch device.
        scope: context entered around every pass of several crops.
        keep_activations: ``inputs_of`` returns activations at the freeze boundary; otherwise images.
        precision: type that blocks compute in.

    Attributes:
        suffix: the trained part.
    """

    def __init__(
        self,
        start: EdgeModel,
        config: RetrainConfig,
        classes: tuple[str, ...],
        seed: int,
        *,
        device: str = "cpu",
        scope: Callable[[], AbstractContextManager[None]] = nullcontext,
        keep_activations: bool = True,
        precision: torch.dtype = torch.float32,
    ) -> None:
        self.device, self.scope = device, scope
        self._keeps, self._precision = keep_activations, precision
        self._start, self._classes, self._blocks = start, classes, config.trainable_blocks
        frozen, _ = split_at(start, self._blocks)
        self._model = adapt(start, classes, config.head_width, seed, on_cpu(frozen)).to(device)
        self._prefix, self.suffix = split_at(self._model, self._blocks)
        self._prefix.requires_grad_(False).eval()
        self._frozen = on_cpu(self._prefix)
        self.suffix.requires_grad_(True)

    def model(self) -> EdgeModel:
        """Returns the current model, on the CPU, ready to predict.

        Trained weights are copied. Frozen weights never change and are shared by all returned models: copying
        them would take several times as long as an epoch of a head.
        """
        return clone(self._model, self._frozen).requires_grad_(False).to("cpu").eval()

    def weights(self, moved: Mapping[str, Tensor] = _NOT_MOVED) -> NDArray[np.float32]:
        """Returns a (P,) copy of all trained weights, concatenated.

        Args:
            moved: offsets that are added to some of the copies, by names in ``suffix``.
        """
        return _flat(
            weight.detach() + moved[name] if name in moved else weight.detach()
            for name, weight in self.suffix.named_parameters()
        )

    def set_weights(self, flat: NDArray[np.float32]) -> None:
        """Sets the trained weights to what ``weights`` of an equal trainee returned."""
        with torch.no_grad():
            for weight, new in self._each(flat):
                weight.copy_(new)

    def gradient(self) -> NDArray[np.float32]:
        """Returns a (P,) copy of the last ``Lesson.backward``'s gradient, in the order of ``weights``."""
        return _flat(
            torch.zeros_like(weight) if weight.grad is None else weight.grad
            for weight in self.suffix.parameters()
        )

    def set_gradient(self, flat: NDArray[np.float32]) -> None:
        """Sets the gradient, in the order of ``weights``; takes ownership of the array."""
        for weight, new in self._each(flat):
            weight.grad = new.to(weight.device)

    def _each(self, flat: NDArray[np.float32]) -> Iterator[tuple[nn.Parameter, Tensor]]:
        weights = list(self.suffix.parameters())
        # Arrays from another process may be read-only, which torch does not support.
        whole = torch.from_numpy(flat if flat.flags.writeable else flat.copy())
        parts = torch.split(whole, [weight.numel() for weight in weights])
        for weight, part in zip(weights, parts, strict=True):
            yield weight, part.view_as(weight)

    def inputs_of(self, crops: NDArray[np.uint8]) -> Tensor:
        """Converts (N, S, S, 3) uint8 crops to inputs of ``logits``, (N, …) on the device."""
        inputs = to_input(crops, self.device)
        return self.in_batches(self._prefix, inputs) if self._keeps else inputs

    def logits(self, inputs: Tensor) -> Tensor:
        """Returns the logits, in 32 bits, of what ``inputs_of`` returned."""
        with self._in_precision():
            logits: Tensor = self.suffix(inputs if self._keeps else self._prefix(inputs))
        return logits.float()

    @torch.no_grad()
    def answers(self, inputs: Tensor) -> NDArray[np.int64]:
        """Returns the (N,) predicted classes of what ``inputs_of`` returned."""
        self.suffix.eval()
        classes: NDArray[np.int64] = self.in_batches(self.logits, inputs).argmax(dim=1).cpu().numpy()
        return classes

    @torch.no_grad()
    def in_batches(self, module: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
        """Passes (N, …) inputs through a module, ``FORWARD_BATCH`` at a time."""
        parts = []
        for part in torch.split(inputs, FORWARD_BATCH):
            with self.scope(), self._in_precision():
                parts.append(module(part))
        return torch.cat(parts)

    def lesson(self, inputs: Tensor, labels: NDArray[np.int64], distillation_weight: float) -> "Lesson":
        """Returns a lesson on crops, as ``inputs_of`` returns them; weight 0 disables distillation."""
        there = torch.from_numpy(labels).to(self.device)
        teaching = self._teaching(inputs, there) if distillation_weight > 0 else None
        return Lesson(self, inputs, there, distillation_weight, teaching)

    def _in_precision(self) -> AbstractContextManager[object]:
        mixed = self._precision is not torch.float32
        return torch.autocast(torch.device(self.device).type, self._precision) if mixed else nullcontext()

    def _teaching(self, inputs: Tensor, labels: Tensor) -> "_Teaching":
        """Returns the start model's softened outputs, and where they are trusted.

        The start model is no teacher on crops that drifted away from it: where the label is a class that it
        knows and it predicts another one, only the label counts.
        """
        old, new = known_outputs(self._start.classes, self._classes)
        frozen, suffix = split_at(self._start, self._blocks)
        whole = suffix if self._keeps else nn.Sequential(frozen, suffix)
        teacher = copy.deepcopy(whole).to(self.device).eval()
        logits = self.in_batches(teacher, inputs)[:, old].float()
        known = torch.tensor(new, device=self.device)
        right = known[logits.argmax(dim=1)] == labels
        trusted = (right | ~torch.isin(labels, known)).float()
        return _Teaching(new, (logits / DISTILLATION_TEMPERATURE).softmax(dim=1), trusted)


def _flat(tensors: Iterable[Tensor]) -> NDArray[np.float32]:
    together: NDArray[np.float32] = torch.cat([tensor.reshape(-1) for tensor in tensors]).cpu().numpy()
    return together


class _Teaching:
    """Outputs of the start model on crops, as targets of distillation.

    Args:
        known: outputs of the trained model for the classes that the start model has.
        answers: (N, K) softened probabilities over these outputs.
        trusted: (N,) 1.0 where they count, else 0.0.
    """

    def __init__(self, known: list[int], answers: Tensor, trusted: Tensor) -> None:
        self._known, self._answers, self._trusted = known, answers, trusted

    def distance(self, logits: Tensor, batch: Tensor) -> Tensor:
        """Returns the distillation loss: KL divergence from the start model over the known classes."""
        heat = DISTILLATION_TEMPERATURE
        answers = (logits[:, self._known] / heat).log_softmax(dim=1)
        divergence = kl_div(answers, self._answers[batch], reduction="none").sum(dim=1)
        return heat * heat * (divergence * self._trusted[batch]).mean()


class Lesson:
    """Crops with labels and the start model's outputs. Created by ``Trainee.lesson``."""

    def __init__(
        self,
        trainee: Trainee,
        inputs: Tensor,
        labels: Tensor,
        distillation_weight: float,
        teaching: _Teaching | None,
    ) -> None:
        self._trainee, self.inputs, self._labels = trainee, inputs, labels
        self._distillation_weight, self._teaching = distillation_weight, teaching

    def backward(self, batch: Tensor) -> Tensor:
        """Computes the gradient of the mean loss over (B,) positions into the trainee's weights.

        Returns:
            The loss, on the device.
        """
        logits = self._trainee.logits(self.inputs[batch])
        loss = cross_entropy(logits, self._labels[batch])
        if self._teaching is not None:
            loss = loss + self._distillation_weight * self._teaching.distance(logits, batch)
        self._trainee.suffix.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        return loss.detach()

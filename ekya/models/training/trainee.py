"""Model in training, cut at the freeze boundary, and its lessons."""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ekya.core.configs import RetrainConfig
from ekya.models.edge.model import EdgeModel, adapt, clone, known_outputs, on_cpu, split_at, to_input
from ekya.models.edge.predictor import FORWARD_BATCH
from ekya.models.training.goals import Goal, Teaching, goal_of
from ekya.models.training.labelled import Examples
from ekya.models.training.trimmed_kernels import restore_kernels, trim_kernels

DISTILLATION_WEIGHT = 0.5
"""Weight of the distillation loss relative to the loss on labels."""


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
        side: of all images that it will see, in pixels, if that is known: kernels are then trained only where
            they lie on the maps of a classifier.

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
        side: int | None = None,
    ) -> None:
        self.device, self.scope = device, scope
        self._keeps, self._precision = keep_activations, precision
        self._start, self._classes, self._blocks = start, classes, config.trainable_blocks
        frozen, _ = split_at(start, self._blocks)
        self._model = adapt(start, classes, config.head_width, seed, on_cpu(frozen)).to(device)
        # On images of hundreds of pixels convolutions train two to three times as fast in this layout.
        self._channels_last = start.detector is not None
        if self._channels_last:
            self._model = self._model.to(memory_format=torch.channels_last)
        self._prefix, self.suffix = split_at(self._model, self._blocks)
        # Frozen blocks keep their statistics also where trained blocks take those of their batches.
        self._prefix.requires_grad_(False).eval()
        # Only now, since ``to`` may replace tensors, and ``model`` finds these by ``id``.
        self._frozen = on_cpu(self._prefix)
        if side is not None and start.detector is None:
            # Whole kernels are those of the start model, which is kept anyway: they take most of the memory.
            for whole in trim_kernels(self.suffix, start, self._blocks, side):
                self._frozen |= on_cpu(whole)
        # A start model may be one that ``model`` returned, whose weights ask for no gradient.
        self.suffix.requires_grad_(True)

    def model(self) -> EdgeModel:
        """Returns the current model, on the CPU, ready to predict.

        Trained weights are copied. Frozen weights never change and are shared by all returned models: copying
        them would take several times as long as an epoch of a head.
        """
        model = clone(self._model, self._frozen)
        restore_kernels(model)
        return model.requires_grad_(False).to("cpu").eval()

    @property
    def has_the_start_head(self) -> bool:
        """True if the model answered as the start model does before it was trained."""
        start = self._start
        return start.detector is not None or (
            start.classes == self._classes and start.head_width == self._model.head_width
        )

    def answers_of_start(self, inputs: Tensor) -> Tensor:
        """Returns the start model's outputs for the classes of the trained one; -inf for new classes."""
        answers = self._answers(inputs)
        known, places = known_outputs(self._start.classes, self._classes)
        outputs = answers.new_full((len(answers), len(self._classes)), -torch.inf)
        outputs[:, places] = answers[:, known]
        return outputs.float()

    def inputs_of(self, images: NDArray[np.uint8]) -> Tensor:
        """Converts (N, S, S, 3) uint8 images to inputs of ``outputs``, (N, …) on the device."""
        inputs = to_input(images, self.device, self._channels_last)
        return self.in_batches(self._prefix, inputs) if self._keeps else inputs

    def outputs(self, inputs: Tensor) -> Tensor:
        """Returns the outputs, in 32 bits, for what ``inputs_of`` returned."""
        with self._in_precision():
            outputs: Tensor = self.suffix(inputs if self._keeps else self._prefix(inputs))
        return outputs.float()

    @torch.no_grad()
    def answers(self, inputs: Tensor) -> Tensor:
        """Returns the outputs to predict with, for what ``inputs_of`` returned."""
        # By running statistics, which these passes must not change; ``run_epoch`` sets the mode again.
        self.suffix.eval()
        return self.in_batches(self.outputs, inputs)

    @torch.no_grad()
    def in_batches(self, module: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
        """Passes (N, …) inputs through a module, ``FORWARD_BATCH`` at a time."""
        parts = []
        for part in torch.split(inputs, FORWARD_BATCH):
            with self.scope(), self._in_precision():
                parts.append(module(part))
        return torch.cat(parts)

    def goal(self, examples: Examples) -> Goal:
        """Returns the goal of training on labelled images; classes of crops index the trained model's."""
        return goal_of(examples, self._classes, self._model.detector, self.device)

    def lesson(self, inputs: Tensor, goal: Goal, distillation_weight: float) -> "Lesson":
        """Returns a lesson on images, as ``inputs_of`` returns them; weight 0 disables distillation."""
        teaching = (
            goal.teaching(self._start.classes, self._answers(inputs)) if distillation_weight > 0 else None
        )
        return Lesson(self, inputs, goal, distillation_weight, teaching)

    def _in_precision(self) -> AbstractContextManager[object]:
        mixed = self._precision is not torch.float32
        return torch.autocast(torch.device(self.device).type, self._precision) if mixed else nullcontext()

    def _answers(self, inputs: Tensor) -> Tensor:
        """Returns the start model's outputs."""
        frozen, suffix = split_at(self._start, self._blocks)
        whole = suffix if self._keeps else nn.Sequential(frozen, suffix)
        # Copied, since ``to`` would move the start model itself.
        teacher = copy.deepcopy(whole).to(self.device).eval()
        return self.in_batches(teacher, inputs)


class Lesson:
    """Images with a goal, and the start model's answers on them. Created by ``Trainee.lesson``."""

    def __init__(
        self,
        trainee: Trainee,
        inputs: Tensor,
        goal: Goal,
        distillation_weight: float,
        teaching: Teaching | None,
    ) -> None:
        self._trainee, self.inputs, self._goal = trainee, inputs, goal
        self._distillation_weight, self._teaching = distillation_weight, teaching

    def compute_gradient(self, batch: Tensor) -> Tensor:
        """Computes the gradient of the mean loss over (B,) positions into the trainee's weights.

        Returns:
            The loss, on the device.
        """
        outputs = self._trainee.outputs(self.inputs[batch])
        loss = self._goal.loss(outputs, batch)
        if self._teaching is not None:
            loss = loss + self._distillation_weight * self._teaching.distance(outputs, batch)
        # To None and not to zeros: the backward pass then stores gradients instead of adding to them.
        self._trainee.suffix.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        # Losses are kept for an epoch, and must not hold their graphs.
        return loss.detach()

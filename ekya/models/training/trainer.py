"""One retraining as a sequence of epochs (paper §2.2, §3.1; after iCaRL, [82])."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ekya.core.configs import RetrainConfig, crops_in_epoch
from ekya.core.objects import SURE
from ekya.models.edge.model import EdgeModel
from ekya.models.training.answered import Answered
from ekya.models.training.augmentation import copies_of, versions_of
from ekya.models.training.epochs import epoch_batches
from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.labelled import E, Examples, concatenate
from ekya.models.training.optimizer import Recipe, optimizer_of, recipe_of
from ekya.models.training.snapshot import Snapshot, restore_weights, take_snapshot
from ekya.models.training.trainee import DISTILLATION_WEIGHT, Trainee
from ekya.system.numeric_check import computes_right


@dataclass(frozen=True, slots=True)
class EpochResult:
    """Result of one epoch.

    Attributes:
        epoch: 1 for the first.
        validation_accuracy: in [0, 1], after the epoch.
        training_loss: mean over the epoch's batches.
    """

    epoch: int
    validation_accuracy: float
    training_loss: float


@dataclass(frozen=True, slots=True, eq=False)
class RetrainingData:
    """Data that a retraining learns from.

    Attributes:
        training: crops, whose labels index ``classes``, or frames to train on.
        validation: likewise, to measure accuracy on; no track of ``training``.
        classes: outputs of the retrained model.
        pooled: older ones or those of other streams, to train on as well; they have no part in what accuracy
            means. No track of ``training`` or ``validation``.
        memory: exemplars to mix in, or None.
        seed: of the head, the choice of tracks and the order of crops.
    """

    training: Examples
    validation: Examples
    classes: tuple[str, ...]
    memory: ExemplarMemory | None = None
    seed: int = 0
    pooled: Examples | None = None


@dataclass(frozen=True, slots=True)
class Compute:
    """Device, precision and time slices of a training.

    Attributes:
        device: torch device, for example ``cuda``.
        scope: context entered around every batch; a share backend waits here for its time slice.
        precision: type that trained and frozen blocks compute in; weights, gradients and losses stay in 32
            bits. See ``training_precision``.
    """

    device: str = "cpu"
    scope: Callable[[], AbstractContextManager[None]] = nullcontext
    precision: torch.dtype = torch.float32


def training_precision(
    device: str, scope: Callable[[], AbstractContextManager[None]] = nullcontext
) -> torch.dtype:
    """Returns the type for retrainings: bfloat16 on a GPU that supports it and computes right, else float32.

    A CPU's cores have no unit for bfloat16 and stay with 32 bits.

    Args:
        device: torch device.
        scope: context of the job's share.
    """
    if torch.device(device).type != "cuda" or not torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.float32
    with scope():
        return _precision_of(device)


@lru_cache
def _precision_of(device: str) -> torch.dtype:
    return torch.bfloat16 if computes_right(device, torch.bfloat16) else torch.float32


@dataclass(frozen=True, slots=True)
class TrainingMethod:
    """Method of training a model. The defaults are those of a run.

    Attributes:
        recipe: learning rates and other settings of the optimiser; None for those of a run.
        distillation_weight: 0 disables distillation.
        keep_activations: pass each crop through the frozen blocks once and keep the activations, so that an
            epoch costs the trainable blocks only. Otherwise the images are kept and passed in every epoch:
            much slower, but possible for crops whose activations do not fit into memory.
        trim_kernels: train kernels only where they lie on the maps (``training/trimmed_kernels.py``), which
            gives the same model except for rounding; what lies beside is then not decayed either.
    """

    recipe: Recipe | None = None
    distillation_weight: float = DISTILLATION_WEIGHT
    keep_activations: bool = True
    trim_kernels: bool = True


_ON_CPU, _AS_IN_A_RUN = Compute(), TrainingMethod()
_NONE = np.zeros(0, np.int64)


class Retraining:
    """Retrains a model with γ, epoch by epoch; between two epochs it holds no hidden state.

    Args:
        start: the model to start from and to distil from; it is not changed.
        config: γ.
        data: to learn from.
        compute: where it computes.
        method: how it trains.
    """

    def __init__(
        self,
        start: EdgeModel,
        config: RetrainConfig,
        data: RetrainingData,
        compute: Compute = _ON_CPU,
        method: TrainingMethod = _AS_IN_A_RUN,
    ) -> None:
        if len(data.training) == 0:
            raise ValueError("a retraining needs at least one training crop")
        self.config = config
        self.epochs_done = 0
        self._compute, self._method, self._seed = compute, method, data.seed
        self._start, self._classes = start, data.classes
        learnt = [data.training] if data.pooled is None else [data.training, data.pooled]
        self._fresh = concatenate([fraction_of_tracks(of, config.data_fraction, data.seed) for of in learnt])
        self._versions = versions_of(data.training)
        self._replay = usable_exemplars(data.memory, data.validation)
        self._validation = data.validation
        self._threshold = SURE
        self._weights = data.validation.mix_weights(data.training)

    @property
    def architecture(self) -> str:
        """Architecture of the start model and the retrained one."""
        return self._start.architecture

    @property
    def side(self) -> int:
        """Side of the crops in pixels."""
        return self._fresh.side

    @property
    def fresh_crops(self) -> int:
        """Number of training crops in γ's data fraction, without exemplars."""
        return len(self._fresh)

    @property
    def prepared_crops(self) -> int:
        """Crops that ``prepare_training`` passes through the model: in all versions, and to validate."""
        return self._versions * len(self._fresh) + len(self._replay) + self.validation_crops

    @cached_property
    def _trained_on(self) -> Examples:
        """The fresh examples in all their versions, then the exemplars."""
        copies = copies_of(self._fresh) if self._versions > 1 else self._fresh.select_rows(_NONE)
        return concatenate([self._fresh, copies, self._replay])

    @property
    def epoch_crops(self) -> int:
        """Number of crops in an epoch, exemplars included."""
        return crops_in_epoch(len(self._fresh), len(self._replay))

    @property
    def validation_crops(self) -> int:
        """Number of crops on which accuracies are measured after each epoch."""
        return len(self._validation)

    @property
    def done(self) -> bool:
        """True if every epoch of γ has run."""
        return self.epochs_done >= self.config.epochs

    def _build_trainee(self) -> None:
        self._trainee = Trainee(
            self._start,
            self.config,
            self._classes,
            self._seed,
            device=self._compute.device,
            scope=self._compute.scope,
            keep_activations=self._method.keep_activations,
            precision=self._compute.precision,
            side=self.side if self._method.trim_kernels else None,
        )
        self._recipe = self._method.recipe or recipe_of(self._start.architecture)
        self._optimizer = optimizer_of(self._trainee.suffix, self._recipe)

    def prepare_training(self) -> float:
        """Build the model, compute what is constant over all epochs, and measure the starting accuracy.

        Returns:
            Validation accuracy before the first epoch; 0.0 without validation crops.
        """
        self._build_trainee()
        everything = self._trained_on
        inputs = self._trainee.inputs_of(everything.images)
        self._validation_inputs = self._trainee.inputs_of(self._validation.images)
        goal = self._trainee.goal(everything)
        self._lesson = self._trainee.lesson(inputs, goal, self._method.distillation_weight)
        self._validation_goal = self._trainee.goal(self._validation)
        return self._evaluate()

    def answered_before(self) -> Answered:
        """Returns what the start model answers on the validation part, after ``prepare_training``.

        Only where the head is another one must the crops pass the start model's last blocks for this.
        """
        if self._trainee.has_the_start_head:
            return self.answered()
        outputs = self._trainee.answers_of_start(self._validation_inputs)
        return self._validation_goal.answered(outputs, self._threshold)

    def answered(self) -> Answered:
        """Returns what the model answered on the validation part when it was measured last."""
        return self._validation_goal.answered(self._answers, self._threshold)

    def run_epoch(self) -> EpochResult:
        """Train on every fresh crop and some exemplars once, then validate."""
        self._optimizer.set_rates(self.config.batch_size, self.epochs_done)
        self._trainee.suffix.train(self._recipe.batch_statistics)
        losses = [self._step(batch) for batch in self._batches()]
        self.epochs_done += 1
        accuracy = self._evaluate()
        # Read after the last step: reading a number from a device waits for it.
        means = torch.stack(losses).cpu().numpy().astype(np.float64)
        return EpochResult(self.epochs_done, accuracy, float(np.mean(means)))

    def model(self) -> EdgeModel:
        """Returns the current model, as ``Trainee.model`` does, calibrated on the validation part."""
        model = self._trainee.model()
        model.threshold = self._threshold
        return model

    def take_snapshot(self) -> bytes:
        """Returns the state after the last epoch, from which an equal retraining continues, bit for bit."""
        return take_snapshot(self._trainee, self._optimizer, self.epochs_done, self._threshold).to_bytes()

    def restore_snapshot(self, snapshot: bytes) -> float:
        """Continues after a snapshot's last epoch, after ``prepare_training``; returns its accuracy.

        Raises:
            UserError: it is damaged, or of another retraining.
        """
        self._restore(snapshot)
        return self._evaluate()

    def model_of_snapshot(self, snapshot: bytes) -> EdgeModel:
        """Returns the model of a snapshot; nothing needs to be prepared. Raises as ``restore_snapshot``."""
        self._build_trainee()
        self._restore(snapshot)
        return self.model()

    def _restore(self, snapshot: bytes) -> None:
        kept = Snapshot.from_bytes(snapshot)
        restore_weights(kept, self._trainee)
        self._optimizer.set_momentum(kept.momentum)
        self.epochs_done, self._threshold = kept.epochs_done, kept.threshold

    def _batches(self) -> Iterator[Tensor]:
        batches = epoch_batches(
            len(self._fresh),
            len(self._replay),
            self.config.batch_size,
            (self._seed,),
            self.epochs_done,
            self._versions,
        )
        # The positions of all batches go to the device in one copy.
        together = torch.from_numpy(np.concatenate(batches)).to(self._compute.device)
        yield from torch.split(together, [len(batch) for batch in batches])

    def _step(self, batch: Tensor) -> Tensor:
        with self._compute.scope():
            loss = self._lesson.compute_gradient(batch)
            self._optimizer.take_step()
            return loss

    def _evaluate(self) -> float:
        """Calibrates the threshold, and returns the accuracy with it."""
        if len(self._validation) == 0:
            return 0.0
        goal, self._answers = self._validation_goal, self._trainee.answers(self._validation_inputs)
        self._threshold = goal.threshold(self._answers)
        return goal.judge_outputs(self._answers, self._threshold).accuracy(self._weights)


def fraction_of_tracks(labelled: E, fraction: float, seed: int) -> E:
    """Returns the examples of a random fraction of the tracks, at least one track, in their order."""
    taken = places_of_tracks(labelled.tracks, fraction, seed)
    return labelled if len(taken) == len(labelled) else labelled.select_rows(taken)


def places_of_tracks(tracks: NDArray[np.int64], fraction: float, seed: int) -> NDArray[np.int64]:
    """Returns the positions that ``fraction_of_tracks`` takes of crops with these (N,) tracks."""
    different = np.unique(tracks)
    count = max(1, round(fraction * len(different)))
    if count >= len(different):
        return np.arange(len(tracks))
    taken = np.random.default_rng((seed, len(different))).permutation(different)[:count]
    return np.flatnonzero(np.isin(tracks, taken))


def usable_exemplars(memory: ExemplarMemory | None, validation: Examples) -> Examples:
    """Returns the exemplars of objects outside the validation part; a long-lived object may be in both."""
    exemplars = memory.exemplars() if memory is not None else None
    if exemplars is None:
        return validation.select_rows(np.zeros(0, np.int64))
    return exemplars.select_rows(np.flatnonzero(~np.isin(exemplars.tracks, validation.tracks)))

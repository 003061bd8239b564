"""Parameters of generated traces: families of γ, streams, cameras, costs, and speeds of a retraining."""

from dataclasses import dataclass
from itertools import product
from typing import Literal

from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.profile import Family
from ekya.core.speed import LINEAR, SpeedCurve

Range = tuple[float, float]
"""Bounds of a uniform distribution, drawn once per stream."""

TRIAL_EPOCHS, TRIAL_PART = 5, 0.1
"""Epochs of a trial and their part of the labels, as in the paper (§4.3, §6.4)."""

V100_EPOCH_S = (15.19, 10.73, 8.42, 7.35, 6.56, 6.37, 6.32, 5.61, 5.58, 5.46)
"""Seconds of an epoch at 10, 20, … 100% of a V100, measured by the public implementation."""

MEASURED_SPEED = SpeedCurve(
    (
        (0, 0.0),
        *((100 * tenth, V100_EPOCH_S[-1] / epoch_s) for tenth, epoch_s in enumerate(V100_EPOCH_S, start=1)),
    )
)
"""Speed curve of these times: a tenth of the GPU runs at 36%."""

SpeedName = Literal["linear", "measured"]

SPEEDS: dict[SpeedName, SpeedCurve] = {"linear": LINEAR, "measured": MEASURED_SPEED}
"""Speed of a retraining at a share: linear, or as on a V100."""


@dataclass(frozen=True, slots=True)
class FamilyShape:
    """Parameters of one family of γ.

    Attributes:
        trainable_blocks, head_width, batch_size: the family.
        cost: GPU-seconds of an epoch relative to the other families.
        ceiling: part of a window's best accuracy that it can reach.
        passes: κ; that many passes over all data give about two thirds of its gain.
    """

    trainable_blocks: int
    head_width: int
    batch_size: int
    cost: float
    ceiling: Range
    passes: Range

    @property
    def family(self) -> Family:
        """The family."""
        return Family(self.trainable_blocks, self.head_width, self.batch_size)


@dataclass(frozen=True, slots=True)
class GeneratorParameters:
    """Parameters of generated traces.

    Attributes:
        window_s: length of a window.
        epochs, data_fractions, families: Γ is every combination.
        dearest_gpu_s: GPU-seconds of the most expensive γ.
        best_accuracy: upper bound of the accuracy of all γ in a window.
        base_accuracy: of the base model on the mean class mix.
        least_accuracy: lower bound of a model's accuracy.
        classes: number of classes.
        drift: standard deviation of the change per window of the numbers behind the class mix.
        still_part: part of the streams without drift.
        sensitivity: accuracy lost between two mixes that have nothing in common.
        wear: accuracy lost with each window since a model was trained.
        training_noise: standard deviation of a training's final accuracy.
        validation_noise: standard deviation of an accuracy on the validation part.
        every, resolutions: Λ is every combination.
        frame_rate_loss: m.
        half_resolution: part of the accuracy that is kept at half the resolution.
        share_needed: GPUs that inference needs to analyse every frame at full resolution.
        crops: labelled per window, a fifth of them for validation.
        labelling_gpu_s, inference_profiling_gpu_s: cost in each window.
        trial_part: cost of micro-profiling a family, as a part of one of its epochs over all data.
        objects: independent objects that the labels show, on which a trial is measured: about a hundred in
            windows of 200 s.
    """

    window_s: float = 200.0
    epochs: tuple[int, ...] = (5, 15, 30)
    data_fractions: tuple[float, ...] = (0.2, 0.5, 1.0)
    families: tuple[FamilyShape, ...] = (
        FamilyShape(0, 64, 16, 1.0, (0.8, 0.95), (0.3, 1.2)),
        FamilyShape(2, 64, 16, 7.0, (1.0, 1.0), (2.0, 6.0)),
    )
    dearest_gpu_s: Range = (60.0, 200.0)
    best_accuracy: Range = (0.75, 0.95)
    base_accuracy: Range = (0.5, 0.75)
    least_accuracy: float = 0.2
    classes: int = 6
    drift: Range = (0.3, 1.2)
    still_part: float = 0.2
    sensitivity: float = 0.9
    wear: float = 0.01
    training_noise: float = 0.01
    validation_noise: float = 0.0
    every: tuple[int, ...] = (1, 2, 5, 10)
    resolutions: tuple[int, ...] = (112, 224)
    frame_rate_loss: Range = (0.15, 0.5)
    half_resolution: Range = (0.8, 0.97)
    share_needed: Range = (0.15, 0.45)
    crops: int = 500
    labelling_gpu_s: float = 0.5
    inference_profiling_gpu_s: float = 0.1
    trial_part: float = 0.5
    objects: int = 100

    def retrain_configs(self) -> tuple[RetrainConfig, ...]:
        """Returns Γ, sorted."""
        return tuple(
            sorted(
                RetrainConfig(epochs, of.batch_size, of.head_width, of.trainable_blocks, fraction)
                for epochs, fraction, of in product(self.epochs, self.data_fractions, self.families)
            )
        )

    def inference_configs(self) -> tuple[InferenceConfig, ...]:
        """Returns Λ, sorted."""
        return tuple(sorted(InferenceConfig(*values) for values in product(self.every, self.resolutions)))


DEFAULT_PARAMETERS = GeneratorParameters()

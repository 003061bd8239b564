"""Steps that a recording shares with a run, and the trainings that γ which differ only in epochs share."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.profile import Family, family_of
from ekya.core.trace import Origin, Predicted, Trial
from ekya.core.units import StreamId
from ekya.core.view import InferenceOption
from ekya.models.edge.model import EdgeModel
from ekya.models.golden.golden_model import Labels
from ekya.models.training.activation_cache import ActivationCache
from ekya.pipeline.costs import CostCard
from ekya.pipeline.inference import Classifier
from ekya.pipeline.labels import StreamLabels
from ekya.pipeline.preparation import StreamPreparation, counted_curve
from ekya.pipeline.settings import PreparationSettings
from ekya.planning.profiling.estimate import options as estimated_options
from ekya.simulation.emulated.preparing import (
    LabelledStream,
    golden_gpu_s,
    label_stream,
    profile_inference,
)
from ekya.simulation.emulated.seen import SeenWindow


@dataclass(frozen=True, slots=True)
class Course:
    """One training that covers every γ of a family and data fraction: the longest of them.

    Attributes:
        config: the longest γ.
        ends: epochs at which a γ ends.
    """

    config: RetrainConfig
    ends: frozenset[int]

    @property
    def family(self) -> Family:
        """Family of all its γ."""
        return family_of(self.config)


def courses_of(configs: Sequence[RetrainConfig]) -> tuple[Course, ...]:
    """Returns the trainings that cover Γ, the most expensive last."""
    groups: dict[tuple[Family, float], list[RetrainConfig]] = {}
    for config in configs:
        groups.setdefault((family_of(config), config.data_fraction), []).append(config)
    return tuple(
        Course(max(group), frozenset(config.epochs for config in group))
        for _, group in sorted(groups.items())
    )


@dataclass(frozen=True, slots=True, eq=False)
class Common:
    """Inputs of a recording that all streams share.

    Attributes:
        retrain_configs, inference_configs: Γ without ∅, and Λ.
        base: the model that every stream starts from.
        golden: labels samples.
        card: costs of all work.
        window_us: length of a window.
        every_start: train from every model that may serve, not only from the newest of each family.
        told: callback after each training, with its name.
    """

    retrain_configs: tuple[RetrainConfig, ...]
    inference_configs: tuple[InferenceConfig, ...]
    base: EdgeModel
    golden: Labels
    card: CostCard
    window_us: int
    every_start: bool
    told: Callable[[str], None]

    @property
    def courses(self) -> tuple[Course, ...]:
        """Trainings that Γ takes."""
        return courses_of(self.retrain_configs)

    @property
    def blocks_left(self) -> int:
        """Number of blocks that some γ trains; the others stay those of the base model."""
        return max(config.trainable_blocks for config in self.retrain_configs)

    @property
    def families(self) -> tuple[Family, ...]:
        """Families of Γ, sorted."""
        return tuple(sorted({family_of(config) for config in self.retrain_configs}))

    def trainings(self, windows: int) -> int:
        """Returns the maximum number of trainings of one stream."""
        of_each = len(self.families)
        if self.every_start:
            return len(self.courses) * sum(1 + of_each * (window - 1) for window in range(1, windows))
        return len(self.courses) * (1 + (of_each + 1) * (windows - 2))


@dataclass(frozen=True, slots=True, eq=False)
class RecordedSteps:
    """Preparation of one stream's windows.

    Attributes:
        stream: its id.
        settings: of the stream.
        windows: all of its windows.
        proposer_operations: counted operations of proposing objects in one frame.
        common: inputs shared by all streams.
    """

    stream: StreamId
    settings: PreparationSettings
    windows: Sequence[SeenWindow]
    proposer_operations: int
    common: Common

    def label(self, window: int) -> LabelledStream:
        """Makes the labels at the window's opening; the choice of objects depends on no model."""
        return label_stream(self._preparation(window, self.common.base), self.common.card)

    def inference(self, window: int, model: EdgeModel) -> tuple[tuple[InferenceOption, ...], float]:
        """Returns Λ profiled with the serving model, and the GPU-seconds of profiling."""
        prepared, configs = self._preparation(window, model), self.common.inference_configs
        options, gpu_s, _ = profile_inference(prepared, configs, self.common.card, self.proposer_operations)
        return options, gpu_s

    def trials(
        self,
        window: int,
        model: EdgeModel,
        origin: Origin,
        exemplars: int,
        labels: StreamLabels,
        passed: ActivationCache,
    ) -> Iterator[Trial]:
        """Yields the micro-profile of every family for one model, with the prediction for each γ.

        Args:
            window: its index.
            model: the model to retrain.
            origin: of the model.
            exemplars: size of its stream's exemplar memory.
            labels: of the window.
            passed: cache of the frozen blocks' outputs for the crops of the trials.
        """
        preparation = replace(self._preparation(window, model), exemplars=exemplars, passed=passed)
        tried = []
        for rank, family in enumerate(self.common.families):
            trial = preparation.trial(family, labels, clock=float, first=rank == 0)
            tried.append(counted_curve(trial, self.common.card))
        promised = estimated_options(
            [curve for curve, _ in tried],
            self.common.retrain_configs,
            len(labels.training.crops),
            validation_crops=len(labels.validation.crops),
            profiler=self.settings.profiler,
        )
        for curve, gpu_s in tried:
            said = tuple(
                Predicted(option.config, option.accuracy_after, option.gpu_s, option.accuracy_sd or None)
                for option in promised
                if family_of(option.config) == curve.family
            )
            yield Trial(curve.family, gpu_s, curve, said, origin)

    def _preparation(self, window: int, model: EdgeModel) -> StreamPreparation:
        return StreamPreparation(
            self.settings,
            self.windows[window - 1].material,
            Classifier(model, self.settings.classes),
            self.common.golden,
            golden_gpu_s=partial(golden_gpu_s, self.common.golden, self.common.card),
            crop_gpu_s=self.common.card.forward_gpu_s(1, self.settings.side),
        )

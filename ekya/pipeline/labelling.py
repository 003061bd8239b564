"""Inputs, interface and budget of labelling, the same for crops and for whole frames."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ekya.core.configs import InferenceConfig
from ekya.core.weights import Compared
from ekya.models.golden.detections import Question
from ekya.models.golden.golden_model import Labels
from ekya.models.training.labelled import Examples
from ekya.pipeline.collector import CollectedFrame, WindowMaterial
from ekya.pipeline.device_scopes import DeviceScopes
from ekya.pipeline.inference import Serving
from ekya.pipeline.labels import StreamLabels
from ekya.pipeline.settings import PreparationSettings
from ekya.planning.profiling.inference_profile import BurstFrame

_LOG = logging.getLogger(__name__)

SAMPLE_PART = 0.75
"""Part of a label budget for the window's sample; the rest is for the burst on which λ are measured."""


@dataclass(frozen=True, slots=True, eq=False)
class LabellingInputs:
    """Of what labels are made: the window's material, and the models that see it.

    Attributes:
        golden_gpu_s: expected GPU-seconds of the golden model for some questions; used only with a budget.
    """

    settings: PreparationSettings
    material: WindowMaterial
    serving: Serving
    golden: Labels
    golden_gpu_s: Callable[[Sequence[Question]], float] = field(default=lambda _: 0.0)


class Asked(Protocol):
    """Interface of what a golden model is asked about."""

    @property
    def questions(self) -> list[Question]:
        """Returns the questions to the golden model."""


class Labelling(Protocol):
    """Interface of the steps that differ between crops and whole frames."""

    def select(self, given: LabellingInputs) -> Any:
        """Returns what to ask, an ``Asked``."""

    def label(self, given: LabellingInputs, asked: Any) -> StreamLabels:
        """Labels what ``select`` returned."""

    def burst_questions(self, given: LabellingInputs) -> list[Question]:
        """Returns the questions of ``burst`` to the golden model."""

    def burst(
        self, given: LabellingInputs, configs: Sequence[InferenceConfig], scopes: DeviceScopes
    ) -> list[BurstFrame]:
        """Labels consecutive frames, and analyses them at each resolution of Λ; empty without objects."""

    def to_compare(self, given: LabellingInputs, labels: StreamLabels) -> tuple[Examples, int] | None:
        """Returns labels on which models are compared, and their distinct objects; None if those are few."""

    def compared_images(self, labels: StreamLabels, compared: Compared) -> int:
        """Returns the number of images that each model analysed for a comparison on these labels."""

    def images_to_check_teacher(self, labels: StreamLabels) -> int:
        """Returns the number of images that ``check_teacher`` analyses; 0 if these labels can raise none."""

    def check_teacher(self, given: LabellingInputs, labels: StreamLabels) -> str | None:
        """Returns a warning if the golden model seems to be worse than the serving one."""


def affordable_count(budget_gpu_s: float | None, one_gpu_s: float, most: int) -> int:
    """Returns how many items at ``one_gpu_s`` each a budget covers, at most ``most``.

    Without a budget it is ``most``.
    """
    if budget_gpu_s is None or one_gpu_s <= 0.0:
        return most
    # A rounding error of the division must not cost an item where the budget is exact.
    return min(max(int(budget_gpu_s / one_gpu_s + 1e-9), 0), most)


def warn_if_none(given: LabellingInputs, affordable_questions: int, one_gpu_s: float) -> None:
    """Logs a warning if a budget allows no labels; one question takes ``one_gpu_s``."""
    if not affordable_questions:
        _LOG.warning(
            "window %d: golden.gpu_s_per_window allows no label, since one takes about %.2g GPU-seconds; "
            "allow a multiple of %.2g",
            given.material.window,
            one_gpu_s,
            one_gpu_s / SAMPLE_PART,
        )


def longest_run(frames: Sequence[CollectedFrame]) -> list[CollectedFrame]:
    """Returns the longest stretch of consecutive frames; a camera may have skipped some in between."""
    best: list[CollectedFrame] = []
    run: list[CollectedFrame] = []
    for frame in frames:
        if run and frame.frame != run[-1].frame + 1:
            run = []
        run.append(frame)
        if len(run) > len(best):
            best = list(run)
    return best

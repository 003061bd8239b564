"""Constant settings of a stream's workers; importing them does not need torch."""

from dataclasses import dataclass, replace

from ekya.core.profile import Profiler
from ekya.core.speed import LINEAR, SpeedCurve
from ekya.core.weights import LabelBudget
from ekya.models.edge.architecture_table import Task
from ekya.planning.adaptation.shadow_gate import ROLL_BACK_MARGIN


@dataclass(frozen=True, slots=True)
class PreparationSettings:
    """Settings that are the same for all preparations of a stream.

    Attributes:
        classes: the fleet's.
        side: of the stored crops, or of stored frames, in pixels.
        fps: of the camera.
        labels_per_window: upper bound on labelled crops, for a model that classifies.
        seed: of the stream.
        device: torch's name of the device of the models.
        profiler: method of profiling γ.
        label_gpu_s: GPU-seconds that the golden model may use in a window; None for no limit.
        inference_speed: of inference at a share.
        roll_back_margin: of the shadow gate.
        only_analysed: keep only frames that λ analyses for the golden model.
        task: of the edge model.
        frames_per_window: upper bound on labelled frames, for a model that detects.
        keeps_newest: keep the newest frames for the golden model too, for labels inside a window.
    """

    classes: tuple[str, ...]
    side: int
    fps: float
    labels_per_window: int
    seed: int
    device: str = "cpu"
    profiler: Profiler = Profiler.EKYA
    label_gpu_s: float | None = None
    inference_speed: SpeedCurve = LINEAR
    roll_back_margin: float = ROLL_BACK_MARGIN
    only_analysed: bool = False
    task: Task = Task.CLASSIFY
    frames_per_window: int = 24
    keeps_newest: bool = False

    def with_label_budget(self, budget: LabelBudget | None) -> "PreparationSettings":
        """Returns the settings with a changed budget of labels; unchanged without one."""
        if budget is None:
            return self
        if self.task is Task.DETECT:
            return replace(self, frames_per_window=budget.labels, label_gpu_s=budget.gpu_s)
        return replace(self, labels_per_window=budget.labels, label_gpu_s=budget.gpu_s)

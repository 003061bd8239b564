"""One camera and its inference on virtual time: at its frame rate, at its share, newest frame first."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekya.core.configs import InferenceConfig
from ekya.core.events import DriftDetected
from ekya.core.records import FramePrediction, FrameReference
from ekya.core.speed import LINEAR
from ekya.core.units import BASE_VERSION, US_PER_S, ModelVersion, StreamId
from ekya.core.weights import WHOLE, Dose
from ekya.models.edge.model import EdgeModel
from ekya.pipeline.collector import WindowMaterial
from ekya.pipeline.costs import CostCard
from ekya.pipeline.frame_admission import FrameWay, choose_way, is_due_in_order, needs_objects
from ekya.pipeline.inference import FrameSteps, Proposed, Serving, analyse
from ekya.streams.ingest.frame import Frame, Truth

_ANALYSE_AT_ONCE = 16
"""Number of frames that are analysed in one batch; the batching has no effect on virtual time."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """Frame to be analysed or followed next, with the operations of proposing its boxes."""

    frame: Frame
    boxes: NDArray[np.float32]
    proposer_operations: int
    way: FrameWay


class EmulatedStream:
    """Frames arrive, are analysed within the share, and all get an answer.

    Args:
        frames: the camera.
        steps: of the analysis, but for the model.
        card: costs of the analysis.
        model: serves first.
        prepare: prepares weights to serve.
        golden_gpu_s: cost of a frame that the golden detector analyses.

    Attributes:
        serving: the serving model.
        arrived: number of frames so far.
    """

    def __init__(
        self,
        frames: Iterator[tuple[Frame, Truth | None]],
        steps: FrameSteps,
        card: CostCard,
        model: EdgeModel,
        prepare: Callable[[EdgeModel], Serving],
        golden_gpu_s: float = 0.0,
    ) -> None:
        self._frames = frames
        self._next = next(frames, None)
        self._steps = steps
        self._prepare = prepare
        self._base, self._version = model, BASE_VERSION
        self.serving = prepare(model)
        self._card, self._golden_gpu_s = card, golden_gpu_s
        self._config = InferenceConfig(1, 0)
        self._share_milli = 0
        self._busy_until_us = -1
        self._waiting: _Waiting | None = None
        self._to_analyse: list[Proposed] = []
        self._rows: dict[int, FramePrediction] = {}
        self._references: list[FrameReference] = []
        self._used_gpu_s = 0.0
        self.arrived = 0

    @property
    def ended(self) -> bool:
        """True after the camera's last frame."""
        return self._next is None

    def advance(self, now_us: int) -> None:
        """Processes everything before ``now_us``: arriving frames, and analyses that begin or end."""
        # A frame of now_us is left: what is set at that time holds for it.
        while self._next is not None and self._next[0].t_us < now_us:
            frame, truth = self._next
            self._next = next(self._frames, None)
            self._work_until(frame.t_us)
            self._arrive(frame, truth)
        self._work_until(now_us)

    def configure(self, config: InferenceConfig, share_milli: int, now_us: int) -> None:
        """Sets λ and share from ``now_us`` on; the frame in analysis keeps the old ones."""
        self.advance(now_us)
        if config != self._config:
            # The frames so far belong to the λ before.
            self._analyse()
        # A frame that has waited without a share begins now, and not when it arrived.
        if self._share_milli == 0:
            self._busy_until_us = max(self._busy_until_us, now_us)
        self._config, self._share_milli = config, share_milli

    def swap(self, model: EdgeModel, version: ModelVersion, now_us: int) -> None:
        """Makes a hot swap of the weights, from the next frame on."""
        self.advance(now_us)
        self._analyse()
        self.serving, self._version = self._prepare(model), version

    def drift(self, stream: StreamId, now_us: int) -> DriftDetected | None:
        """Returns what was noticed since the last call in frames whose analysis has begun."""
        self._analyse()
        return self._steps.take_drift(stream, now_us)

    def used_gpu_s(self) -> float:
        """Returns the GPU-seconds spent since the last call."""
        used, self._used_gpu_s = self._used_gpu_s, 0.0
        return used

    def material(
        self, window: int, now_us: int, since_us: int | None = None, dose: Dose = WHOLE
    ) -> WindowMaterial:
        """Returns the material of which a window's labels are made at ``now_us``."""
        self.advance(now_us)
        return self._steps.collector.material(window, since_us, dose)

    def forget_material(self) -> None:
        """Drops the material of the last closed window."""
        self._steps.collector.forget_material()

    def base_answers(self, config: InferenceConfig) -> list[FramePrediction]:
        """Returns the base model's predictions on a part of the sampled frames."""
        return self._steps.base_answers(self._prepare(self._base), config)

    def take_rows(self) -> tuple[list[FramePrediction], list[FrameReference]]:
        """Returns and drops predictions and references of the frames so far, in order."""
        if self._waiting is not None:
            self._pass_over(self._waiting.frame)
            self._waiting = None
        self._analyse()
        rows = [self._rows[frame] for frame in sorted(self._rows)]
        references, self._rows, self._references = self._references, {}, []
        return rows, references

    def _arrive(self, frame: Frame, truth: Truth | None) -> None:
        self.arrived += 1
        if truth is not None:
            self._references.append(truth.to_reference(frame.index, frame.t_us))
        due = is_due_in_order(frame.index, self._config.every)
        if not needs_objects(self._steps, frame.t_us, due):
            self._pass_over(frame)
            return
        proposals = self._steps.propose(frame)
        proposer_operations = 0
        if not self._steps.proposes_free:
            operations = proposals.count_operations()
            if self._waiting is not None and due:
                # If the detector skips frames, it would have run on this frame instead.
                operations = max(operations, self._waiting.proposer_operations)
            if self._steps.collector.wants(frame.t_us):
                self._used_gpu_s += self._card.proposing_gpu_s(operations)
            else:
                # Proposed now, so that tracking sees the frames in order; charged with the analysis, so
                # that a skipped frame costs nothing.
                proposer_operations = operations
        self._steps.collect(frame, proposals)
        due_frame_waits = self._waiting is not None and self._waiting.way is FrameWay.ANALYSE
        way = choose_way(self._config, due, due_frame_waits)
        if way is FrameWay.PASS_OVER:
            self._pass_over(frame)
            return
        if self._waiting is not None:
            self._pass_over(self._waiting.frame)
        self._waiting = _Waiting(frame, proposals.boxes, proposer_operations, way)
        self._work_until(frame.t_us)

    def _work_until(self, t_us: int) -> None:
        """Ends analyses up to ``t_us`` and begins the next ones."""
        while self._busy_until_us <= t_us:
            if self._waiting is None or self._share_milli == 0:
                return
            waiting, self._waiting = self._waiting, None
            if waiting.way is FrameWay.ANALYSE:
                self._begin(waiting)
            else:
                self._follow(waiting.frame)

    def _begin(self, waiting: _Waiting) -> None:
        frame, boxes = waiting.frame, waiting.boxes
        if self._config.by_golden:
            self._analyse()  # of an earlier λ, whose boxes are older
            self._rows[frame.index] = self._steps.ask_golden(frame, self._config, self._version)
            self._occupy(frame, self._golden_gpu_s)
            return
        ready = self._steps.cut(frame, boxes, self._config.resolution)
        self._to_analyse.append(ready)
        if len(self._to_analyse) >= _ANALYSE_AT_ONCE:
            self._analyse()
        gpu_s = self._card.frame_gpu_s(
            len(ready.images), self._config.resolution, waiting.proposer_operations
        )
        self._occupy(frame, gpu_s)
        self._steps.answered(frame.index)

    def _follow(self, frame: Frame) -> None:
        self._analyse()  # boxes are followed from the last analysed frame
        followed = self._steps.follow(frame, self._config, self._version)
        if followed is None:
            self._pass_over(frame)
            return
        self._rows[frame.index], operations = followed
        self._occupy(frame, self._card.proposing_gpu_s(operations))

    def _occupy(self, frame: Frame, gpu_s: float) -> None:
        """Charges the work on a frame, which begins when it is there and the share is free."""
        self._used_gpu_s += gpu_s
        begun_us = max(frame.t_us, self._busy_until_us)
        self._busy_until_us = begun_us + round(gpu_s / LINEAR.speed_at(self._share_milli) * US_PER_S)

    def _pass_over(self, frame: Frame) -> None:
        self._rows[frame.index] = self._steps.skip(frame.index, frame.t_us, self._config, self._version)

    def _analyse(self) -> None:
        if self._to_analyse:
            answer = analyse(self.serving, self._to_analyse, self._config.resolution)
            for row in self._steps.prediction_rows(self._to_analyse, self._config, self._version, answer):
                self._rows[row.frame] = row
            self._to_analyse = []

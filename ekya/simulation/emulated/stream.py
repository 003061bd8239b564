"""One camera and its inference on virtual time: at its frame rate, newest frame first."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekya.core.configs import InferenceConfig
from ekya.core.events import DriftDetected
from ekya.core.records import FramePrediction, FrameReference
from ekya.core.units import BASE_VERSION, ModelVersion, StreamId
from ekya.models.edge.model import EdgeModel
from ekya.pipeline.collector import WindowMaterial
from ekya.pipeline.costs import CostCard
from ekya.pipeline.frame_admission import FrameWay, choose_way, is_due_in_order, needs_objects
from ekya.pipeline.inference import FrameSteps, Proposed, Serving, analyse
from ekya.simulation.emulated.frame_queues import FrameQueue, FrameWork, queue_of_core
from ekya.streams.ingest.frame import Frame, Truth

_ANALYSE_AT_ONCE = 16
"""Number of frames that are analysed in one batch; the batching has no effect on virtual time."""


@dataclass(frozen=True, slots=True, eq=False)
class WaitingFrame:
    """Frame to be analysed or followed next, with the operations of proposing its boxes."""

    frame: Frame
    boxes: NDArray[np.float32]
    proposer_operations: int
    way: FrameWay

    @property
    def t_us(self) -> int:
        return self.frame.t_us


class EmulatedStream:
    """Frames arrive, are analysed when their queue says so, and all get an answer.

    The queue is a core's, unless ``use_queue`` sets another before the first frame arrives.

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
        late_gpu: number of frames that waited for the GPU when a newer one came.
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
        self._waiting: WaitingFrame | None = None
        self._taken: list[WaitingFrame] = []
        self._to_analyse: list[Proposed] = []
        self._rows: dict[int, FramePrediction] = {}
        self._references: list[FrameReference] = []
        self._used_gpu_s = 0.0
        self.arrived = self.late_gpu = 0
        self.use_queue(queue_of_core())

    @property
    def ended(self) -> bool:
        """True after the camera's last frame."""
        return self._next is None

    @property
    def next_us(self) -> int | None:
        """When the next frame arrives; None after the last."""
        return None if self._next is None else self._next[0].t_us

    @property
    def has_waiting(self) -> bool:
        """Whether a frame waits to be analysed, and the stream has a share."""
        return self._waiting is not None and self._share_milli > 0

    @property
    def share_milli(self) -> int:
        """The share for inference."""
        return self._share_milli

    @property
    def every(self) -> int:
        """How many frames λ takes one of."""
        return self._config.every

    def use_queue(self, queue: FrameQueue[WaitingFrame]) -> None:
        """Sets the queue that says when frames are analysed."""
        self._queue = queue
        queue.add_stream(self)

    def advance(self, now_us: int) -> None:
        """Processes everything before ``now_us``: arriving frames, and analyses that begin or end."""
        self._queue.advance(now_us)

    def configure(self, config: InferenceConfig, share_milli: int, now_us: int) -> None:
        """Sets λ and share from ``now_us`` on; the frame in analysis keeps the old ones."""
        self.advance(now_us)
        if config != self._config:
            # The frames so far belong to the λ before.
            self._analyse()
        if self._share_milli == 0:
            self._queue.resume_stream(now_us)
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

    def material(self, window: int, now_us: int, since_us: int | None = None) -> WindowMaterial:
        """Returns the material of which a window's labels are made at ``now_us``."""
        self.advance(now_us)
        return self._steps.collector.material(window, since_us)

    def forget_material(self) -> None:
        """Drops the material of the last closed window."""
        self._steps.collector.forget_material()

    def base_answers(self, config: InferenceConfig) -> list[FramePrediction]:
        """Returns the base model's predictions on a part of the sampled frames."""
        return self._steps.base_answers(self._prepare(self._base), config)

    def take_rows(self) -> tuple[list[FramePrediction], list[FrameReference]]:
        """Returns and drops predictions and references of the frames so far, in order."""
        for waiting in (*self._taken, *([] if self._waiting is None else [self._waiting])):
            self._pass_over(waiting.frame)
        self._taken, self._waiting = [], None
        self._analyse()
        rows = [self._rows[frame] for frame in sorted(self._rows)]
        references, self._rows, self._references = self._references, {}, []
        return rows, references

    def admit_next_frame(self) -> None:
        """Lets the next frame arrive; it takes the place of the one that waits."""
        if self._next is None:
            return
        frame, truth = self._next
        self._next = next(self._frames, None)
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
        self._waiting = WaitingFrame(frame, proposals.boxes, proposer_operations, way)

    def take_waiting(self) -> WaitingFrame:
        """Takes the frame that waits.

        Raises:
            LookupError: none does.
        """
        if self._waiting is None:
            raise LookupError("no frame waits")
        waiting, self._waiting = self._waiting, None
        self._taken.append(waiting)
        return waiting

    def give_up(self, waiting: WaitingFrame) -> None:
        """Passes a frame over for which the GPU had no time."""
        self._taken.remove(waiting)
        self.late_gpu += int(waiting.way is FrameWay.ANALYSE)
        self._pass_over(waiting.frame)

    def begin_analysis(self, waiting: WaitingFrame) -> FrameWork:
        """Analyses a frame, or follows boxes into it; returns what that costs."""
        self._taken.remove(waiting)
        work = self._analysing(waiting) if waiting.way is FrameWay.ANALYSE else self._following(waiting)
        self._used_gpu_s += work.gpu_s
        return work

    def _analysing(self, waiting: WaitingFrame) -> FrameWork:
        frame, boxes = waiting.frame, waiting.boxes
        if self._config.by_golden:
            self._analyse()  # of an earlier λ, whose boxes are older
            self._rows[frame.index] = self._steps.ask_golden(frame, self._config, self._version)
            return FrameWork(self._golden_gpu_s, 1)
        ready = self._steps.cut(frame, boxes, self._config.resolution)
        self._to_analyse.append(ready)
        if len(self._to_analyse) >= _ANALYSE_AT_ONCE:
            self._analyse()
        gpu_s = self._card.frame_gpu_s(
            len(ready.images), self._config.resolution, waiting.proposer_operations
        )
        self._steps.answered(frame.index)
        return FrameWork(gpu_s, len(ready.images))

    def _following(self, waiting: WaitingFrame) -> FrameWork:
        self._analyse()  # boxes are followed from the last analysed frame
        followed = self._steps.follow(waiting.frame, self._config, self._version)
        if followed is None:
            self._pass_over(waiting.frame)
            return FrameWork(0.0, 0)
        self._rows[waiting.frame.index], operations = followed
        return FrameWork(self._card.proposing_gpu_s(operations), 1)

    def _pass_over(self, frame: Frame) -> None:
        self._rows[frame.index] = self._steps.skip(frame.index, frame.t_us, self._config, self._version)

    def _analyse(self) -> None:
        if self._to_analyse:
            answer = analyse(self.serving, self._to_analyse, self._config.resolution)
            for row in self._steps.prediction_rows(self._to_analyse, self._config, self._version, answer):
                self._rows[row.frame] = row
            self._to_analyse = []

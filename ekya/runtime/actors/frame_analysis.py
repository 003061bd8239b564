"""Analysis of single frames of a stream, by its own or the golden model, beside other streams."""

from collections.abc import Callable
from dataclasses import dataclass, field

from ekya.core.configs import GOLDEN_RESOLUTION, InferenceConfig
from ekya.core.host import StreamCosts
from ekya.core.records import FramePrediction
from ekya.core.units import ModelVersion, StreamId
from ekya.gpu.backends.backend import ShareHandle
from ekya.models.golden.detections import Proposals
from ekya.pipeline.frame_admission import FrameWay, choose_way, is_due_after, needs_objects
from ekya.pipeline.frame_costs import FrameCosts
from ekya.pipeline.golden_inference import GoldenInference
from ekya.pipeline.inference import FrameSteps
from ekya.runtime.actors.mailbox import Mailbox
from ekya.runtime.shares.job_share import SharedUse, VersionedShare
from ekya.runtime.weights.model_batcher import ModelBatcher
from ekya.streams.ingest.frame import Frame


@dataclass(frozen=True, slots=True, eq=False)
class InferenceProcess:
    """Parts that the streams of a process share.

    Attributes:
        handle: scope of GPU work that a stream does alone.
        share: of which each stream has a part.
        use: GPU use of each stream.
        models: their models.
        mailbox: their events.
        golden: analyses their frames where λ is of it.
    """

    handle: ShareHandle
    share: VersionedShare
    use: SharedUse
    models: ModelBatcher
    mailbox: Mailbox
    golden: GoldenInference


@dataclass(slots=True, eq=False)
class FrameAnalysis:
    """Analyses frames of one stream, one after the other, and counts their use of the GPU.

    Attributes:
        stream: its id.
        steps: of its frames.
        process: in which it runs.
        part: its key in the process's share and use.
        costs: of its frames.
        found: counts frames in which objects were found.
        stopped: returns whether frames are not analysed any more.
        version: of the model that serves.
    """

    stream: StreamId
    steps: FrameSteps
    process: InferenceProcess
    part: object
    costs: StreamCosts
    found: FrameCosts
    stopped: Callable[[], bool]
    version: ModelVersion
    _last_analysed: int = field(default=-1, init=False)

    def analyse_frame(self, frame: Frame, config: InferenceConfig) -> FramePrediction | None:
        """Finds and names the objects of a frame; None if λ skips it and no boxes are followed into it."""
        due = is_due_after(self._last_analysed, frame.index, config.every)
        proposals = self._propose(frame, due)
        if proposals is None:
            return None
        self.steps.collect(frame, proposals)
        way = FrameWay.PASS_OVER if self.stopped() else choose_way(config, due)
        if way is not FrameWay.ANALYSE:
            if not self.steps.proposes_free:
                self.found.count_found()
            return self._follow(frame, config) if way is FrameWay.FOLLOW else None
        self._last_analysed = frame.index
        if config.by_golden:
            return self._ask_golden(frame, config)
        # Outside the share's scope: crops are cut on the CPU, and the GPU should not wait for them.
        ready = self.steps.cut(frame, proposals.boxes, config.resolution)
        answer, version = self.process.models.answer_images(self.stream, ready.images, config.resolution)
        self.process.use.count_pictures(self.part, len(ready.images))
        (row,) = self.steps.answers([ready], config, version, answer)
        self.steps.answered(frame.index)
        return row

    def _ask_golden(self, frame: Frame, config: InferenceConfig) -> FramePrediction:
        row = self.steps.ask_golden(frame, config, self.version)
        self._count_use(self.costs.frame_gpu_s[GOLDEN_RESOLUTION])
        return row

    def _follow(self, frame: Frame, config: InferenceConfig) -> FramePrediction | None:
        """Follows boxes into a frame that λ skips; None if there are none to follow."""
        with self.process.handle.scope():
            followed = self.steps.follow(frame, config, self.version)
        if followed is None:
            return None
        self._count_use(self.costs.following_gpu_s[config.resolution])
        return followed[0]

    def _count_use(self, gpu_s: float) -> None:
        """Counts work beside the edge model: the process's use is divided by pictures of that model."""
        self.process.use.count_pictures(self.part, gpu_s / self.costs.object_gpu_s)

    def _propose(self, frame: Frame, due: bool) -> Proposals | None:
        """Proposes the objects of a frame that is analysed or collected."""
        if not needs_objects(self.steps, frame.t_us, due):
            return None
        if self.steps.proposes_free:
            return self.steps.propose(frame)
        with self.process.handle.scope():
            proposals = self.steps.propose(frame)
        self.process.use.count_pictures(self.part, 1)
        return proposals

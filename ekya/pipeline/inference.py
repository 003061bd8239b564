"""Steps of a frame's way that all worlds share: its images, the model that serves, and the frame's answer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from ekya.core.areas import WHOLE_PICTURE, Areas
from ekya.core.configs import InferenceConfig
from ekya.core.events import DriftDetected
from ekya.core.host import TYPICAL_OBJECTS
from ekya.core.records import NOT_ANSWERED, FramePrediction
from ekya.core.units import BASE_VERSION, ModelVersion, StreamId
from ekya.models.edge.architecture_table import Task
from ekya.models.edge.detection.predictor import DetectorPredictor
from ekya.models.edge.detection.read_objects import BoxCandidates, Found, fleet_outputs, found_in
from ekya.models.edge.model import EdgeModel
from ekya.models.edge.multi_model import ClassAnswer, Predictors
from ekya.models.edge.predictor import Predictor
from ekya.models.golden.detections import Proposals
from ekya.models.proposer import Proposer
from ekya.models.training.frames import LabelledFrames
from ekya.models.training.goals import Judged, judged_frames
from ekya.models.training.labelled import Examples
from ekya.pipeline.collector import WindowCollector
from ekya.pipeline.golden_inference import GoldenInference
from ekya.planning.adaptation.drift import Drift, DriftMonitor, SeenFrame
from ekya.streams.ingest.crops import crop_objects, describe_picture, square_frame
from ekya.streams.ingest.frame import Frame
from ekya.streams.ingest.motion import BoxFlow

SHADOW_EVERY = 2
"""Of every this many sampled frames, one is used to measure the base model at the end."""

MOST_SHADOW = 240
"""Frames at most for that, of ten windows. In a longer run they are thinned evenly, over the whole run."""


@dataclass(frozen=True, slots=True, eq=False)
class Proposed:
    """A frame that is ready for the model.

    Attributes:
        frame: index in the stream.
        t_us: stream time.
        boxes: (N, 4) float32 of the objects to classify, in pixels; none for a detector.
        images: (N, S, S, 3) uint8 RGB, their crops; for a detector (1, S, S, 3), the whole frame.
        size: width and height of the frame in pixels.
        described: as ``describe_picture`` describes it, if drift is to be noticed.
        areas: where its objects count.
    """

    frame: int
    t_us: int
    boxes: NDArray[np.float32]
    images: NDArray[np.uint8]
    size: tuple[int, int]
    described: NDArray[np.float32] | None = None
    areas: Areas = WHOLE_PICTURE


FleetAnswer = ClassAnswer | list[Found]
"""Answer in the fleet's classes: of all crops together, or the objects of each frame."""


class Serving(Protocol):
    """Interface of a model ready to serve; its answers index the fleet's classes."""

    model: EdgeModel
    predictor: Any

    def predict(self, images: NDArray[np.uint8], resolution: int) -> Any:
        """Returns the ``FleetAnswer`` to (N, S, S, 3) uint8 RGB, resized to this side."""

    def in_fleet(self, answer: Any) -> FleetAnswer:
        """Maps a predictor's answer to classes of the fleet."""

    def warm_up(self, side: int, resolutions: Sequence[int]) -> None:
        """Runs the first forward passes at each resolution, which are slow."""


def serving(model: EdgeModel, classes: tuple[str, ...], predictors: Predictors | None = None) -> Serving:
    """Returns a model ready to serve a fleet of these classes."""
    if model.detector is None:
        return Classifier(model, classes, predictors)
    return ServingDetector(model, classes, predictors)


class Classifier:
    """``Serving`` of a classifier, whose own classes may be in any order."""

    def __init__(
        self, model: EdgeModel, classes: tuple[str, ...], predictors: Predictors | None = None
    ) -> None:
        self.model = model
        self.predictor = cast(Predictor, (predictors or Predictors()).predictor_for(model))
        self._to_fleet = np.array([classes.index(name) for name in model.classes], np.int64)

    def predict(self, images: NDArray[np.uint8], resolution: int) -> ClassAnswer:
        """Classifies (N, S, S, 3) uint8 RGB; returns classes (N,) of the fleet and confidences (N,)."""
        return self.in_fleet(self.predictor.predict(images, resolution))

    def in_fleet(self, answer: ClassAnswer) -> ClassAnswer:
        classes, confidence = answer
        return self._to_fleet[classes], confidence

    def warm_up(self, side: int, resolutions: Sequence[int]) -> None:
        crops = np.zeros((round(TYPICAL_OBJECTS), side, side, 3), np.uint8)
        for resolution in resolutions:
            self.predict(crops, resolution)


class ServingDetector:
    """``Serving`` of a detector, which may know other classes too."""

    def __init__(
        self, model: EdgeModel, classes: tuple[str, ...], predictors: Predictors | None = None
    ) -> None:
        self.model = model
        self.predictor = cast(DetectorPredictor, (predictors or Predictors()).predictor_for(model))
        self._to_fleet = fleet_outputs(model.classes, classes)

    def predict(self, images: NDArray[np.uint8], resolution: int) -> list[Found]:
        """Returns the objects of the fleet's classes in each of (N, S, S, 3) uint8 RGB."""
        return self.in_fleet(self.predictor.predict(images, resolution))

    def in_fleet(self, answer: BoxCandidates) -> list[Found]:
        """Returns the objects among a predictor's candidates."""
        return found_in(answer, self._to_fleet, self.model.threshold)

    def warm_up(self, side: int, resolutions: Sequence[int]) -> None:
        for resolution in resolutions:
            self.predict(np.zeros((1, resolution, resolution, 3), np.uint8), resolution)


def judged_by(model: Serving, examples: Examples) -> Judged:
    """Returns how right a model is on labelled images, at their own size."""
    return judged(model.predict(examples.images, examples.side), examples)


def judged(answer: Any, examples: Examples) -> Judged:
    """Returns how right the ``FleetAnswer`` to labelled images is."""
    match examples:
        case LabelledFrames():
            return judged_frames(answer, examples.objects)
        case _:
            right = answer[0] == examples.labels()
            return Judged(right.astype(np.float64), np.ones(len(right)))


class FrameSteps:
    """Steps of a stream's frames before and after the model. Its owner decides when, and calls the model.

    Args:
        proposer: finds objects.
        collector: keeps some frames for the golden model.
        task: of the model.
        golden: golden detector, for frames under a λ of it; None where no such λ is offered.
        monitor: sees the analysed frames, to notice drift; None where drift is not noticed.
        measures_base: whether the base model is measured at the end.

    Attributes:
        propose: finds the objects of a frame.
        proposes_free: whether that costs nothing.
        proposes_on: where its network runs.
        collector: the collector.
    """

    def __init__(
        self,
        proposer: Proposer,
        collector: WindowCollector,
        task: Task = Task.CLASSIFY,
        golden: GoldenInference | None = None,
        monitor: DriftMonitor | None = None,
        measures_base: bool = True,
    ) -> None:
        self.propose = proposer.propose_boxes
        self.proposes_free = proposer.free
        self.proposes_on = proposer.runs_on
        self.collector = collector
        self._golden = golden
        self._detects = task is Task.DETECT
        self._flow = BoxFlow()
        # The last frame that the golden detector analysed: from the one boxes are not followed yet, from the
        # other they are.
        self._newest: tuple[NDArray[np.uint8], FramePrediction] | None = None
        self._followed: FramePrediction | None = None
        self._answered_by = NOT_ANSWERED
        self._sampled = 0
        self._shadow_every = SHADOW_EVERY
        self._shadow: list[Proposed] = []
        self._monitor, self._measures_base = monitor, measures_base
        self._drift: Drift | None = None

    def collect(self, frame: Frame, proposals: Proposals) -> None:
        """Shows the collector every frame whose objects were found, in order."""
        kept = self.collector.collect_frame(frame, proposals)
        if kept is not None and self._measures_base:
            self._sampled += 1
            if self._sampled % self._shadow_every == 0:
                images = square_frame(kept.picture, self.collector.side) if self._detects else kept.crops
                of = kept.frame, kept.t_us, kept.boxes, images, kept.size
                self._shadow.append(Proposed(*of, areas=kept.areas))
            if len(self._shadow) >= MOST_SHADOW:
                self._shadow = self._shadow[1::2]
                self._shadow_every *= 2

    def cut(self, frame: Frame, boxes: NDArray[np.float32], resolution: int) -> Proposed:
        """Cuts the crops of a frame's objects, or resizes the frame to λ's resolution for a detector."""
        if self._detects:
            images = square_frame(frame.image, resolution)
        else:
            images = crop_objects(frame.image, boxes, self.collector.side)
        described = None if self._monitor is None else describe_picture(frame.image)
        return Proposed(frame.index, frame.t_us, boxes, images, frame.size, described, frame.areas)

    def answered(self, frame: int) -> None:
        """Sets the frame with boxes of its own that answers later frames without."""
        self._answered_by = max(frame, self._answered_by)

    def prediction_rows(
        self, frames: Sequence[Proposed], config: InferenceConfig, version: ModelVersion, answer: FleetAnswer
    ) -> list[FramePrediction]:
        """Returns the rows of analysed frames; ``answer`` is the model's to all their images."""
        rows = self._rows(frames, config, version, answer)
        for frame, row in zip(frames, rows, strict=True):
            if frame.described is not None:
                self._notice(row, frame.described)
        # Boxes of the golden detector are older now.
        self._newest = self._followed = None
        return rows

    def take_drift(self, stream: StreamId, now_us: int) -> DriftDetected | None:
        """Returns the newest drift that was noticed since the last call, as an event of this stream."""
        drift, self._drift = self._drift, None
        if drift is None:
            return None
        window = drift.t_us // self.collector.window_us
        return DriftDetected(now_us, stream, window, drift.since_us, drift.reason)

    def _notice(self, row: FramePrediction, described: NDArray[np.float32]) -> None:
        if self._monitor is not None:
            seen = SeenFrame(
                row.t_us, row.model_version, row.resolution, row.confidence, row.classes, described
            )
            self._drift = self._monitor.observe_frame(seen) or self._drift

    def _rows(
        self, frames: Sequence[Proposed], config: InferenceConfig, version: ModelVersion, answer: FleetAnswer
    ) -> list[FramePrediction]:
        return [
            replace(
                self.skip(frame.frame, frame.t_us, config, version),
                analysed=True,
                answered_by=frame.frame,
                boxes=boxes,
                classes=classes.astype(np.int16),
                confidence=confidence,
            )
            for frame, (boxes, classes, confidence) in zip(frames, _by_frame(frames, answer), strict=True)
        ]

    def ask_golden(self, frame: Frame, config: InferenceConfig, version: ModelVersion) -> FramePrediction:
        """Returns the row of a frame that the golden detector analyses."""
        assert self._golden is not None, "λ of the golden detector are offered"
        found = self._golden.find_objects(frame.image).in_areas(frame.areas, frame.size)
        self.collector.keep_answer(frame, found)
        row = replace(
            self.skip(frame.index, frame.t_us, config, version),
            analysed=True,
            answered_by=frame.index,
            boxes=found.boxes,
            classes=found.classes.astype(np.int16),
            confidence=np.ones(len(found.classes), np.float32),
        )
        self.answered(frame.index)
        self._newest = frame.image, row
        if self._monitor is not None:
            self._notice(row, describe_picture(frame.image))
        return row

    def follow(
        self, frame: Frame, config: InferenceConfig, version: ModelVersion
    ) -> tuple[FramePrediction, int] | None:
        """Follows the golden detector's boxes in the last analysed frame into one that its λ skips.

        Returns:
            The frame's row, and the operations that it took; None where there is no frame to follow from, or
            the camera has changed the size of its pictures since: then ``skip`` answers.
        """
        if self._newest is not None:
            picture, self._followed = self._newest
            self._flow.start_boxes(picture, self._followed.boxes)
            self._newest = None
        followed = self._followed
        if followed is None or not self._flow.has_size_of(frame.image):
            return None
        operations = self._flow.count_operations(frame.image.shape, len(self._flow.rows))
        boxes, rows = self._flow.follow_boxes(frame.image), self._flow.rows
        counts = frame.find_counting(boxes)
        boxes, rows = boxes[counts], rows[counts]
        self.answered(frame.index)
        row = replace(
            self.skip(frame.index, frame.t_us, config, version),
            answered_by=frame.index,
            boxes=boxes,
            classes=followed.classes[rows],
            confidence=followed.confidence[rows],
        )
        return row, operations

    def skip(self, frame: int, t_us: int, config: InferenceConfig, version: ModelVersion) -> FramePrediction:
        """Returns the row of a frame without boxes of its own: the last frame with some answers it."""
        return FramePrediction(
            frame=frame,
            t_us=t_us,
            window=t_us // self.collector.window_us,
            analysed=False,
            answered_by=self._answered_by,
            model_version=version,
            every=config.every,
            resolution=config.resolution,
            boxes=np.zeros((0, 4), np.float32),
            classes=np.zeros(0, np.int16),
            confidence=np.zeros(0, np.float32),
        )

    def base_answers(self, base: Serving, config: InferenceConfig) -> list[FramePrediction]:
        """Returns the base model's rows of a part of the sampled frames.

        Not charged: it measures the run after its end, and no camera waits for it.
        """
        if not self._shadow:
            return []
        return self.prediction_rows(
            self._shadow, config, BASE_VERSION, analyse(base, self._shadow, config.resolution)
        )


def analyse(model: Serving, frames: Sequence[Proposed], resolution: int) -> FleetAnswer:
    """Passes the images of at least one frame through a model in one batch."""
    answer: FleetAnswer = model.predict(np.concatenate([frame.images for frame in frames]), resolution)
    return answer


def _by_frame(
    frames: Sequence[Proposed], answer: FleetAnswer
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32]]]:
    """Yields the boxes, classes and confidences of each frame, in pixels."""
    if isinstance(answer, list):
        for frame, everywhere in zip(frames, answer, strict=True):
            found = everywhere.in_areas(frame.areas)
            yield found.boxes * np.tile(np.array(frame.size, np.float32), 2), found.classes, found.confidence
        return
    classes, confidence = answer
    begin = 0
    for frame in frames:
        part = slice(begin, begin := begin + len(frame.boxes))
        yield frame.boxes, classes[part], confidence[part]

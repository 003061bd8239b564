"""Steps of a frame's way that all worlds share: crops of its objects, their classes, and its answer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ekya.core.configs import InferenceConfig
from ekya.core.host import TYPICAL_OBJECTS
from ekya.core.records import NOT_ANSWERED, FramePrediction
from ekya.core.units import BASE_VERSION, ModelVersion
from ekya.models.edge.detection.predictor import DetectorPredictor
from ekya.models.edge.detection.suppress import Candidates
from ekya.models.edge.model import EdgeModel
from ekya.models.edge.multi_model import Answer, ClassAnswer, Predictors
from ekya.models.golden.detections import Proposals
from ekya.models.proposer import Proposer
from ekya.pipeline.collector import WindowCollector
from ekya.streams.ingest.crops import crop_objects
from ekya.streams.ingest.frame import Frame

SHADOW_EVERY = 2
"""Of every this many sampled frames, one is used to measure the base model at the end."""


@dataclass(frozen=True, slots=True, eq=False)
class Proposed:
    """A frame and its objects, not yet classified.

    Attributes:
        frame: index in the stream.
        t_us: stream time.
        boxes: (N, 4) float32.
        crops: (N, S, S, 3) uint8 RGB.
    """

    frame: int
    t_us: int
    boxes: NDArray[np.float32]
    crops: NDArray[np.uint8]


class Classifier:
    """A model ready to serve; its answers index the fleet's classes, in any order of its own classes."""

    def __init__(
        self, model: EdgeModel, classes: tuple[str, ...], predictors: Predictors | None = None
    ) -> None:
        self.model = model
        predictor = (predictors or Predictors()).of(model)
        if isinstance(predictor, DetectorPredictor):
            raise TypeError(f"{model.architecture} classifies no crops")
        self.predictor = predictor
        self._to_fleet = np.array([classes.index(name) for name in model.classes], np.int64)

    def predict(self, crops: NDArray[np.uint8], resolution: int) -> ClassAnswer:
        """Classifies (N, S, S, 3) uint8 RGB; returns classes (N,) of the fleet and confidences (N,)."""
        return self.in_fleet(self.predictor.predict(crops, resolution))

    def in_fleet(self, answer: Answer) -> ClassAnswer:
        """Maps a predictor's answer to classes of the fleet."""
        if isinstance(answer, Candidates):
            raise TypeError("boxes of a detector are no classes of crops")
        classes, confidence = answer
        return self._to_fleet[classes], confidence

    def warm_up(self, side: int, resolutions: Sequence[int]) -> None:
        """Runs the first forward passes at each resolution, which are slow."""
        crops = np.zeros((round(TYPICAL_OBJECTS), side, side, 3), np.uint8)
        for resolution in resolutions:
            self.predict(crops, resolution)


class FrameSteps:
    """Steps of a stream's frames before and after the model. Its owner decides when, and calls the model.

    Args:
        proposer: finds objects.
        collector: keeps some frames for the golden model.

    Attributes:
        propose: finds the objects of a frame.
        collector: the collector.
    """

    def __init__(self, proposer: Proposer, collector: WindowCollector) -> None:
        self.propose = proposer.propose
        self.collector = collector
        self._answered_by = NOT_ANSWERED
        self._sampled = 0
        self._shadow: list[Proposed] = []

    def collect(self, frame: Frame, proposals: Proposals) -> None:
        """Shows the collector every frame whose objects were found, in order."""
        kept = self.collector.see(frame, proposals)
        if kept is not None:
            self._sampled += 1
            if self._sampled % SHADOW_EVERY == 0:
                self._shadow.append(Proposed(kept.frame, kept.t_us, kept.boxes, kept.crops))

    def cut(self, frame: Frame, boxes: NDArray[np.float32]) -> Proposed:
        """Cuts the crops of a frame's objects."""
        return Proposed(frame.index, frame.t_us, boxes, crop_objects(frame.image, boxes, self.collector.side))

    def answered(self, frame: int) -> None:
        """Sets the analysed frame that answers later skipped frames."""
        self._answered_by = max(frame, self._answered_by)

    def answers(
        self, frames: Sequence[Proposed], config: InferenceConfig, version: ModelVersion, answer: ClassAnswer
    ) -> list[FramePrediction]:
        """Returns the rows of analysed frames; ``answer`` is the model's to the crops of all in one batch."""
        classes, confidence = answer
        rows, begin = [], 0
        for frame in frames:
            part = slice(begin, begin := begin + len(frame.boxes))
            skipped = self.skip(frame.frame, frame.t_us, config, version)
            rows.append(
                replace(
                    skipped,
                    analysed=True,
                    answered_by=frame.frame,
                    boxes=frame.boxes,
                    classes=classes[part].astype(np.int16),
                    confidence=confidence[part],
                )
            )
        return rows

    def skip(self, frame: int, t_us: int, config: InferenceConfig, version: ModelVersion) -> FramePrediction:
        """Returns the row of a frame that is not analysed: the last analysed one answers it."""
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

    def base_answers(self, base: Classifier, config: InferenceConfig) -> list[FramePrediction]:
        """Returns the base model's rows of a part of the sampled frames.

        Not charged: it measures the run after its end, and no camera waits for it.
        """
        if not self._shadow:
            return []
        answer = classify(base, self._shadow, config.resolution)
        return self.answers(self._shadow, config, BASE_VERSION, answer)


def classify(classifier: Classifier, frames: Sequence[Proposed], resolution: int) -> ClassAnswer:
    """Classifies the crops of at least one frame in one batch."""
    return classifier.predict(np.concatenate([frame.crops for frame in frames]), resolution)

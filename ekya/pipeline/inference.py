"""Inference of a stream: objects of a frame, and the class that the serving model gives each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ekya.core.configs import InferenceConfig
from ekya.core.records import NOT_ANSWERED, FramePrediction
from ekya.core.units import BASE_VERSION, ModelVersion
from ekya.models.edge.model import EdgeModel
from ekya.models.edge.multi_model import Answer
from ekya.models.edge.predictors import Predictors
from ekya.models.golden.detections import Proposals
from ekya.pipeline.collector import CollectedFrame, WindowCollector, WindowMaterial
from ekya.streams.ingest.crops import crop_objects
from ekya.streams.ingest.frame import Frame


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


SHADOW_EVERY = 2
"""Of every this many sampled frames, one is used to measure the base model at the end."""


Ask = Callable[[NDArray[np.uint8], int], Answer]
"""Maps crops and a resolution to classes of the fleet and confidences, as ``Classifier.predict``."""


class Proposer(Protocol):
    """Finds the objects of a frame without naming them."""

    def propose(self, frame: Frame) -> Proposals:
        """Returns the objects of a frame."""


class InferenceWorker:
    """Classifies the objects of the frames that it is given. Its owner decides when and at which share.

    Args:
        classes: the fleet's; answers index them.
        model: serves first.
        proposer: finds objects.
        collector: keeps some frames for the golden model.
        side: of the crops, in pixels: the finest resolution of Λ.
        window_us: length of a window.
        predictors: makes the predictor of each serving model; None for plain ones on the CPU.
    """

    def __init__(
        self,
        classes: tuple[str, ...],
        model: EdgeModel,
        proposer: Proposer,
        collector: WindowCollector,
        side: int,
        window_us: int,
        predictors: Predictors | None = None,
    ) -> None:
        self._classes = classes
        self._predictors = predictors or Predictors()
        self._proposer = proposer
        self._collector = collector
        self._side = side
        self._window_us = window_us
        self._answered_by = NOT_ANSWERED
        self._shadow = BaseShadow()
        self._sampled = 0
        self._base = model
        self.swap(model, BASE_VERSION)

    def swap(self, model: EdgeModel, version: ModelVersion) -> None:
        """Serves these weights from the next frame on."""
        self.use(self.ready(model), version)

    def ready(self, model: EdgeModel) -> "Classifier":
        """Prepares weights for a hot swap, which is the slow part of it."""
        return Classifier(model, self._classes, self._predictors)

    def use(self, classifier: "Classifier", version: ModelVersion) -> None:
        """Serves prepared weights from the next frame on."""
        self.classifier = classifier
        self.version = version

    def propose(self, frame: Frame) -> Proposals:
        """Returns a frame's objects."""
        return self._proposer.propose(frame)

    def wants(self, t_us: int) -> bool:
        """Returns True if the frame at this stream time needs boxes even if it is not analysed."""
        return self._collector.wants(t_us)

    def see(self, frame: Frame, proposals: Proposals) -> None:
        """Receives every frame whose objects were found, in order."""
        kept = self._collector.see(frame, proposals)
        if kept is not None:
            self._sampled += 1
            if self._sampled % SHADOW_EVERY == 0:
                self._shadow.add(kept)

    def material(self, window: int) -> WindowMaterial:
        """Returns the frames that were kept of a past window."""
        return self._collector.close(window)

    def forget_material(self) -> None:
        """Drops the material of the last past window, which is no longer needed."""
        self._collector.forget()

    def base_answers(self, config: InferenceConfig) -> list[FramePrediction]:
        """Returns the base model's answers to the sampled frames for the record; they are not charged."""
        self.swap(self._base, BASE_VERSION)
        return self.classify(self._shadow.kept, config) if self._shadow.kept else []

    def cut(self, frame: Frame, boxes: NDArray[np.float32]) -> Proposed:
        """Cuts the crops of a frame's objects."""
        return Proposed(frame.index, frame.t_us, boxes, crop_objects(frame.image, boxes, self._side))

    def classify(
        self, frames: Sequence[Proposed], config: InferenceConfig, ask: Ask | None = None
    ) -> list[FramePrediction]:
        """Returns answers for frames, in one batch.

        Args:
            frames: at least one.
            config: λ.
            ask: calls the serving classifier, which may have been replaced meanwhile; None calls it directly.
        """
        crops = np.concatenate([frame.crops for frame in frames])
        classes, confidence = (ask or self.classifier.predict)(crops, config.resolution)
        ends = np.cumsum([len(frame.boxes) for frame in frames])
        answers = []
        for frame, end in zip(frames, ends, strict=True):
            part = slice(int(end) - len(frame.boxes), int(end))
            answers.append(
                self._row(frame.frame, frame.t_us, config, frame.boxes, classes[part], confidence[part])
            )
        return answers

    def answered(self, frame: int) -> None:
        """Sets the analysed frame that answers later skipped frames."""
        self._answered_by = max(frame, self._answered_by)

    def skip(self, frame: int, t_us: int, config: InferenceConfig) -> FramePrediction:
        """Returns the answer for a frame that is not analysed: that of the last analysed one."""
        return FramePrediction(
            frame=frame,
            t_us=t_us,
            window=t_us // self._window_us,
            analysed=False,
            answered_by=self._answered_by,
            model_version=self.version,
            every=config.every,
            resolution=config.resolution,
            boxes=np.zeros((0, 4), np.float32),
            classes=np.zeros(0, np.int16),
            confidence=np.zeros(0, np.float32),
        )

    def _row(
        self,
        frame: int,
        t_us: int,
        config: InferenceConfig,
        boxes: NDArray[np.float32],
        classes: NDArray[np.int64],
        confidence: NDArray[np.float32],
    ) -> FramePrediction:
        return FramePrediction(
            frame=frame,
            t_us=t_us,
            window=t_us // self._window_us,
            analysed=True,
            answered_by=frame,
            model_version=self.version,
            every=config.every,
            resolution=config.resolution,
            boxes=boxes,
            classes=classes.astype(np.int16),
            confidence=confidence,
        )


class Classifier:
    """A model ready to serve; its answers index the fleet's classes, in any order of its own classes."""

    def __init__(
        self, model: EdgeModel, classes: tuple[str, ...], predictors: Predictors | None = None
    ) -> None:
        self.model = model
        self.predictor = (predictors or Predictors()).of(model)
        self._to_fleet = np.array([classes.index(name) for name in model.classes], np.int64)

    def predict(self, crops: NDArray[np.uint8], resolution: int) -> Answer:
        """Classifies (N, S, S, 3) uint8 RGB; returns classes (N,) of the fleet and confidences (N,)."""
        return self.in_fleet(self.predictor.predict(crops, resolution))

    def in_fleet(self, answer: Answer) -> Answer:
        """Maps a predictor's answer to classes of the fleet."""
        classes, confidence = answer
        return self._to_fleet[classes], confidence

    def look(self, crops: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Returns confidences (N,) and features (N, F) of (N, S, S, 3) uint8 RGB."""
        return self.predictor.look(crops)


@dataclass(eq=False)
class BaseShadow:
    """Keeps the objects of sampled frames, which the base model classifies when the run is over.

    Its cost is not charged: it measures the run, and no camera waits for it.

    Attributes:
        kept: by frame, in order.
    """

    kept: list[Proposed] = field(default_factory=list)

    def add(self, frame: CollectedFrame) -> None:
        """Adds a sampled frame."""
        self.kept.append(Proposed(frame.frame, frame.t_us, frame.boxes, frame.crops))

"""What a stream leaves in the run folder: every frame's answer, its labels and its models."""

from collections.abc import Iterable
from dataclasses import replace

from ekya.core.configs import RetrainConfig
from ekya.core.ids import ModelVersion, StreamId
from ekya.core.records import FramePrediction, FrameReference, LabelledBoxes
from ekya.files import write_bytes_atomic
from ekya.runfolder import RunFolder
from ekya.runstate import LabelPart, ModelRow, StateStore
from ekya.runtables import PredictionAppender, ReferenceAppender, merge_predictions, merge_reference
from ekya.workers.labels import LabelledPart, StreamLabels


class FrameRecord:
    """The answers and, where a source knows it, the truth of a stream's frames."""

    def __init__(self, folder: RunFolder, stream: StreamId) -> None:
        self._predictions = PredictionAppender(folder.predictions(stream))
        self._reference = ReferenceAppender(folder.reference(stream))
        self._shadow = PredictionAppender(folder.without_retraining(stream))

    def add(self, answers: Iterable[FramePrediction], truths: Iterable[FrameReference]) -> None:
        """Rows in rising order of frames; they reach the disk window by window."""
        for answer in answers:
            self._predictions.add(answer)
        for truth in truths:
            self._reference.add(truth)

    def add_shadow(self, answers: Iterable[FramePrediction]) -> None:
        """What the base model says of the sampled frames, when the run is over."""
        for answer in answers:
            self._shadow.add(answer)
        self._shadow.flush()

    def flush(self) -> None:
        """Everything to the disk."""
        self._predictions.flush()
        self._reference.flush()


class ModelRecord:
    """The labels that a stream's models were made from, and the models."""

    def __init__(self, folder: RunFolder, store: StateStore, stream: StreamId) -> None:
        self._folder = folder
        self._store = store
        self._stream = stream

    def add_labels(self, labels: StreamLabels) -> None:
        """Where the labels of a window were taken, and what they are used for."""
        self._add_part(labels.window, "training", labels.training)
        self._add_part(labels.window, "validation", labels.validation)

    def add_model(
        self,
        version: ModelVersion,
        weights: bytes,
        window: int,
        config: RetrainConfig | None,
        validation_accuracy: float | None,
        served_from_us: int,
    ) -> None:
        """A model that serves from now on, with its weights as the bytes of a file."""
        write_bytes_atomic(self._folder.model(self._stream, version), weights)
        self.note_model(version, window, config, validation_accuracy, served_from_us)

    def note_model(
        self,
        version: ModelVersion,
        window: int,
        config: RetrainConfig | None,
        validation_accuracy: float | None,
        served_from_us: int,
    ) -> None:
        """A model that serves from now on, whose file is written by somebody else."""
        self._store.put_model(
            ModelRow(
                stream=self._stream,
                version=version,
                window=window,
                path=self._folder.relative(self._folder.model(self._stream, version)),
                gamma=config,
                validation_accuracy=validation_accuracy,
                served_from_us=served_from_us,
            )
        )

    def serve_again(self, version: ModelVersion, of: ModelVersion, served_from_us: int) -> None:
        """Weights that served as ``of`` serve as ``version`` from now on; they are in the folder already."""
        for row in self._store.models(self._stream):
            if row.version == of:
                self._store.put_model(replace(row, version=version, served_from_us=served_from_us))

    def _add_part(self, window: int, part: LabelPart, labelled: LabelledPart) -> None:
        boxes = LabelledBoxes(labelled.frames, labelled.boxes)
        self._store.add_labels(self._stream, window, part, boxes, labelled.crops.classes)


def merge_frames(folder: RunFolder, streams: Iterable[StreamId]) -> None:
    """One file of answers and one of truths for each stream, from the parts written on the way."""
    for stream in streams:
        merge_predictions(folder.predictions(stream))
        merge_predictions(folder.without_retraining(stream))
        merge_reference(folder.reference(stream))

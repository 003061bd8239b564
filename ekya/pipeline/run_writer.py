"""Records of a stream in the run folder: answers to frames, labels and models."""

from collections.abc import Iterable
from dataclasses import replace

from ekya.core.configs import RetrainConfig
from ekya.core.records import FramePrediction, FrameReference
from ekya.core.units import ModelVersion, StreamId
from ekya.pipeline.labels import LabelledPart, StreamLabels
from ekya.results.storage.hour_tables import HourWriter
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_state import LabelPart, ModelRow, StateStore
from ekya.results.storage.run_tables import (
    PREDICTIONS,
    REFERENCE,
    merge_parts,
    prediction_writer,
    read_predictions,
    reference_writer,
)
from ekya.system.files import write_bytes_atomic


class FrameRecord:
    """Writes the answers to a stream's frames and, if the source has it, their ground truth."""

    def __init__(self, folder: RunFolder, stream: StreamId) -> None:
        self._path = folder.predictions(stream)
        self._predictions = prediction_writer(self._path)
        self._reference = reference_writer(folder.reference(stream))
        self._shadow = prediction_writer(folder.without_retraining(stream))

    def next_frame(self) -> int:
        """Returns the number after the last recorded frame's; 0 without one."""
        frames = read_predictions(self._path).frame
        return int(frames[-1]) + 1 if len(frames) else 0

    def add(self, answers: Iterable[FramePrediction], truths: Iterable[FrameReference]) -> None:
        """Adds rows in rising order of frames; they are written to disk window by window."""
        for answer in answers:
            self._predictions.add_row(answer)
        for truth in truths:
            self._reference.add_row(truth)

    def add_shadow(self, answers: Iterable[FramePrediction]) -> None:
        """Writes the base model's answers to the sampled frames, when the run is over."""
        for answer in answers:
            self._shadow.add_row(answer)
        self._shadow.flush()

    def flush(self) -> None:
        """Writes everything to disk."""
        self._predictions.flush()
        self._reference.flush()


class HourRecord:
    """Writes the answers to a stream's frames by the hour, for a service, which scores nothing."""

    def __init__(self, folder: RunFolder, stream: StreamId) -> None:
        self._predictions = HourWriter(folder.hours(stream))

    def next_frame(self) -> int:
        """Returns the number after the last recorded frame's; 0 without one."""
        return self._predictions.next_frame()

    def add(self, answers: Iterable[FramePrediction], truths: Iterable[FrameReference]) -> None:
        """Adds answers in rising order of frames; the ground truth is not recorded."""
        del truths
        for answer in answers:
            self._predictions.add_row(answer)

    def flush(self) -> None:
        """Writes everything to disk."""
        self._predictions.flush()


class ModelRecord:
    """Writes a stream's models and the labels that they were made from.

    Attributes:
        stream: the stream.
    """

    def __init__(self, folder: RunFolder, store: StateStore, stream: StreamId) -> None:
        self._folder = folder
        self._store = store
        self.stream = stream

    def add_labels(self, labels: StreamLabels) -> None:
        """Records the positions of a window's labels, and whether they are for training or validation."""
        parts: dict[LabelPart, LabelledPart] = {"training": labels.training, "validation": labels.validation}
        for part, labelled in parts.items():
            self._store.add_labels(self.stream, labels.window, part, *labelled.objects())

    def add_model(
        self,
        version: ModelVersion,
        weights: bytes | None,
        window: int,
        config: RetrainConfig | None,
        validation_accuracy: float | None,
        served_from_us: int,
    ) -> None:
        """Records a model that serves from now on, with the bytes of its file; None: written elsewhere."""
        path = self._folder.model(self.stream, version)
        # First the file: a model that is recorded must have its weights, even after a power cut.
        if weights is not None:
            write_bytes_atomic(path, weights)
        self._store.put_model(
            ModelRow(
                stream=self.stream,
                version=version,
                window=window,
                path=self._folder.relative_path(path),
                gamma=config,
                validation_accuracy=validation_accuracy,
                served_from_us=served_from_us,
            )
        )

    def serve_again(self, version: ModelVersion, of: ModelVersion, served_from_us: int) -> None:
        """Records that this stream's weights of version ``of`` serve as ``version``; their file exists.

        Raises:
            LookupError: they are not recorded.
        """
        before = self._recorded(of)
        self._store.put_model(replace(before, version=version, served_from_us=served_from_us))

    def _recorded(self, version: ModelVersion) -> ModelRow:
        for row in self._store.read_models(self.stream):
            if row.version == version:
                return row
        raise LookupError(f"weights {version} of {self.stream} are not recorded")


def merge_frames(folder: RunFolder, streams: Iterable[StreamId]) -> None:
    """Merges the parts written during the run into one file of answers and one of truths per stream."""
    for stream in streams:
        merge_parts(folder.predictions(stream), PREDICTIONS)
        merge_parts(folder.without_retraining(stream), PREDICTIONS)
        merge_parts(folder.reference(stream), REFERENCE)

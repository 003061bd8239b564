"""Reference labels for streams without ground truth: the golden detector's result on their frames.

Accuracy on real video is measured against them. They are made after the run and not charged (paper §6.1): on
every frame, or on a sample, on which the base model is run too, so that both are compared on the same frames.
"""

import logging
import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import numpy as np

from ekya.config.fleet_file import FleetConfig
from ekya.config.fleet_sections import StreamConfig
from ekya.core.objects import DOUBTFUL
from ekya.core.records import FramePrediction, FrameReference
from ekya.core.units import BASE_VERSION, ModelVersion, StreamId, seconds_to_us
from ekya.models.edge.checkpoints import load_model
from ekya.models.golden.detections import FramePlace
from ekya.models.golden.golden_model import GoldenModel, open_golden
from ekya.pipeline.base_model import base_model
from ekya.pipeline.discover_classes import fleet_classes
from ekya.pipeline.inference import Serving, serving
from ekya.pipeline.setup import crop_side
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_tables import (
    PREDICTIONS,
    REFERENCE,
    merge_parts,
    parts_folder,
    prediction_writer,
    reference_writer,
)
from ekya.streams.ingest.crops import square_frame
from ekya.streams.ingest.frame import Frame
from ekya.streams.ingest.motion import IouTracker
from ekya.streams.ingest.process import SourceProcess
from ekya.system.host import cpu_limit

_LOG = logging.getLogger(__name__)
_LOG_EVERY = 500
_NO_TRACK = -1


class Referee:
    """Labels the frames of one stream, in order, with the golden detector."""

    def __init__(self, golden: GoldenModel, stream: StreamId) -> None:
        self._golden = golden
        self._stream = stream
        self._tracker = IouTracker()

    def label_frame(self, frame: Frame) -> FrameReference | None:
        """Returns the next frame's objects; None if the golden model has never analysed it."""
        found = self._golden.find_objects(frame.image, FramePlace(self._stream, frame.index))
        if found is None:
            return None
        found = found.in_areas(frame.areas, frame.size)
        doubtful = len(found.doubtful)
        classes = np.concatenate([found.classes, np.full(doubtful, DOUBTFUL)]).astype(np.int16)
        tracks = np.concatenate([self._tracker.number_boxes(found.boxes), np.full(doubtful, _NO_TRACK)])
        boxes = np.concatenate([found.boxes, found.doubtful])
        return FrameReference(frame.index, frame.t_us, boxes, classes, tracks)


def write_reference(folder: RunFolder, stream: StreamConfig, golden: GoldenModel, until_us: int) -> None:
    """Writes ``reference/<stream>.parquet`` for the frames that arrived before ``until_us``."""
    if not golden.finds:
        return
    path = folder.reference(stream.id)
    rows = reference_writer(path)
    referee = Referee(golden, stream.id)
    try:
        with SourceProcess(stream.first_pass, golden.classes, areas=stream.areas) as source:
            for count, (frame, _) in enumerate(source.frames(), start=1):
                if frame.t_us >= until_us:
                    break
                judged = referee.label_frame(frame)
                if judged is not None:
                    rows.add_row(judged)
                if count % _LOG_EVERY == 0:
                    _LOG.info("%s: %d frames have their reference labels", stream.id, count)
    except BaseException:
        # A part of a reference would pass for the whole later on.
        shutil.rmtree(parts_folder(path), ignore_errors=True)
        raise
    rows.flush()
    merge_parts(path, REFERENCE)


@dataclass(frozen=True, slots=True)
class ScoredStream:
    """Frames of a detector's stream that are to be scored.

    Attributes:
        stream: of the fleet.
        frames: rising.
        versions: of each, the version of the model that served.
    """

    stream: StreamConfig
    frames: Sequence[int]
    versions: Sequence[int]


def count_workers(streams: int) -> int:
    """Returns the number of streams that are scored at a time."""
    return max(1, min(int(cpu_limit()), streams))


def write_sampled_references(
    folder: RunFolder,
    fleet: FleetConfig,
    seed: int,
    streams: Sequence[ScoredStream],
    progress: Callable[[int, int], None],
) -> None:
    """Writes the references of some frames, and what base model and student find on them, on all cores.

    Args:
        folder, fleet, seed: of the run, whose edge models detect.
        streams: whose frames are scored.
        progress: is called with the number of frames that are done, and of all.

    Raises:
        KeyboardInterrupt: what is done until then is written.
    """
    total, done, lock, stop = sum(len(one.frames) for one in streams), 0, threading.Lock(), threading.Event()

    def goes_on() -> bool:
        nonlocal done
        with lock:
            done += 1
            progress(done, total)
        return not stop.is_set()

    workers = count_workers(len(streams))
    # A detector's network belongs to one thread at a time.
    models: SimpleQueue[tuple[GoldenModel, Serving]] = SimpleQueue()
    classes = fleet_classes(fleet)
    for _ in range(workers):
        golden = open_golden(fleet.golden, classes, fleet.edge.task)
        models.put((golden, serving(base_model(fleet, seed), classes)))

    def write_stream(one: ScoredStream) -> None:
        golden, base = models.get()
        try:
            _write_sampled(folder, fleet, one, golden, base, goes_on)
        finally:
            models.put((golden, base))

    with ThreadPoolExecutor(workers, "scoring") as pool:
        waiting = [pool.submit(write_stream, one) for one in streams]
        try:
            for each in waiting:
                each.result()
        except KeyboardInterrupt:
            stop.set()
            raise


def _write_sampled(
    folder: RunFolder,
    fleet: FleetConfig,
    scored: ScoredStream,
    golden: GoldenModel,
    base: Serving,
    goes_on: Callable[[], bool],
) -> None:
    """Writes one stream's rows; sampled frames have no tracks."""
    stream = scored.stream
    paths = folder.reference(stream.id), folder.without_retraining(stream.id), folder.student_alone(stream.id)
    references = reference_writer(paths[0])
    base_rows, student_rows = prediction_writer(paths[1]), prediction_writer(paths[2])
    side, window_us = crop_side(fleet), seconds_to_us(fleet.window_s)
    version_of = dict(zip(scored.frames, scored.versions, strict=True))
    students = {BASE_VERSION: base}
    try:
        with SourceProcess(stream.first_pass, golden.classes, areas=stream.areas) as source:
            for frame, _ in source.frames(only=scored.frames):
                judged = Referee(golden, stream.id).label_frame(frame)
                if judged is not None:
                    window, version = frame.t_us // window_us, ModelVersion(version_of[frame.index])
                    references.add_row(judged)
                    base_rows.add_row(_found_by(base, frame, side, window, BASE_VERSION))
                    student = _student(students, folder.model(stream.id, version), version, golden.classes)
                    if student is not None:
                        student_rows.add_row(_found_by(student, frame, side, window, version))
                if not goes_on():
                    break
    finally:
        for rows in (references, base_rows, student_rows):
            rows.flush()
        for path, columns in zip(paths, (REFERENCE, PREDICTIONS, PREDICTIONS), strict=True):
            merge_parts(path, columns)


def _student(
    known: dict[ModelVersion, Serving], path: Path, version: ModelVersion, classes: tuple[str, ...]
) -> Serving | None:
    """Returns the model of a version, and keeps it and the base alone; None if its file was removed."""
    if version not in known:
        if not path.is_file():
            return None
        kept = known[BASE_VERSION]
        known.clear()
        known |= {BASE_VERSION: kept, version: serving(load_model(path), classes)}
    return known[version]


def _found_by(model: Serving, frame: Frame, side: int, window: int, version: ModelVersion) -> FramePrediction:
    (found,) = model.predict(square_frame(frame.image, side), side)
    found = found.in_areas(frame.areas)
    return FramePrediction(
        frame.index,
        frame.t_us,
        window=window,
        analysed=True,
        answered_by=frame.index,
        model_version=version,
        every=1,
        resolution=side,
        boxes=(found.boxes * np.tile(np.array(frame.size, np.float32), 2)).astype(np.float32),
        classes=found.classes.astype(np.int16),
        confidence=found.confidence,
    )

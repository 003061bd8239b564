"""Completes the references that a run is scored against: of all frames, or of a sample."""

import logging
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

import numpy as np

from ekya.config.fleet_file import FleetConfig
from ekya.config.fleet_sections import StreamConfig
from ekya.config.scoring import Scoring
from ekya.core.host import TYPICAL_FRAME
from ekya.core.records import LabelledBoxes, PredictionColumns, rows_of
from ekya.core.units import US_PER_S, StreamId, us_to_seconds
from ekya.models.edge.architecture_table import Task
from ekya.models.golden.golden_model import GoldenModel, open_golden
from ekya.models.golden.spec import FILE
from ekya.pipeline.discover_classes import fleet_classes
from ekya.pipeline.reference import (
    ScoredStream,
    count_workers,
    write_reference,
    write_sampled_references,
)
from ekya.results.metrics.run_history import RunHistory
from ekya.results.metrics.scored_sample import FEWEST_FRAMES, choose_frames
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_state import StateStore
from ekya.results.storage.run_tables import read_predictions, read_reference
from ekya.streams.ingest.process import SourceProcess

_LOG = logging.getLogger(__name__)

SCORING_PART = 0.12
"""Part of a run's length in which the golden model labels the frames on which the run is scored."""

_TELL_EVERY_S = 5.0
_TIMED = 5


def labelled_in(folder: RunFolder, stream: StreamId) -> LabelledBoxes:
    """Returns frames and boxes of the labels that a run used to train and validate its models."""
    with StateStore(folder.state) as store:
        return store.read_labels(stream)


def complete_references(
    folder: RunFolder, fleet: FleetConfig, history: RunHistory, seed: int, score: Scoring | int
) -> None:
    """Writes the references of streams without truth that lack them.

    After Ctrl-C those that are there count, and the run is reported as usual.

    Args:
        folder, fleet, history, seed: of the run.
        score: frames of a detector's stream, or their number in each of its windows.
    """
    until_us = max((window.end_us for window in history.windows), default=0)
    open_streams = []
    for stream in fleet.streams:
        if stream.source.live:
            _LOG.info("%s: a live camera's frames are gone, so nothing says how accurate it was", stream.id)
        elif not stream.source.gives_truth:
            open_streams.append(stream)
    without = [one for one in open_streams if not len(read_reference(folder.reference(one.id)).frame)]
    golden = partial(open_golden, fleet.golden, fleet_classes(fleet), fleet.edge.task)
    try:
        if score is Scoring.ALL or fleet.edge.task is not Task.DETECT:
            # More of a sample is all of it; tracks, which classifiers need, are of neighbouring frames.
            opened = golden() if without else None
            for stream in without:
                assert opened is not None
                write_reference(folder, stream, opened, until_us)
            return
        per_window = sys.maxsize
        if isinstance(score, int):
            per_window = score
        elif fleet.golden.model != FILE:
            per_window = _affordable(golden, folder, open_streams, history)
        scored = [_frames_to_score(folder, one, per_window, seed) for one in open_streams]
        if any(one.frames for one in scored):
            write_sampled_references(folder, fleet, seed, scored, _ScoringProgress())
    except KeyboardInterrupt:
        if score is Scoring.ALL:
            raise
        _LOG.warning("scoring was stopped; ekya score %s goes on with it", folder.path)


def _frames_to_score(folder: RunFolder, stream: StreamConfig, per_window: int, seed: int) -> ScoredStream:
    """Returns the frames of a stream's sample that have no reference yet."""
    predictions = _first_pass(folder, stream)
    labelled, place = labelled_in(folder, stream.id).frame, zlib.crc32(stream.id.encode())
    chosen = choose_frames(predictions, labelled, per_window, (seed, place))
    frames = np.setdiff1d(chosen, read_reference(folder.reference(stream.id)).frame)
    versions = predictions.model_version[rows_of(frames, predictions.frame)]
    return ScoredStream(stream, frames.tolist(), versions.tolist())


def _first_pass(folder: RunFolder, stream: StreamConfig) -> PredictionColumns:
    """Returns the predictions of a recording's first pass: later ones show what was seen before."""
    predictions = read_predictions(folder.predictions(stream.id))
    if not stream.play.loop:
        return predictions
    with SourceProcess(stream.first_pass, ()) as source:
        source.wait_open()
    end_us = np.inf if source.length_s is None else source.length_s * US_PER_S
    return predictions.select_rows(np.flatnonzero(predictions.t_us < end_us))


def _affordable(
    open_model: Callable[[], GoldenModel],
    folder: RunFolder,
    streams: Sequence[StreamConfig],
    history: RunHistory,
) -> int:
    """Returns the frames of each window that the golden model labels in its part of the run's length."""
    windows = sum(len(np.unique(_first_pass(folder, stream).window)) for stream in streams)
    if not windows:
        return 0
    golden, took_s = open_model(), []
    for _ in range(_TIMED):
        began_s = time.perf_counter()
        golden.find_objects(np.full(TYPICAL_FRAME, 127, np.uint8))
        took_s.append(time.perf_counter() - began_s)
    frames_a_second = count_workers(len(streams)) / median(took_s)
    affordable = SCORING_PART * us_to_seconds(history.span_us) * frames_a_second
    return max(int(affordable / windows), FEWEST_FRAMES)


class _ScoringProgress:
    """Logs how far scoring is, now and then."""

    def __init__(self) -> None:
        self._began_s = self._told_s = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s >= _TELL_EVERY_S and done < total:
            self._told_s = now_s
            left_s = (now_s - self._began_s) * (total - done) / done
            _LOG.info("scoring: %d of %d frames, about %.0f s left", done, total, left_s)

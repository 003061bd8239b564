"""Folder of a run of detectors, written by hand: a street, an empty scene and a live camera."""

from pathlib import Path

import cv2
import numpy as np

from ekya.config.fleet_file import FleetConfig
from ekya.control.options import LoopOptions
from ekya.control.protocols import Batch
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.objects import DOUBTFUL
from ekya.core.records import FramePrediction, FrameReference, LabelledBoxes
from ekya.core.units import JobId, ModelVersion, StreamId
from ekya.results.storage.journal import FileJournal
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_state import StateStore, StreamRow
from ekya.results.storage.run_tables import prediction_writer, reference_writer

STREET, EMPTY, LIVE = StreamId("street"), StreamId("empty"), StreamId("live")
CAR, BUS = 0, 1
FRAMES, FPS, WINDOW_S = 40, 10, 2
SIZE = (160, 90)
S = 1_000_000
SAMPLED = range(0, FRAMES, 3)
LABELLED = (3, 6)
"""Frames of window 0 from which the labels of window 1 were taken."""
GAMMA, EVERY = RetrainConfig(10, 8, 0, 1, 1.0), InferenceConfig(1, 352)
DOUBT = (120.0, 10.0, 140.0, 30.0)


def car_at(frame: int) -> tuple[float, float, float, float]:
    """Returns the box of the car, which crosses the street."""
    return (2.0 * frame, 40.0, 2.0 * frame + 40.0, 64.0)


def draw_video(path: Path, *, car: bool = True) -> None:
    """Writes a video of ``FRAMES`` frames, in which a bright car crosses a dark street."""
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), FPS, SIZE)
    for frame in range(FRAMES):
        image = np.full((SIZE[1], SIZE[0], 3), 60, np.uint8)
        if car:
            x0, y0, x1, y1 = map(int, car_at(frame))
            image[y0:y1, x0:x1] = 200
        writer.write(image)
    writer.release()


def fleet_of(*streams: StreamId, folder: Path) -> FleetConfig:
    """Returns a fleet with these streams; videos are in the folder."""
    camera = {"kind": "camera", "url": "rtsp://127.0.0.1:1/cam"}
    return FleetConfig.model_validate(
        {
            "classes": ["car", "bus"],
            "gpus": 2,
            "window_s": WINDOW_S,
            "golden": {"model": "onnx", "weights": "golden.onnx"},
            "edge": {"task": "detect"},
            "streams": [
                {
                    "id": id_,
                    "source": camera if id_ == LIVE else {"kind": "video", "files": [folder / f"{id_}.avi"]},
                }
                for id_ in streams
            ],
        }
    )


def answer(frame: int, boxes, classes, *, by: int | None = None, version: int = 0) -> FramePrediction:
    """Returns a row of predictions; ``by`` is the frame that answers for a skipped one."""
    return FramePrediction(
        frame=frame,
        t_us=frame * S // FPS,
        window=frame // (FPS * WINDOW_S),
        analysed=by is None,
        answered_by=frame if by is None else by,
        model_version=version,
        every=1,
        resolution=352,
        boxes=np.array(boxes, np.float32).reshape(-1, 4),
        classes=np.array(classes, np.int16),
        confidence=np.full(len(classes), 0.75, np.float32),
    )


def called_a_bus(frame: int) -> FramePrediction:
    """Returns the base model's answer: the car by a wrong name."""
    return answer(frame, [car_at(frame)], [BUS])


def judged(frame: int, *, car: bool) -> FrameReference:
    """Returns the golden detector's result: the car, and a box that it doubts."""
    boxes = [car_at(frame), DOUBT] if car else []
    classes = [CAR, DOUBTFUL] if car else []
    return FrameReference(
        frame,
        frame * S // FPS,
        np.array(boxes, np.float32).reshape(-1, 4),
        np.array(classes, np.int16),
        np.arange(len(classes)),
    )


def make_run(root: Path, streams=(STREET, EMPTY, LIVE)) -> tuple[RunFolder, FleetConfig]:
    """Writes the files of a run of two windows that is over, except those that finishing it makes.

    In window 1 the street's retrained model serves, and calls the car a car.
    """
    folder = RunFolder.create_numbered(root, "made")
    for stream in (STREET, EMPTY):
        draw_video(root / f"{stream}.avi", car=stream == STREET)
    for stream in streams:
        _write_frames(folder, stream)
    with StateStore(folder.state) as store:
        for stream in streams:
            store.put_stream(StreamRow(stream, FRAMES))
        boxes = np.array([car_at(frame) for frame in LABELLED], np.float32)
        store.add_labels(
            STREET, 0, "training", LabelledBoxes(np.array(LABELLED), boxes), np.zeros(len(LABELLED), np.int64)
        )
    _write_journal(folder, streams)
    return folder, fleet_of(*streams, folder=root)


def _write_frames(folder: RunFolder, stream: StreamId) -> None:
    served, base = (
        prediction_writer(folder.predictions(stream)),
        prediction_writer(folder.without_retraining(stream)),
    )
    reference = reference_writer(folder.reference(stream))
    retrained_from = FPS * WINDOW_S
    for frame in range(FRAMES):
        if stream == EMPTY:
            served.add_row(answer(frame, [], []))
        elif frame < retrained_from or stream == LIVE:
            served.add_row(called_a_bus(frame))
        else:
            served.add_row(answer(frame, [car_at(frame)], [CAR], version=1))
        if stream != LIVE:
            reference.add_row(judged(frame, car=stream == STREET))
    for frame in SAMPLED:
        base.add_row(answer(frame, [], []) if stream == EMPTY else called_a_bus(frame))
    for writer in (served, base, reference):
        writer.flush()


def _write_journal(folder: RunFolder, streams) -> None:
    options = LoopOptions(
        window_us=WINDOW_S * S,
        windows=2,
        capacity_milli=2000,
        quantum_milli=50,
        steal_milli=100,
        min_accuracy=0.4,
        preparation_share_milli=500,
        preparation_us=S // 2,
        checkpoint_delay_us=0,
        retrain_configs=(GAMMA,),
        inference_configs=(EVERY,),
        family_costs=(),
    )
    asked = tuple(cmd.PrepareStream(stream, (), ()) for stream in streams)
    at = WINDOW_S * S
    labels = [
        ev.LabelsReady(
            at + 1, stream, 1, 20, 4, 0.1, False, 0.5, golden_gpu_s=0.02, golden_calls=24, objects=found
        )
        for stream, found in ((STREET, 24), (EMPTY, 0))
        if stream in streams
    ]
    steps = [
        (
            0,
            [*(ev.StreamAdded(0, stream, ()) for stream in streams), ev.WindowOpened(0, 0, at)],
            [cmd.SetInference(stream, EVERY, 400) for stream in streams],
        ),
        (at, [ev.WindowClosed(at, 0), ev.WindowOpened(at, 1, 2 * at)], [cmd.BeginPreparation(1, 500, asked)]),
        (
            at + 1,
            [*labels, ev.InferenceProfiled(at + 1, STREET, 1, (), 0.1, 0.01, 12)],
            [cmd.StartRetraining(STREET, JobId(1), 1, GAMMA, 800, 0.9, 1.0)],
        ),
        (at + 2, [ev.RetrainFinished(at + 2, STREET, JobId(1), 0.5), ev.PreparationEnded(at + 2, 1)], []),
        (at + 3, [ev.ModelSwapped(at + 3, STREET, ModelVersion(1), JobId(1), 0.9, 1)], []),
        (2 * at, [ev.WindowClosed(2 * at, 1)], []),
    ]
    journal = FileJournal(folder.journal, "ekya", options)
    for now_us, events, commands in steps:
        journal.record_batch(Batch(now_us, tuple(events)))
        journal.record_decision(now_us, None, commands)
    journal.close()

"""Clips whose frames a golden detector has labelled, and retrainings of a detector on them."""

from pathlib import Path

import cv2
import numpy as np

from ekya.config.fleet_sections import RetrainingConfig
from ekya.core.configs import RetrainConfig
from ekya.models.edge.architecture_table import Task
from ekya.models.edge.model import EdgeModel
from ekya.models.golden.golden_model import open_golden
from ekya.models.golden.registry import ONNX
from ekya.models.golden.spec import GoldenSpec
from ekya.models.training.frames import FrameObjects, LabelledFrames
from ekya.models.training.trainer import Retraining, RetrainingData
from ekya.streams.ingest.video import VideoSpec
from ekya.streams.synthetic.scene import KINDS

TRAINED_FROM, TESTED_FROM = 3, 2
"""A detector is trained on the first third of a clip and tested on its last half."""


def labelled_clip(video: Path, golden: Path, side: int, every: int) -> LabelledFrames:
    """Returns every ``every``-th frame of a video with the objects that the golden model finds in it."""
    model = open_golden(GoldenSpec(model=ONNX, weights=golden), KINDS, Task.DETECT)
    images, objects, times = [], [], []
    for frame, _ in VideoSpec(files=(video,)).open(KINDS).frames():
        if frame.index % every:
            continue
        found = model.find(frame.image)
        assert found is not None
        height, width = frame.image.shape[:2]
        size = np.array([width, height, width, height], np.float32)
        objects.append(FrameObjects(found.boxes / size, found.classes, found.doubtful / size))
        images.append(cv2.resize(frame.image, (side, side))[:, :, ::-1])
        times.append(frame.t_us)
    t_us = np.array(times, np.int64)
    return LabelledFrames(np.stack(images), tuple(objects), KINDS, np.arange(len(images)), t_us)


def first_and_last(frames: LabelledFrames, labelled: int) -> tuple[LabelledFrames, LabelledFrames]:
    """Returns this number of frames of a clip's beginning to train on, and its end to test on."""
    first = np.linspace(0, len(frames) // TRAINED_FROM - 1, labelled).round().astype(np.int64)
    last = np.arange(len(frames) // TESTED_FROM, len(frames))
    return frames.take(np.unique(first)), frames.take(last)


def default_gamma() -> RetrainConfig:
    """Returns the most thorough γ of a run's default Γ."""
    lists = RetrainingConfig().of_detector()
    return RetrainConfig(
        epochs=max(lists.epochs),
        batch_size=min(lists.batch_sizes),
        head_width=0,
        trainable_blocks=max(lists.trainable_blocks),
        data_fraction=max(lists.data_fractions),
    )


def retrained(base: EdgeModel, training: LabelledFrames, gamma: RetrainConfig, seed: int) -> EdgeModel:
    """Returns the base after one retraining on all frames."""
    nothing = training.take(np.zeros(0, np.int64))
    retraining = Retraining(base, gamma, RetrainingData(training, nothing, base.classes, seed=seed))
    retraining.prepare()
    while not retraining.done:
        retraining.run_epoch()
    return retraining.model()

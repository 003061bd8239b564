"""Street of bright bars whose position is the class, and an edge model that learns it in milliseconds."""

from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import nn

from ekya.control.options import LoopOptions
from ekya.core.configs import RetrainConfig
from ekya.core.units import BASE_VERSION
from ekya.models.edge.architectures import EDGE_MODELS, Trunk
from ekya.models.edge.checkpoints import to_bytes
from ekya.models.edge.model import build_edge_model, clone
from ekya.models.golden.detections import ON_CPU
from ekya.models.proposer import GivenBoxes
from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.labelled import LabelledCrops
from ekya.models.training.optimizer import SgdRecipe
from ekya.models.training.trainer import Retraining, RetrainingData, TrainingMethod
from ekya.pipeline.collector import WindowCollector
from ekya.pipeline.costs import CostCard
from ekya.pipeline.inference import Classifier, FrameSteps
from ekya.pipeline.run_writer import FrameRecord, ModelRecord
from ekya.simulation.emulated.camera import EmulatedCamera
from ekya.simulation.emulated.stream import EmulatedStream
from ekya.streams.ingest.crops import crop_objects
from ekya.streams.ingest.frame import Frame, Truth

FPS = 10.0
WINDOW_US = 3_000_000
FRAMES = 30
NAMES = ("left", "middle", "right")
SIDE = 16
CARD = CostCard("a device", 1e9, 2e9, 1e9, 0.0, 1e9, 1e9, 0)
QUICK = replace(CARD, batch_inference_ops_per_s=4e9)
"""Fast enough to label two streams in 0.45 s, one of them by serving and earlier weights."""
TIGHT = LoopOptions(
    window_us=WINDOW_US,
    windows=3,
    capacity_milli=1500,
    quantum_milli=50,
    steal_milli=50,
    min_accuracy=0.2,
    preparation_share_milli=1000,
    preparation_us=WINDOW_US * 15 // 100,
    checkpoint_delay_us=50_000,
    retrain_configs=(),
    inference_configs=(),
    family_costs=(),
)
"""Constants of a loop with little time; tests set γ and λ."""

PARKED = 4
"""Number of frames for which an object stands before the next one takes its place."""


def tiny_trunk():
    """Returns three blocks with few channels."""

    def block(channels_in, channels_out):
        conv = nn.Conv2d(channels_in, channels_out, 3, stride=2, padding=1, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(channels_out), nn.ReLU())

    return Trunk({"first": block(3, 8), "second": block(8, 8), "third": block(8, 16)}, 16)


def class_at(place, index):
    """Returns the class at a place; a new object comes every ``PARKED`` frames."""
    return int(np.random.default_rng((place, index // PARKED)).integers(len(NAMES)))


def frame_at(index):
    """Returns a frame of four places, each 16 pixels wide and with a bar in one of three positions."""
    image = np.full((16, 80, 3), 40, np.uint8)
    boxes, classes, tracks = [], [], []
    for place in range(4):
        of = class_at(place, index)
        # A frame between two objects is empty, so that the next one is another track.
        if index % PARKED == PARKED - 1:
            continue
        left = 20 * place
        image[:, left + 5 * of : left + 5 * of + 5] = 220
        boxes.append([left, 0, left + 16, 16])
        classes.append(of)
        tracks.append(1000 * place + index // PARKED)
    boxes = np.array(boxes, np.float32).reshape(-1, 4)
    frame = Frame(index, round(index * 1e6 / FPS), image, boxes)
    return frame, Truth(boxes, np.array(classes, np.int64), np.array(tracks, np.int64))


def frames(count):
    """Returns a stream of ``count`` frames."""
    return (frame_at(index) for index in range(count))


class Golden:
    """Golden model that recognises the bars."""

    background, runs_on = None, ON_CPU
    finds = False

    def label_boxes(self, items):
        """Returns the class of each box."""
        return [
            np.array([self._bar(item.picture, box) for box in item.boxes], np.int64).reshape(-1)
            for item in items
        ]

    def operations(self, items):
        """Returns a million operations per box."""
        return sum(1_000_000 * len(item.boxes) for item in items)

    @staticmethod
    def _bar(image, box):
        left = int(box[0])
        return int(np.argmax([image[:, left + 5 * of : left + 5 * of + 5].sum() for of in range(3)]))


def standing(count):
    """Yields frames of twenty bars that stand still for a window, so that many of them are labelled."""
    boxes = np.array([[20 * place, 0, 20 * place + 16, 16] for place in range(20)], np.float32)
    for index in range(count):
        image = np.full((16, 400, 3), 40, np.uint8)
        classes = np.random.default_rng(index // FRAMES).integers(len(NAMES), size=len(boxes))
        for place, of in enumerate(classes):
            image[:, 20 * place + 5 * of : 20 * place + 5 * of + 5] = 220
        frame = Frame(index, round(index * 1e6 / FPS), image, boxes)
        yield frame, Truth(boxes, classes.astype(np.int64), np.arange(len(boxes)) + 100 * (index // FRAMES))


def knowing_model():
    """Trains a model that knows the bars; ``tiny`` must be a registered edge model."""
    fresh = build_edge_model(NAMES, 0, 3, "tiny")
    (frame, truth), *_ = standing(1)
    pictures = crop_objects(frame.image, truth.boxes, SIDE)
    crops = LabelledCrops(pictures, truth.classes, truth.tracks, np.zeros(len(truth.tracks), np.int64))
    quick = SgdRecipe(learning_rate=0.03, head_learning_rate=0.1, batch_statistics=True)
    training = Retraining(
        fresh,
        RetrainConfig(30, 8, 0, 3, 1.0),
        RetrainingData(crops, crops, NAMES, seed=1),
        method=TrainingMethod(recipe=quick),
    )
    training.prepare_training()
    while not training.done:
        training.run_epoch()
    return training.model()


def knowing():
    """Module-scoped fixture: a model that knows the bars; registers ``tiny`` as an edge model."""
    torch.set_num_threads(1)
    EDGE_MODELS["tiny"] = tiny_trunk
    yield knowing_model()
    del EDGE_MODELS["tiny"]


def turned_around(model):
    """Returns a copy whose most likely class is now the least likely one."""
    bad = clone(model)
    with torch.no_grad():
        bad.head.weight.neg_()
        bad.head.bias.neg_()
    return bad


def camera_of(folder, store, stream, model, settings, shown=None, window_us=WINDOW_US, card=CARD, **more):
    """Returns an emulated camera that shows ``standing`` bars or others, with ``model`` as its base model."""
    models = ModelRecord(folder, store, stream)
    models.add_model(BASE_VERSION, to_bytes(model), -1, None, None, 0)
    steps = FrameSteps(GivenBoxes(), WindowCollector(settings, window_us))
    prepare = partial(Classifier, classes=NAMES)
    values = {
        "settings": settings,
        "inference": EmulatedStream(shown or standing(200), steps, card, model, prepare),
        "frames": FrameRecord(folder, stream),
        "models": models,
        "model": model,
        "options": (),
        "version": BASE_VERSION,
        "memory": ExemplarMemory(),
    }
    return EmulatedCamera(**values | more)

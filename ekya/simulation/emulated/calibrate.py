"""`ekya calibrate`: measures this device's operations per second at the batch sizes that Ekya uses."""

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import nnls

from ekya.config.fleet_file import DEFAULT_FLEET, FleetConfig
from ekya.config.fleet_reading import load_fleet
from ekya.config.shipped import shipped_path
from ekya.control.options import PLANNING_US
from ekya.core.configs import RetrainConfig
from ekya.core.host import TYPICAL_OBJECTS
from ekya.models.edge.architecture_table import CUTS, DEFAULT_ARCHITECTURE, DETECTORS
from ekya.models.edge.detection.predictor import DetectorPredictor
from ekya.models.edge.model import build_edge_model
from ekya.models.edge.predictor import FORWARD_BATCH, Predictor
from ekya.models.edge.spec import FRAME_SIDES
from ekya.models.golden.detections import Question
from ekya.models.golden.golden_model import PROPOSAL_SCORE, open_detector_of, open_golden
from ekya.models.golden.spec import detector_of
from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.labelled import LabelledCrops
from ekya.models.training.operations import RetrainingCost, forward_operations, retraining_cost
from ekya.models.training.trainer import Retraining, RetrainingData
from ekya.pipeline.costs import CostCard, EdgeRates
from ekya.pipeline.discover_classes import fleet_classes
from ekya.pipeline.measure_host import kept_self_test
from ekya.pipeline.setup import crop_side
from ekya.pipeline.speed_jobs import random_frames

_REPEATS = 15
_HEAD_REPEATS = 60
_CROPS = 96
_IMAGE = (240, 320, 3)
_FRAMES = 16
_FRAMES_A_STEP = 8
_EPOCHS = 7
_DETECTED = 80


def calibrate(fleet: FleetConfig | None = None) -> CostCard:
    """Measures this device on one thread: all edge models, and the golden model of ``fleet`` (or shipped)."""
    fleet = fleet or load_fleet(shipped_path(DEFAULT_FLEET))
    torch.set_num_threads(1)
    side = crop_side(fleet)
    rng = np.random.default_rng(0)
    crops = rng.integers(0, 256, (_CROPS, side, side, 3), np.uint8)
    own = _edge_rates(fleet, DEFAULT_ARCHITECTURE, crops)
    return CostCard(
        device=f"one core of {platform.machine()}, torch {torch.__version__}",
        **asdict(own),
        golden_ops_per_s=_golden_ops_per_s(fleet, rng),
        detector_ops_per_s=_detector_ops_per_s(fleet, rng, own.batch_inference_ops_per_s),
        planning_us=PLANNING_US,
        others={
            **{name: _edge_rates(fleet, name, crops) for name in CUTS if name != DEFAULT_ARCHITECTURE},
            **{name: detector_rates(name) for name in DETECTORS},
        },
    )


def detector_rates(architecture: str) -> EdgeRates:
    """Measures a detector on frames of its usual side, on this thread."""
    side = FRAME_SIDES[architecture]
    model = build_edge_model(tuple(f"class {index}" for index in range(_DETECTED)), 0, 0, architecture)
    frames = random_frames(_FRAMES, side, model.classes)
    operations = forward_operations(side, architecture=architecture)
    predictor = DetectorPredictor(model)
    frame_s = _seconds(lambda: predictor.predict(frames.images[:1], side))

    def epoch(blocks: int) -> tuple[RetrainingCost, float, float]:
        gamma = RetrainConfig(_EPOCHS, _FRAMES_A_STEP, 0, blocks, 1.0)
        validation = frames.select_rows(np.arange(0, _FRAMES, 4))
        data = RetrainingData(frames, validation, model.classes, memory=ExemplarMemory(), seed=0)
        retraining = Retraining(model, gamma, data)
        prepared_s = _seconds(retraining.prepare_training, 3)
        return retraining_cost(retraining), prepared_s, _seconds(retraining.run_epoch, _EPOCHS - 2)

    (head, prepared_s, head_s), (neck, _, neck_s) = epoch(0), epoch(1)
    per_operation_s, step_s = _per_operation_and_step(((head, head_s), (neck, neck_s)))
    return EdgeRates(
        inference_ops_per_s=operations / frame_s,
        batch_inference_ops_per_s=head.preparation / prepared_s,
        training_ops_per_s=1.0 / per_operation_s,
        training_step_s=step_s,
    )


def _edge_rates(fleet: FleetConfig, architecture: str, crops: NDArray[np.uint8]) -> EdgeRates:
    side = crops.shape[1]
    way = kept_self_test(architecture, "cpu", fleet.inference.resolutions).way
    predictor = Predictor(build_edge_model(fleet_classes(fleet), 0, 0, architecture), "cpu", way)
    objects = round(TYPICAL_OBJECTS)
    operations = forward_operations(side, architecture=architecture)
    frame_s = _seconds(lambda: predictor.predict(crops[:objects], side))
    batch_s = _seconds(lambda: predictor.predict(crops[:FORWARD_BATCH], side))
    training_ops_per_s, training_step_s = _training(fleet, architecture, crops)
    return EdgeRates(
        inference_ops_per_s=objects * operations / frame_s,
        batch_inference_ops_per_s=FORWARD_BATCH * operations / batch_s,
        training_ops_per_s=training_ops_per_s,
        training_step_s=training_step_s,
    )


def _training(fleet: FleetConfig, architecture: str, crops: NDArray[np.uint8]) -> tuple[float, float]:
    """Returns operations per second, and the overhead in seconds per step, from two kinds of epochs.

    An epoch of the head alone has almost only overhead, one of blocks almost only operations.
    """
    blocks = max(1, *fleet.retraining.trainable_blocks)
    operation_s, step_s = _per_operation_and_step(
        [_epoch(fleet, architecture, crops, trained) for trained in (0, blocks)]
    )
    return 1.0 / operation_s, step_s


def _per_operation_and_step(epochs: Sequence[tuple[RetrainingCost, float]]) -> tuple[float, float]:
    """Returns the seconds of an operation and those of a step beside its operations, from two epochs.

    Neither is negative: the heads of some detectors do fewer operations a second than their blocks.
    """
    counted = np.array([[cost.epoch, cost.steps] for cost, _ in epochs], np.float64)
    scale = counted.max(axis=0)
    (operation_s, step_s), _ = nnls(counted / scale, [seconds for _, seconds in epochs])
    return float(operation_s / scale[0]), float(step_s / scale[1])


def _epoch(
    fleet: FleetConfig, architecture: str, crops: NDArray[np.uint8], blocks: int
) -> tuple[RetrainingCost, float]:
    """Returns the counted cost of an epoch that trains ``blocks`` blocks, and its measured seconds."""
    classes = fleet_classes(fleet)
    labelled = LabelledCrops(crops, np.arange(_CROPS) % len(classes), np.arange(_CROPS), np.arange(_CROPS))
    retraining = Retraining(
        build_edge_model(classes, 0, 0, architecture),
        RetrainConfig(_REPEATS, fleet.retraining.batch_sizes[0], 0, blocks, 1.0),
        RetrainingData(
            labelled, labelled.select_rows(np.arange(0, _CROPS, 5)), classes, memory=ExemplarMemory(), seed=0
        ),
    )
    retraining.prepare_training()
    return retraining_cost(retraining), _seconds(retraining.run_epoch, 4 if blocks else _HEAD_REPEATS)


def _golden_ops_per_s(fleet: FleetConfig, rng: np.random.Generator) -> float:
    golden = open_golden(fleet.golden, fleet_classes(fleet))
    image = rng.integers(0, 256, _IMAGE, np.uint8)
    boxes = np.tile(np.array([[40, 40, 80, 90]], np.float32), (8, 1))
    items = [Question(boxes, image)] * 4
    return golden.operations(items) / _seconds(lambda: golden.label_boxes(items))


def _detector_ops_per_s(fleet: FleetConfig, rng: np.random.Generator, otherwise: float) -> float:
    """Returns the rate of the golden detector's network; ``otherwise`` if the fleet has no detector."""
    if detector_of(fleet.golden) is None:
        return otherwise
    detector = open_detector_of(fleet.golden, PROPOSAL_SCORE)
    image = rng.integers(0, 256, _IMAGE, np.uint8)
    return detector.operations_per_frame(image.shape) / _seconds(lambda: detector.detect_objects(image))


def _seconds(work: Callable[[], object], repeats: int = _REPEATS) -> float:
    """Returns the median thread time of a call in seconds, without the first two."""
    took = []
    for _ in range(repeats + 2):
        began = time.thread_time()
        work()
        took.append(time.thread_time() - began)
    return float(np.median(took[2:]))

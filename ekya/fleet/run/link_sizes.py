"""Sizes of the data that a fleet's jobs send over links."""

import numpy as np
from torch.nn import Module

from ekya.config.fleet_file import FleetConfig
from ekya.fleet.policy.offers import LinkSizes
from ekya.models.edge.architecture_table import task_of
from ekya.models.edge.checkpoints import to_bytes
from ekya.models.edge.model import EdgeModel
from ekya.models.training.exemplars import MOST_EXEMPLARS
from ekya.models.training.labelled import LabelledCrops
from ekya.pipeline.base_model import base_model
from ekya.pipeline.discover_classes import fleet_classes
from ekya.pipeline.setup import crop_side


def sizes_of(fleet: FleetConfig, seed: int) -> LinkSizes:
    """Returns the sizes for the fleet's crops or frames and edge models."""
    return sizes_with(base_model(fleet, seed), crop_side(fleet), len(fleet_classes(fleet)))


def sizes_with(model: EdgeModel, side: int, classes: int) -> LinkSizes:
    """Returns the sizes for square pictures of this side, a model like this one, and this many classes."""
    one = np.zeros(1, np.int64)
    crop = LabelledCrops(np.zeros((1, side, side, 3), np.uint8), one, one, one)
    blocks = [_mb_of(block) for block in model.blocks]
    return LinkSizes(
        crop_mb=crop.nbytes / 1e6,  # A frame's boxes are as small as a class.
        model_mb=len(to_bytes(model)) / 1e6,
        blocks_mb=tuple(reversed(blocks)),
        features=model.features,
        classes=classes,
        head_mb=None if model.detector is None else _mb_of(model.head),
        exemplars=MOST_EXEMPLARS[task_of(model.architecture)],
    )


def _mb_of(part: Module) -> float:
    return 4e-6 * sum(weights.numel() for weights in part.parameters())

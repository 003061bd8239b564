"""Bars to train on, and bundles of them."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
from torch import nn

from ekya.core.configs import RetrainConfig
from ekya.fleet.run.training.bundle_file import TrainingBundle
from ekya.models.edge.architectures import Trunk
from ekya.models.edge.checkpoints import to_bytes
from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.labelled import LabelledCrops
from ekya.models.training.trainer import RetrainingData

NAMES = ("person", "car", "truck")
GAMMA = RetrainConfig(epochs=3, batch_size=8, head_width=0, trainable_blocks=1, data_fraction=1.0)


def wide_trunk():
    """Builds four blocks, after which the places of bars are separate pixels."""

    def block(channels_in, channels_out):
        conv = nn.Conv2d(channels_in, channels_out, 3, stride=2, padding=1, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(channels_out), nn.ReLU())

    blocks = (block(3, 16), block(16, 16), block(16, 32), block(32, 32))
    return Trunk({f"block{place}": block for place, block in enumerate(blocks)}, 32)


def bars(count, seed, first_track=0):
    rng = np.random.default_rng(seed)
    classes = rng.choice(3, count).astype(np.int64)
    crops = rng.integers(0, 60, (count, 32, 32, 3)).astype(np.uint8)
    for row, place in enumerate(classes):
        crops[row, :, 8 * place : 8 * place + 8] += 150
    order = np.arange(count, dtype=np.int64)
    return LabelledCrops(crops, classes, first_track + order // 2, order * 1000)


def bundle_with(model, config=GAMMA, exemplars=0, start=None):
    memory = ExemplarMemory(20, bars(exemplars, 9, 900)) if exemplars else None
    data = RetrainingData(bars(60, 1), bars(30, 3, 500), NAMES, memory, 3)
    return TrainingBundle(config, to_bytes(model) if start is None else start, data)


class Shares:
    """A backend without limits, which records the shares that were attached and the number that is held."""

    def __init__(self):
        self.attached, self.held = [], 0

    def probe_machine(self):
        return SimpleNamespace(device="cpu")

    def attach_job(self, job):
        self.attached.append(job)
        self.held += 1
        return SimpleNamespace(scope=nullcontext, release=self._release)

    def _release(self):
        self.held -= 1

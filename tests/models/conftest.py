"""Small pictures that are learnt quickly: the position of a bright bar is the class."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import nn

from ekya.models.edge.architectures import EDGE_MODELS, Trunk
from ekya.models.edge.model import EdgeModel, build_edge_model, to_input
from ekya.models.training.labelled import LabelledCrops

NAMES = ("person", "car", "truck")

MakeBars = Callable[..., LabelledCrops]


@pytest.fixture(autouse=True)
def one_deterministic_thread() -> Iterator[None]:
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)


@pytest.fixture
def make_bars() -> MakeBars:
    def make(
        count: int, seed: int, classes: tuple[int, ...] = (0, 1, 2), first_track: int = 0
    ) -> LabelledCrops:
        rng = np.random.default_rng(seed)
        chosen = rng.choice(classes, count).astype(np.int64)
        crops = rng.integers(0, 60, (count, 32, 32, 3)).astype(np.uint8)
        for row, place in enumerate(chosen):
            crops[row, :, 8 * place : 8 * place + 8] += 150
        order = np.arange(count, dtype=np.int64)
        return LabelledCrops(crops, chosen, first_track + order // 2, order * 1000)

    return make


@pytest.fixture(scope="session")
def fresh_model() -> EdgeModel:
    """Model with random weights; tests must not change it."""
    return build_edge_model(NAMES, 0, seed=7)


def tiny_trunk() -> Trunk:
    """Returns five blocks like those of a real trunk, with few channels."""

    def block(channels_in: int, channels_out: int) -> nn.Module:
        conv = nn.Conv2d(channels_in, channels_out, 3, stride=2, padding=1, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(channels_out), nn.ReLU())

    blocks = (block(3, 16), block(16, 16), block(16, 32), nn.Sequential(), block(32, 32))
    return Trunk({f"block{place}": block for place, block in enumerate(blocks)}, 32)


@pytest.fixture
def tiny_model(monkeypatch: pytest.MonkeyPatch, make_bars: MakeBars) -> EdgeModel:
    """Plug-in architecture that trains in milliseconds; its normalisation statistics fit the bars."""
    monkeypatch.setitem(EDGE_MODELS, "tiny", tiny_trunk)
    model = build_edge_model(NAMES, 0, seed=7, architecture="tiny").train()
    with torch.no_grad():
        for seed in range(20):
            model(to_input(make_bars(32, seed).crops, "cpu"))
    return model.eval()

"""Fixtures for tests of trainings on other servers."""

import pytest
import torch
from bundles import NAMES, bars, wide_trunk

from ekya.fleet.run.training import processes
from ekya.models.edge.architectures import EDGE_MODELS
from ekya.models.edge.model import build_edge_model, to_input


@pytest.fixture(autouse=True)
def in_front(monkeypatch):
    """Keeps the process of the tests at its priority, since niceness cannot be lowered again."""
    monkeypatch.setattr(processes, "lower_priority", lambda niceness: None)


@pytest.fixture
def model(monkeypatch):
    monkeypatch.setitem(EDGE_MODELS, "tiny", wide_trunk)
    torch.set_num_threads(1)
    made = build_edge_model(NAMES, 0, 7, "tiny").train()
    with torch.no_grad():  # its normalisation needs statistics of the bars
        for seed in range(20):
            made(to_input(bars(32, 40 + seed).crops, "cpu"))
    return made.eval()

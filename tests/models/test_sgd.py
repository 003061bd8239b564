import pytest
import torch
from torch import nn

from ekya.models.edge.model import Suffix
from ekya.models.training.optimizer import AdamW, AdamWRecipe, Sgd, SgdRecipe


@pytest.fixture
def suffix():
    """A block and a head, which have separate learning rates."""
    return Suffix(nn.Sequential(nn.Conv2d(3, 4, 1)), nn.Linear(4, 2), pools=True)


def push(suffix, size):
    for number, weight in enumerate(suffix.parameters()):
        weight.grad = torch.full_like(weight, size * (1 + number % 3))


@pytest.mark.parametrize(("kind", "recipe"), [(Sgd, SgdRecipe(momentum=0.8)), (AdamW, AdamWRecipe())])
def test_restored_momentum_leads_to_the_same_weights_whatever_its_layout(kind, recipe):
    def trained(restored):
        torch.manual_seed(0)
        block = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        suffix = Suffix(nn.Sequential(block), nn.Linear(4, 2), pools=True)
        optimizer = kind(suffix, recipe)
        for _ in range(2):
            if restored:
                rows = {name: kept.contiguous() for name, kept in optimizer.momentum().items()}
                optimizer = kind(suffix, recipe)
                optimizer.set_momentum(rows)
            for weight in suffix.parameters():
                weight.grad = torch.empty_like(weight).copy_(torch.randn(weight.shape))
            optimizer.take_step()
        return list(suffix.parameters())

    assert all(torch.equal(*pair) for pair in zip(trained(False), trained(True), strict=True))

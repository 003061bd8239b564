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


@pytest.mark.parametrize("steps", [1, 3])
def test_coasting_equals_steps_without_gradient(suffix, steps):
    sgd = Sgd(suffix, SgdRecipe(momentum=0.8, weight_decay=0.0))
    assert sgd.coasting(steps) == {}
    sgd.set_rates(64, 4)
    for size in (0.1, -0.3):
        push(suffix, size)
        sgd.take_step()
    expected = sgd.coasting(steps)
    before = {name: weight.detach().clone() for name, weight in suffix.named_parameters()}
    for _ in range(steps):
        push(suffix, 0.0)
        sgd.take_step()
    assert len(expected) == len(before) > 2
    for name, weight in suffix.named_parameters():
        moved = weight.detach() - before[name]
        assert float(moved.abs().min()) > 1e-4
        assert torch.allclose(expected[name], moved, atol=1e-6)


def test_coasting_leaves_weights_and_optimizer_unchanged(suffix):
    sgd = Sgd(suffix, SgdRecipe())
    push(suffix, 0.1)
    sgd.take_step()
    weights = [weight.detach().clone() for weight in suffix.parameters()]
    first = sgd.coasting(2)
    assert all(torch.equal(of, first[name]) for name, of in sgd.coasting(2).items())
    assert all(torch.equal(*pair) for pair in zip(weights, suffix.parameters(), strict=True))


@pytest.mark.parametrize(
    ("rate", "late", "foresees", "settles"),
    [
        (3.7, 0, False, True),
        (0.09, 1, False, True),
        (0.12, 1, False, False),
        (0.23, 1, True, True),
        (0.28, 1, True, False),
        (0.06, 2, False, False),
        (0.10, 2, True, True),
    ],
)
def test_sgd_with_late_gradients_settles_at_higher_rate_with_foresight(rate, late, foresees, settles):
    """The loss is w² / 2, so its gradient at w is w; momentum is 0.9."""
    suffix = Suffix(nn.Sequential(), nn.Linear(1, 1), pools=False)
    sgd = Sgd(suffix, SgdRecipe(learning_rate=rate, weight_decay=0.0))
    weight = suffix.head.bias
    for other in suffix.parameters():
        other.grad = torch.zeros_like(other)
    with torch.no_grad():
        weight.fill_(1.0)
        given = [weight.clone()] * (late + 1)
        for _ in range(600):
            weight.grad = given.pop(0)
            sgd.take_step()
            ahead = sgd.coasting(late)["head.bias"] if foresees else 0.0
            given.append(weight + ahead)
    assert (abs(float(weight.detach())) < 0.5) == settles


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

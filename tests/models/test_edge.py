import torch

from ekya.models.edge.model import EdgeModel, adapt, build_edge_model, clone


def same(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    left, right = a.state_dict(), b.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_build_edge_model_seed_leaves_global_generator_alone(fresh_model: EdgeModel) -> None:
    before = torch.random.get_rng_state()
    again = build_edge_model(fresh_model.classes, 0, seed=7)
    assert same(again, fresh_model)
    assert not same(build_edge_model(fresh_model.classes, 0, seed=8), fresh_model)
    assert torch.equal(before, torch.random.get_rng_state())


def test_adapt_other_head_width_initialises_the_head_only(fresh_model: EdgeModel) -> None:
    adapted = adapt(fresh_model, fresh_model.classes, 16, seed=1)
    assert same(adapted.blocks, fresh_model.blocks)
    assert adapted.head_width == 16
    assert adapted(torch.zeros(1, 3, 32, 32)).shape == (1, 3)


def test_adapt_to_a_width_of_before_goes_on_from_its_head(fresh_model: EdgeModel) -> None:
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    wide = adapt(fresh_model, fresh_model.classes, 16, seed=1)
    back = adapt(wide, wide.classes, 0, seed=2)
    assert same(back.head, fresh_model.head)
    assert set(back.kept_heads) == {"16"}
    again = adapt(back, (*back.classes, "bus"), 16, seed=3)
    torch.testing.assert_close(again(images)[:, :3], wide(images))
    assert set(again.kept_heads) == {"0"}
    assert adapt(again, again.classes, 0, seed=4)(images).shape == (4, 4)


def test_adapt_new_class_keeps_known_outputs(fresh_model: EdgeModel) -> None:
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    adapted = adapt(fresh_model, (*fresh_model.classes, "bus"), 0, seed=1)
    assert adapted.classes[-1] == "bus"
    torch.testing.assert_close(adapted(images)[:, :3], fresh_model(images))


def test_adapt_new_class_keeps_the_hidden_layer(fresh_model: EdgeModel) -> None:
    wide = adapt(fresh_model, fresh_model.classes, 16, seed=1)
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    grown = adapt(wide, (*wide.classes, "bus"), 16, seed=2)
    torch.testing.assert_close(grown(images)[:, :3], wide(images))


def test_clone_is_independent(fresh_model: EdgeModel) -> None:
    copied = clone(fresh_model)
    with torch.no_grad():
        copied.head.bias.add_(1.0)
    assert not same(copied, fresh_model)

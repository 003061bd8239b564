import numpy as np

from ekya.models.edge.model import EdgeModel
from ekya.models.training.exemplars import ExemplarMemory, herd, normalised_features


def test_herd_keeps_the_running_mean_nearest() -> None:
    # The mean is (1, 0). Row 2 is nearest; with it, row 3 keeps the mean of two nearest; then row 1.
    features = np.array([[-3.0, 2.0], [3.0, -2.0], [1.1, 0.0], [0.9, 0.0]], np.float32) + np.array(
        [0.5, 0.0], np.float32
    )
    features[0, 0] = 4 * 1.0 - features[1:, 0].sum()
    features[0, 1] = -features[1:, 1].sum()
    order = herd(features, 4)
    target = features.mean(axis=0)
    for step in range(1, 5):
        reached = np.linalg.norm(features[order[:step]].mean(axis=0) - target)
        for other in set(range(4)) - set(order[: step - 1]):
            trial = np.linalg.norm(features[[*order[: step - 1], other]].mean(axis=0) - target)
            assert reached <= trial + 1e-6
    assert sorted(order) == [0, 1, 2, 3]


def test_herd_differs_from_nearest_to_the_mean() -> None:
    # Two rows on one side are nearest to the mean, but herding balances them with one from the other.
    features = np.array([[0.4], [0.5], [-2.0], [1.5]], np.float32)
    order = herd(features, 3)
    assert order[0] == 0
    assert abs(features[order].mean() - features.mean()) < abs(features[[0, 1, 3]].mean() - features.mean())


def test_exemplar_memory_is_bounded_and_deterministic(fresh_model: EdgeModel, make_bars) -> None:
    memory = ExemplarMemory(budget=10)
    assert memory.exemplars() is None
    for window in range(3):
        crops = make_bars(60, window, classes=(0, 1) if window < 2 else (2,), first_track=100 * window)
        memory, again = (
            memory.update_exemplars(fresh_model, crops),
            memory.update_exemplars(fresh_model, crops),
        )
        kept, kept_again = memory.exemplars(), again.exemplars()
        assert kept is not None
        assert kept_again is not None
        assert np.array_equal(kept.crops, kept_again.crops)
        quota = 5 if window < 2 else 3
        assert np.bincount(kept.classes, minlength=3).tolist() == ([quota, quota, 0 if window < 2 else quota])


def test_exemplar_memory_without_new_crops_is_unchanged(fresh_model: EdgeModel, make_bars) -> None:
    empty = make_bars(2, 0).select_rows(np.zeros(0, np.int64))
    memory = ExemplarMemory(4)
    assert memory.update_exemplars(fresh_model, empty).exemplars() is None
    full = memory.update_exemplars(fresh_model, make_bars(20, 0))
    assert len(full.update_exemplars(fresh_model, empty).exemplars()) == len(full.exemplars())


def test_exemplar_memory_of_many_classes_keeps_to_the_budget(fresh_model: EdgeModel, make_bars) -> None:
    assert len(ExemplarMemory(2).update_exemplars(fresh_model, make_bars(30, 0)).exemplars()) == 2


def test_normalised_features_have_length_one(fresh_model: EdgeModel, make_bars) -> None:
    features = normalised_features(fresh_model, make_bars(5, 0).crops)
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1.0, rtol=1e-5)

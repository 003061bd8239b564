import pytest
from hypothesis import given
from hypothesis import strategies as st
from optimum.pareto import INFERENCE_PARTS_MILLI, pareto_frontier, pareto_points, uniform_baselines
from views import GAMMAS, accuracies

from ekya.core.view import RetrainOption


def options(*rows):
    return [RetrainOption(GAMMAS[place], accuracy, gpu_s) for place, (accuracy, gpu_s) in enumerate(rows)]


two_streams = st.lists(
    st.lists(st.tuples(accuracies, st.integers(1, 50).map(float)), min_size=5, max_size=5),
    min_size=2,
    max_size=2,
)


@given(two_streams)
def test_frontier_point_is_never_dominated(rows):
    held_out = [options(*one) for one in rows]
    frontier = pareto_frontier(held_out)
    means = [(sum(a for a, _ in pair) / 2, sum(g for _, g in pair) / 2) for pair in zip(*rows, strict=True)]
    assert [o.gpu_s for o in frontier] == sorted({o.gpu_s for o in frontier})
    for point in frontier:
        assert not any(
            a >= point.accuracy_after and g <= point.gpu_s and (a, g) != (point.accuracy_after, point.gpu_s)
            for a, g in means
        )
    best = max(a for a, _ in means)
    assert frontier[-1].accuracy_after == best


@given(two_streams)
def test_pareto_cheap_point_costs_less_and_is_nearly_as_accurate(rows):
    held_out = [options(*one) for one in rows]
    by_gamma = {option.config: option for option in pareto_frontier(held_out)}
    high, low = (by_gamma[config] for config in pareto_points(held_out))
    assert low.gpu_s <= high.gpu_s
    assert low.accuracy_after >= 0.9 * high.accuracy_after


def test_pareto_points_are_chosen_by_mean_of_streams():
    """The second γ is best on one stream, and the third on the mean of both."""
    held_out = [options((0.6, 1), (0.95, 10), (0.9, 10)), options((0.78, 1), (0.5, 10), (0.8, 10))]
    assert pareto_points(held_out) == (GAMMAS[2], GAMMAS[2])
    held_out = [options((0.8, 1), (0.95, 10), (0.9, 10)), options((0.78, 1), (0.5, 10), (0.8, 10))]
    assert pareto_points(held_out) == (GAMMAS[2], GAMMAS[0])


def test_pareto_gamma_not_measured_on_every_stream_is_skipped():
    assert pareto_points([options((0.6, 1), (0.9, 2)), options((0.6, 1))]) == (GAMMAS[0], GAMMAS[0])
    with pytest.raises(ValueError, match="measured on every"):
        pareto_points([options((0.6, 1)), []])
    with pytest.raises(ValueError, match="measured on every"):
        pareto_points([])


def test_pareto_options_have_both_gammas_with_every_inference_part():
    made = uniform_baselines(GAMMAS[0], GAMMAS[1])
    assert {(o.fixed_gamma, o.inference_part_milli) for o in made} == {
        (gamma, part) for gamma in GAMMAS[:2] for part in INFERENCE_PARTS_MILLI
    }
    assert len(made) == 6

"""The three-strike rule."""

from ekya.fleet.policy.view import Strikes


def test_after_three_failures_a_node_is_out_and_one_that_is_gone_is_out_at_once():
    strikes = Strikes().with_failures("a").with_failures("b").with_failures("a")
    assert strikes.out == frozenset()
    assert strikes.with_failures("a").out == {"a"}
    assert strikes.with_dead_node("b").out == {"b"}
    assert strikes.with_failures("a").with_dead_node("b").out == {"a", "b"}


def test_a_node_that_is_named_several_times_has_that_many_failures():
    strikes = Strikes().with_failures("a", "b", "a")
    assert strikes.counted == {"a": 2, "b": 1}
    assert strikes.with_failures("b", "b").out == {"b"}
    assert strikes.with_failures() == strikes

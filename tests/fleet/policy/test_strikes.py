"""The three-strike rule."""

from ekya.fleet.policy.strikes import Strikes


def test_after_three_failures_a_node_is_out_and_one_that_is_gone_is_out_at_once():
    strikes = Strikes().struck("a").struck("b").struck("a")
    assert strikes.out == frozenset()
    assert strikes.struck("a").out == {"a"}
    assert strikes.lost("b").out == {"b"}
    assert strikes.struck("a").lost("b").out == {"a", "b"}


def test_a_node_that_is_named_several_times_has_that_many_failures():
    strikes = Strikes().struck("a", "b", "a")
    assert strikes.counted == {"a": 2, "b": 1}
    assert strikes.struck("b", "b").out == {"b"}
    assert strikes.struck() == strikes

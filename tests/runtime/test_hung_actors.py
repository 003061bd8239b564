"""Actors that hang are told from those that reply, and from a pause of the caller."""

from ekya.core.units import US_PER_S
from ekya.runtime.driver.worker_lifecycle import HUNG_US, LOADING_US, HungActors


def looked_at(hung, from_s, to_s):
    """Looks once a second, and returns what hangs."""
    return [actor for at_s in range(from_s, to_s) for actor in hung.pop_hung(at_s * US_PER_S)]


def test_actor_that_does_not_reply_is_named_once():
    hung = HungActors()
    hung.note_reply("a", 0)
    hung.note_reply("b", 50 * US_PER_S)
    assert looked_at(hung, 0, HUNG_US // US_PER_S + 1) == []
    assert looked_at(hung, HUNG_US // US_PER_S + 1, 100) == ["a"]
    hung.forget_actor("b")
    assert looked_at(hung, 100, 200) == []


def test_actor_that_loads_has_longer():
    hung = HungActors()
    hung.watch_loading("a", 0)
    hung.watch_loading("b", 0)
    hung.note_reply("b", 100 * US_PER_S)
    assert looked_at(hung, 0, LOADING_US // US_PER_S + 100) == ["b", "a"]


def test_pause_of_the_caller_is_not_held_against_actors():
    hung = HungActors()
    hung.note_reply("a", 0)
    assert looked_at(hung, 0, 50) == []
    assert looked_at(hung, 1000, 1010) == []
    assert looked_at(hung, 1010, 1020) == ["a"]

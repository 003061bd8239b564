"""Automatic updates of a store on virtual time, with a fake manager."""

from dataclasses import dataclass, field

import pytest

from ekya.core.errors import UserError
from ekya.fleet.policy.assignment import Assignment, Part
from ekya.fleet.policy.names import JobName, NodeName
from ekya.fleet.run.deep_edge.store import Trigger
from ekya.fleet.run.deep_edge.watch import ASK_AGAIN_S, StoreWatch

CAM = JobName("cam")


@dataclass
class Store:
    name: JobName = CAM
    new: int = 0
    right: float = 1.0
    judged: list = field(default_factory=list)

    def new_samples(self):
        return self.new

    def accuracy(self, newest):
        self.judged.append((self.new, newest))
        return self.right


@dataclass
class Manager:
    """Launches one update of a store, or refuses with the reason ``refuses``."""

    launched: list = field(default_factory=list)
    under_way: set = field(default_factory=set)
    refuses: str = ""

    def tasks(self):
        return dict.fromkeys(self.under_way)

    def trigger(self, store, launched_by):
        if self.refuses:
            raise UserError(self.refuses)
        self.launched.append((store.new, launched_by))
        self.under_way.add(store.name)
        store.new = 0
        return Assignment(store.name, (Part(NodeName("east"), chunks=8),), "as it is")


class World:
    def __init__(self, trigger):
        self.store, self.manager, self.now_s = Store(), Manager(), 0.0
        self.watch = StoreWatch(self.store, trigger, self.manager, lambda: self.now_s)

    def comes(self, *counts):
        for count in counts:
            self.store.new += count
            self.now_s += 5
            self.watch.look()


def test_an_update_is_launched_at_so_many_new_samples_and_said(caplog) -> None:
    world = World(Trigger(200))
    with caplog.at_level("INFO"):
        world.comes(150, 49)
        assert not world.manager.launched
        world.comes(1)
    assert world.manager.launched == [(200, "trigger")]
    assert caplog.messages == [
        "cam: its trigger launches an update on east: 200 new samples since the last update began"
    ]
    assert not world.store.judged


def test_while_one_is_under_way_none_is_launched_and_what_comes_counts_for_the_next() -> None:
    world = World(Trigger(200))
    world.comes(200, 150, 150)
    assert len(world.manager.launched) == 1
    world.manager.under_way.clear()
    world.comes(0)
    assert world.manager.launched == [(200, "trigger"), (300, "trigger")]
    world.manager.under_way.clear()
    world.comes(0, 199)
    assert len(world.manager.launched) == 2


def test_what_is_refused_is_asked_again_after_a_while_and_said_once(caplog) -> None:
    world = World(Trigger(10))
    world.manager.refuses = "no machine"
    world.comes(10)
    world.manager.refuses = ""
    while world.now_s + 5 < 5 + ASK_AGAIN_S:
        world.comes(0)
        assert not world.manager.launched
    world.manager.refuses = "no machine"
    world.comes(0)
    assert caplog.messages == ["cam: its trigger gets no update yet: no machine"]
    world.manager.refuses = ""
    world.comes(0, 0, 0)
    assert world.manager.launched == [(10, "trigger")]


def test_a_model_that_is_right_often_enough_is_judged_again_when_as_many_more_have_come() -> None:
    world = World(Trigger(100, accuracy=0.9))
    world.store.right = 0.9
    world.comes(99, 1, 50, 49)
    assert world.store.judged == [(100, 100)]
    world.comes(1)
    assert world.store.judged == [(100, 100), (200, 100)]
    assert not world.manager.launched
    world.store.right = 0.89
    world.comes(100)
    assert world.manager.launched == [(300, "trigger")]


def test_an_update_that_somebody_asked_for_counts_too() -> None:
    world = World(Trigger(100, accuracy=0.9))
    world.comes(150)
    world.store.new = 0
    world.store.right = 0.5
    world.comes(99)
    assert not world.manager.launched
    world.comes(1)
    assert world.manager.launched == [(100, "trigger")]


@pytest.mark.parametrize(("accuracy", "fallen"), [(0.5, True), (0.9, False), (1.0, False)])
def test_without_a_threshold_a_model_is_updated_whatever_it_is(accuracy, fallen) -> None:
    assert Trigger(1, 0.9).fallen(accuracy) is fallen
    assert Trigger(1).fallen(accuracy)

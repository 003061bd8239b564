"""Tests of planning when the scheduler's process dies during a run."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import ray
from ray.exceptions import ActorDiedError, RayTaskError

from ekya.runtime.planning import ActorPlanner


@dataclass
class Actors:
    """Fake scheduler actors by number: dead ones, and ones that are still starting."""

    dead: set[int] = field(default_factory=set)
    starting: set[int] = field(default_factory=set)
    made: int = 0

    def __post_init__(self):
        self.scheduler = self._number(0)

    def make_scheduler(self):
        self.made += 1
        return self._number(self.made)

    def _number(self, number):
        return SimpleNamespace(
            plan=SimpleNamespace(remote=lambda view: (number, view)),
            ready=SimpleNamespace(remote=lambda: number),
        )


@pytest.fixture
def actors(monkeypatch):
    actors = Actors()

    def get(reference):
        number, view = reference
        if number in actors.dead:
            raise ActorDiedError
        if isinstance(view, Exception):
            raise view
        return (view, f"planned by {number}"), 1.5

    def wait(references, timeout):
        return [one for one in references if one not in actors.starting], None

    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "wait", wait)
    return actors


@pytest.fixture
def planner(actors):
    return ActorPlanner(actors, SimpleNamespace(plan=lambda view: (view, "planned here")))


def test_the_scheduler_plans(planner):
    assert planner.plan("first") == ("first", "planned by 0")
    assert planner.planning_ms == [1.5]


def test_while_a_dead_scheduler_is_started_again_plans_are_made_here(actors, planner, caplog):
    actors.dead, actors.starting = {0}, {1}
    assert planner.plan("first") == ("first", "planned here")
    assert planner.plan("second") == ("second", "planned here")
    actors.starting = set()
    assert planner.plan("third") == ("third", "planned by 1")
    assert len(planner.planning_ms) == 3
    (record,) = caplog.records
    assert (record.levelname, record.exc_info) == ("WARNING", None)
    assert record.message.startswith("the scheduler died (The actor died unexpectedly")


def test_a_scheduler_that_dies_again_and_again_is_not_started_for_ever(actors, planner, caplog):
    actors.dead = set(range(9))
    assert [planner.plan("view") for _ in range(6)] == 6 * [("view", "planned here")]
    assert actors.made == 2
    assert len(caplog.records) == 3
    assert "the run's own process plans from now on" in caplog.messages[-1]


def test_deaths_count_only_without_a_plan_in_between(actors, planner):
    for number in range(5):
        actors.dead.add(number)
        assert planner.plan("view") == ("view", "planned here")
        assert planner.plan("view") == ("view", f"planned by {number + 1}")


def test_a_scheduler_that_fails_is_not_asked_the_same_again(actors, planner):
    with pytest.raises(RayTaskError):
        planner.plan(RayTaskError("plan", "Traceback", ValueError("a fault")))
    assert actors.made == 0

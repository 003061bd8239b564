"""Tests of planning when the scheduler's process dies during a run."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import ray
from ray.exceptions import ActorDiedError, GetTimeoutError, RayTaskError

from ekya.core.speed import LINEAR
from ekya.core.view import WindowView
from ekya.planning.schedulers.registry import make_scheduler
from ekya.runtime.driver import planner as planning
from ekya.runtime.driver.planner import ActorPlanner


@dataclass
class Actors:
    """Fake scheduler actors by number: dead ones, and ones that are still starting."""

    dead: set[int] = field(default_factory=set)
    starting: set[int] = field(default_factory=set)
    hung: set[int] = field(default_factory=set)
    names: list[str] = field(default_factory=list)
    killed: list[int] = field(default_factory=list)
    made_for: list[str] = field(default_factory=list)
    asked: list[tuple[int, str]] = field(default_factory=list)

    def make(self, _actor_class, name, _environment, _gpu_part, word, scheduler, strategy):
        number = len(self.names)
        self.names.append(name)
        assert callable(scheduler.plan)
        self.made_for.append(word)

        def plan(scheduler, view):
            self.asked.append((number, scheduler))
            return (number, view)

        return SimpleNamespace(
            number=number,
            plan=SimpleNamespace(remote=plan),
            confirm_ready=SimpleNamespace(remote=lambda: number),
        )


@pytest.fixture
def actors(monkeypatch):
    actors = Actors()

    def get(reference, timeout):
        number, view = reference
        if number in actors.hung:
            raise GetTimeoutError
        if number in actors.dead:
            raise ActorDiedError
        if isinstance(view, Exception):
            raise view
        return (view, f"planned by {number}"), 1.5

    def wait(references, timeout):
        return [one for one in references if one not in actors.starting], None

    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(ray, "kill", lambda actor: actors.killed.append(actor.number))
    monkeypatch.setattr(planning, "make_actor", actors.make)
    monkeypatch.setattr(planning, "end_process", lambda _actor, process: actors.killed.append(process))
    return actors


@pytest.fixture
def planner(actors):
    return ActorPlanner("ekya", SimpleNamespace(plan=lambda view: (view, "planned here")), "west")


def test_plan_comes_from_the_actor(planner):
    assert planner.plan("first") == ("first", "planned by 0")
    assert list(planner.planning_ms) == [1.5]


def test_plan_while_a_dead_scheduler_restarts_is_made_here(actors, planner, caplog):
    actors.dead, actors.starting = {0}, {1}
    assert planner.plan("first") == ("first", "planned here")
    assert planner.plan("second") == ("second", "planned here")
    actors.starting = set()
    assert planner.plan("third") == ("third", "planned by 1")
    assert len(planner.planning_ms) == 3
    (record,) = caplog.records
    assert (record.levelname, record.exc_info) == ("WARNING", None)
    assert record.message.startswith("the scheduler died (The actor died unexpectedly")


def test_scheduler_that_hangs_is_killed_and_the_plan_is_made_here(actors, planner, caplog):
    actors.hung = {0}
    assert planner.plan("first") == ("first", "planned here")
    assert actors.killed == [0]
    assert planner.plan("second") == ("second", "planned by 1")
    assert "it gave no plan for" in caplog.text


def test_scheduler_that_keeps_dying_is_restarted_twice(actors, planner, caplog):
    actors.dead = set(range(9))
    assert [planner.plan("view") for _ in range(6)] == 6 * [("view", "planned here")]
    assert len(actors.names) == 3
    assert len(caplog.records) == 3
    assert "the run's own process plans from now on" in caplog.messages[-1]


def test_deaths_with_plans_in_between_do_not_add_up(actors, planner):
    for number in range(5):
        actors.dead.add(number)
        assert planner.plan("view") == ("view", "planned here")
        assert planner.plan("view") == ("view", f"planned by {number + 1}")


def test_scheduler_that_fails_is_not_restarted(actors, planner):
    with pytest.raises(RayTaskError):
        planner.plan(RayTaskError("plan", "Traceback", ValueError("a fault")))
    assert len(actors.names) == 1


def test_plan_before_the_scheduler_is_ready_is_made_here(actors, planner):
    actors.starting = {0}
    assert planner.plan("first") == ("first", "planned here")
    actors.starting = set()
    assert planner.plan("second") == ("second", "planned by 0")


def test_scheduler_has_the_name_of_its_server_and_ends_with_the_planner(actors, planner):
    actors.dead = {0}
    planner.plan("first")
    planner.close()
    assert actors.names == ["west/scheduler", "west/scheduler (restart 1)"]
    assert actors.killed == [1]


def test_other_scheduler_plans_from_now_on_also_after_its_process_died(actors, planner):
    assert planner.plan("first") == ("first", "planned by 0")
    planner.change_scheduler("thief")
    assert planner.plan("second") == ("second", "planned by 0")
    assert actors.asked == [(0, "ekya"), (0, "thief")]
    actors.dead, actors.starting = {0}, {1}
    view = WindowView(0, 10, 1000, 100, 100, 0.0, (), LINEAR)
    assert planner.plan(view) == make_scheduler("thief").plan(view), "planned here"
    assert actors.made_for == ["ekya", "thief"]


def test_actor_plans_with_the_scheduler_that_the_call_names(monkeypatch):
    """Ray may carry out two calls in the other order."""

    def named(name):
        return SimpleNamespace(plan=lambda view: (name, view))

    monkeypatch.setattr(planning, "make_scheduler", named)
    monkeypatch.setattr(planning, "freeze_loaded", lambda: None)
    actor = planning.SchedulerActor("ekya", named("ekya"))
    plans = [actor.plan(name, "view")[0] for name in ("thief", "ekya", "ekya", "thief")]
    assert plans == [("thief", "view"), ("ekya", "view"), ("ekya", "view"), ("thief", "view")]

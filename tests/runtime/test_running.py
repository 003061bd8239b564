"""The scheduler's process dies while the run goes on."""

from types import SimpleNamespace

import pytest
import ray
from ray.exceptions import ActorDiedError, RayTaskError

from ekya.errors import UserError
from ekya.runtime.running import _ask_scheduler


class Actors:
    """Schedulers, of which the first ones die when they are asked."""

    def __init__(self, mortal):
        self._mortal = mortal
        self.made = 0
        self.scheduler = self._next()

    def make_scheduler(self):
        self.made += 1
        return self._next()

    def _next(self):
        number = self.made
        return SimpleNamespace(plan=SimpleNamespace(remote=lambda view: (number < self._mortal, view)))


@pytest.fixture(autouse=True)
def _answers(monkeypatch):
    def get(reference):
        dies, view = reference
        if dies:
            raise ActorDiedError
        if isinstance(view, Exception):
            raise view
        return view, 1.5

    monkeypatch.setattr(ray, "get", get)


def test_a_dead_scheduler_is_started_again_with_a_plain_warning(caplog):
    actors = Actors(mortal=2)
    assert _ask_scheduler(actors, "view") == ("view", 1.5)
    assert actors.made == 2
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert all(record.exc_info is None for record in caplog.records)
    assert caplog.messages[0].startswith("the scheduler died (The actor died unexpectedly")


def test_a_scheduler_that_dies_whenever_it_is_asked_ends_the_run_with_a_sentence():
    with pytest.raises(UserError, match=r"the scheduler died 3 times without planning .*--resume"):
        _ask_scheduler(Actors(mortal=9), "view")


def test_a_scheduler_that_fails_is_not_asked_the_same_again():
    actors = Actors(mortal=0)
    with pytest.raises(RayTaskError):
        _ask_scheduler(actors, RayTaskError("plan", "Traceback", ValueError("a fault")))
    assert actors.made == 0

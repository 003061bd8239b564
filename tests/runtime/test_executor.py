"""What the live executor asks of actors, told to actors that only write it down."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from ekya.core import commands as cmd
from ekya.core.configs import RetrainConfig
from ekya.core.ids import BASE_VERSION, JobId, ModelVersion, StreamId
from ekya.runtime.executor import RayExecutor
from ekya.runtime.fleet_actors import StreamActors
from ekya.runtime.inference_actor import Ready
from ekya.runtime.mailbox import RunClock

CAM = StreamId("cam")
GAMMA = RetrainConfig(4, 16, 0, 0, 1.0)


@dataclass
class Method:
    """A method of an actor; what it would return stands for itself."""

    name: str
    asked: list
    gives: object

    def options(self, **_options):
        return self

    def remote(self, *arguments):
        self.asked.append((self.name, arguments))
        return self.gives if self.gives is not None else object()


@dataclass
class Actor:
    """Writes down what it is asked."""

    asked: list = field(default_factory=list)
    gives: dict = field(default_factory=dict)

    def __getattr__(self, name):
        return Method(name, self.asked, self.gives.get(name))

    def calls(self, name):
        return [arguments for called, arguments in self.asked if called == name]


@pytest.fixture
def own():
    return StreamActors(None, Actor(), Actor(), "base", "base", BASE_VERSION)


@pytest.fixture
def executor(own):
    actors = SimpleNamespace(streams={CAM: own}, preparation=Actor())
    ready = {CAM: Ready(SimpleNamespace(), {})}
    made = RayExecutor(actors, ready, [], RunClock(0), lambda _stream, _labels: None)
    made.execute([cmd.StartRetraining(CAM, JobId(1), 1, GAMMA, 500, 0.8, 1.0)])
    own.retraining.gives["hand_over"] = ("first", 0.9)
    return made


def prepare(executor, window):
    executor.execute([cmd.BeginPreparation(window, 500, (cmd.PrepareStream(CAM, (), ()),))])


def earlier_of(executor):
    return [arguments[-1] for arguments in executor._actors.preparation.calls("hand_in")]


def test_only_weights_that_came_since_the_last_labels_are_compared(executor):
    prepare(executor, 1)
    prepare(executor, 2)
    executor.execute([cmd.ServeModel(CAM, JobId(1), 4)])
    prepare(executor, 3)
    prepare(executor, 4)
    assert earlier_of(executor) == [None, None, BASE_VERSION, None]


def test_of_several_weights_in_a_window_the_last_are_compared_with_those_before_the_window(executor):
    prepare(executor, 1)
    executor.execute([cmd.ServeModel(CAM, JobId(1), epoch) for epoch in (2, 3, 4)])
    prepare(executor, 2)
    assert earlier_of(executor) == [None, BASE_VERSION]


def test_going_back_hands_inference_what_the_object_store_still_has(executor, own):
    prepare(executor, 1)
    executor.execute([cmd.ServeModel(CAM, JobId(1), 4)])
    prepare(executor, 2)
    executor.execute([cmd.RollBack(CAM, "worse")])
    assert own.inference.calls("roll_back") == [("base", ModelVersion(2), BASE_VERSION)]
    assert (own.version, own.newest_weights) == (2, "base")
    known = executor._actors.preparation.calls("know")
    assert [(version, weights) for _, _, version, weights in known] == [
        (0, "base"),
        (1, "first"),
        (2, "base"),
    ]
    executor.execute([cmd.StartRetraining(CAM, JobId(2), 2, GAMMA, 500, 0.8, 1.0)])
    assert own.retraining.calls("start")[-1][1] == "base", "what serves is what is retrained"


def test_there_is_nothing_to_go_back_to_twice_nor_after_other_labels(executor, own):
    executor.execute([cmd.RollBack(CAM, "nothing was compared")])
    prepare(executor, 1)
    executor.execute([cmd.ServeModel(CAM, JobId(1), 4)])
    prepare(executor, 2)
    executor.execute([cmd.RollBack(CAM, "worse"), cmd.RollBack(CAM, "once more")])
    prepare(executor, 3)
    executor.execute([cmd.RollBack(CAM, "late")])
    assert len(own.inference.calls("roll_back")) == 1
    assert earlier_of(executor) == [None, BASE_VERSION, None]

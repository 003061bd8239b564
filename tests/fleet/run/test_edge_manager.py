"""Deep-Edge's manager, also over REST, with a fake training."""

import asyncio
from dataclasses import dataclass, field, replace

import pytest
from aiohttp.test_utils import TestClient, TestServer

from ekya.core.errors import UserError
from ekya.fleet.papers.deep_edge.devices import NANO, PI, SIFT, TX2
from ekya.fleet.papers.deep_edge.truth import Truth
from ekya.fleet.policy.deep_edge.estimates import EdgeLimits
from ekya.fleet.policy.deep_edge.heuristic import Heuristic
from ekya.fleet.policy.deep_edge.policy import EdgePolicy
from ekya.fleet.policy.deep_edge.stopping import StopRule
from ekya.fleet.policy.job import TrainJob
from ekya.fleet.policy.names import JobName, NodeName, SiteName
from ekya.fleet.policy.places import BackgroundApp, Node, NodeState
from ekya.fleet.policy.waiting import Linear
from ekya.fleet.run.deep_edge.launcher import Launcher
from ekya.fleet.run.deep_edge.manager import EdgeManager, Ended
from ekya.fleet.run.deep_edge.rest import application
from ekya.fleet.run.deep_edge.store import Trigger
from ekya.fleet.run.deep_edge.watch import StoreWatch
from ekya.fleet.run.training.protocol import Failure, NodeWork, Progress, Trained, TrainingFailedError
from ekya.models.training.trainer import EpochResult

HERE = SiteName("edge")


@dataclass
class Handle:
    """A scripted training."""

    progress: Progress
    epochs: list = field(default_factory=list)
    moves: list = field(default_factory=list)
    stopped: bool = False

    def poll(self):
        return self.progress

    def set_epochs(self, epochs):
        self.epochs.append(epochs)
        self.progress = replace(self.progress, planned_epochs=epochs)

    def move(self, assignment):
        self.moves.append(assignment)

    def stop(self):
        self.stopped = True

    def result(self, timeout_s=None):
        if not self.progress.epochs:
            raise TrainingFailedError(self.progress.reason)
        return Trained(b"weights", self.progress.epochs[-1].validation_accuracy, len(self.progress.epochs))

    def shows(self, *accuracies, **changes):
        epochs = tuple(EpochResult(epoch, accuracy, 0.1) for epoch, accuracy in enumerate(accuracies[1:], 1))
        self.progress = replace(
            self.progress, state="training", start_accuracy=accuracies[0], epochs=epochs, **changes
        )


@dataclass
class Trainer:
    started: list = field(default_factory=list)
    gone: bool = False

    def start(self, task, assignment):
        if self.gone:
            raise UserError("there is no node b")
        self.started.append((task, assignment, Handle(Progress("starting", 20))))
        return self.started[-1][2]


@dataclass
class Store:
    came: list = field(default_factory=list)
    begun: int = 0

    def job(self):
        able = {"trains": 1.0}
        waiting = Linear(1.0, 0.0)
        return TrainJob(
            JobName("cam"), 0, 20, waiting, {HERE: 3855}, worker=able, parameter_server={"serves": 1.0}
        )

    def task(self, assignment):
        return "samples of", assignment

    def began(self):
        self.begun += 1

    def update(self, trained):
        self.came.append(trained)

    def failed(self, reason):
        self.came.append(reason)


def machine(name, kind, cpu=0.2, mem=0.3):
    able = {"serves": 1.0} if kind == PI else {"trains": 1.0}
    apps = () if kind == PI else (BackgroundApp(SIFT, 0.2),)
    return Node(NodeName(name), HERE, kind, capacity=able, state=NodeState(cpu, 0.0, mem), apps=apps)


MACHINES = (machine("a", TX2), machine("b", NANO), machine("c", NANO), machine("ps", PI, 0.05, 0.15))


class World:
    def __init__(self):
        self.now_s, self.trainer, self.store = 0.0, Trainer(), Store()
        policy = EdgePolicy("deep-edge", Heuristic(), Truth(), EdgeLimits())
        self.points = []
        self.manager = EdgeManager(
            policy,
            Launcher(self.trainer),
            StopRule(),
            silent_s=30,
            clock=lambda: self.now_s,
            learned=self.points.append,
        )
        self.hear()

    def hear(self, *without):
        for node in MACHINES:
            if node.name not in without:
                self.manager.hear(node)

    @property
    def handle(self):
        return self.trainer.started[-1][2]

    @property
    def nodes(self):
        return {part.node for part in self.trainer.started[-1][1].parts}


@pytest.fixture
def world():
    return World()


def failure(node, left_out=False):
    return Failure(NodeName(node), "worker 0", 1, "it died", left_out)


def test_an_update_is_spread_over_the_machines_by_their_states(world) -> None:
    world.manager.trigger(world.store)
    ((task, assignment, _),) = world.trainer.started
    assert task == ("samples of", assignment)
    assert world.nodes == {"a", "b", "c"}
    assert assignment.parameter_server == "ps"
    assert sum(part.chunks for part in assignment.parts) == 3855
    with pytest.raises(UserError, match="task cam is under way"):
        world.manager.trigger(world.store)


def test_without_machines_it_says_what_is_missing(world) -> None:
    world.now_s = 100
    with pytest.raises(UserError, match="no machine that could be the parameter server"):
        world.manager.trigger(world.store)


def test_a_machine_that_falls_silent_is_replaced_and_the_update_goes_on(world) -> None:
    world.manager.trigger(world.store)
    world.handle.shows(0.4)
    world.now_s = 20
    world.hear("b")
    world.manager.look()
    assert not world.handle.moves
    world.now_s = 40
    world.hear("b")
    world.manager.look()
    (moved,) = world.handle.moves
    assert {part.node for part in moved.parts} == {"a", "c"}
    assert sum(part.chunks for part in moved.parts) == 3855
    world.manager.look()
    assert len(world.handle.moves) == 1


def test_three_strikes_and_a_machine_is_out_of_this_update(world) -> None:
    world.manager.trigger(world.store)
    for strikes in (1, 2):
        world.handle.shows(0.4, failures=(failure("c"),) * strikes)
        world.manager.look()
        assert not world.handle.moves
    world.handle.shows(0.4, failures=(failure("c"),) * 3)
    world.manager.look()
    (moved,) = world.handle.moves
    assert {part.node for part in moved.parts} == {"a", "b"}


def test_strikes_outlast_a_new_launch_and_end_with_the_update(world) -> None:
    world.manager.trigger(world.store)
    world.handle.progress = Progress("failed", 20, failures=(failure("a"),) * 2, reason="all died")
    world.manager.look()
    assert world.nodes == {"b", "c"}
    world.handle.progress = Progress("failed", 20, failures=(failure("b"), failure("c")), reason="all died")
    world.manager.look()
    assert world.nodes == {"a"}
    world.handle.shows(0.4, failures=(failure("a"),))
    world.manager.look()
    (moved,) = world.handle.moves
    assert {part.node for part in moved.parts} == {"b", "c"}, "the third of a, and the first of the others"
    world.manager.kill(JobName("cam"))
    world.manager.trigger(world.store)
    assert world.nodes == {"a", "b", "c"}


def test_an_update_that_failed_is_launched_anew_without_who_broke_it(world) -> None:
    world.manager.trigger(world.store)
    world.handle.progress = Progress("failed", 20, failures=(failure("a"),), reason="all died")
    world.manager.look()
    assert len(world.trainer.started) == 2
    assert world.nodes == {"b", "c"}
    world.handle.progress = Progress("failed", 20, failures=(failure("b"), failure("c")), reason="all died")
    world.manager.look()
    assert world.nodes == {"a"}
    world.handle.progress = Progress("failed", 20, reason="no crops")
    world.manager.look()
    assert world.store.came == ["no crops"]
    assert not world.manager.tasks()


def test_one_that_cannot_be_launched_anew_has_failed_and_its_store_hears_of_it(world) -> None:
    world.manager.trigger(world.store)
    world.handle.progress = Progress("failed", 20, failures=(failure("a"),), reason="all died")
    world.trainer.gone = True
    world.manager.look()
    assert world.store.came == ["all died"]
    assert not world.manager.tasks()


def test_the_accuracy_monitor_ends_what_does_not_rise_any_more(world) -> None:
    world.manager.trigger(world.store)
    world.handle.shows(0.4, 0.7)
    world.manager.look()
    assert not world.handle.epochs
    world.handle.shows(0.4, 0.7, 0.7, 0.7, 0.7)
    world.manager.look()
    assert world.handle.epochs == [4]
    world.handle.progress = replace(world.handle.progress, state="done")
    world.manager.look()
    assert [(came.validation_accuracy, came.epoch) for came in world.store.came] == [(0.7, 4)]
    assert not world.manager.tasks()


def test_what_a_training_shows_of_its_machines_is_learned(world) -> None:
    world.manager.trigger(world.store)
    (_, assignment, _) = world.trainer.started[0]
    work = {NodeName("a"): NodeWork(10, 320, 64.0, 5.0)}
    world.handle.shows(0.4, 0.5, work=work)
    world.handle.progress = replace(world.handle.progress, state="done")
    world.manager.look()
    ((point,),) = world.points
    assert (point.kind, point.compute_s, point.update_s) == (TX2, 0.2, 0.5)
    assert point.batches == tuple(part.batch for part in assignment.parts)
    assert (point.before, point.parameter_server) == (MACHINES[0].state, MACHINES[3].state)
    world.manager.trigger(world.store)
    world.handle.shows(0.4, 0.5, work=work, failures=(failure("b"),))
    world.handle.progress = replace(world.handle.progress, state="done")
    world.manager.look()
    assert len(world.points) == 1


def test_a_machine_that_trains_keeps_the_state_that_it_had_before(world) -> None:
    world.manager.trigger(world.store)
    world.manager.hear(machine("a", TX2, cpu=0.99))
    world.manager.hear(machine("d", NANO, cpu=0.98))
    active = world.manager.active()
    assert active["a"].state == MACHINES[0].state
    assert active["d"].state.cpu == 0.98
    world.manager.kill(JobName("cam"))
    world.manager.hear(machine("a", TX2, cpu=0.99))
    assert world.manager.active()["a"].state.cpu == 0.99


def test_how_an_update_ended_can_be_asked_for(world) -> None:
    world.manager.trigger(world.store)
    world.handle.shows(0.4, 0.7, failures=(failure("b"),))
    world.handle.progress = replace(world.handle.progress, state="done")
    world.manager.look()
    assert world.manager.ended() == {"cam": Ended(1, 0.7, 1, "", "request")}
    world.manager.trigger(world.store, "trigger")
    world.handle.progress = Progress("failed", 20, reason="no crops")
    world.manager.look()
    assert world.manager.ended() == {"cam": Ended(0, None, 0, "no crops", "trigger")}


def test_who_launched_an_update_stays_known_when_it_moves_and_when_it_is_launched_anew(world) -> None:
    world.manager.trigger(world.store, "trigger")
    assert world.store.begun == 1
    world.handle.shows(0.4, failures=(failure("c"),) * 3)
    world.manager.look()
    assert world.handle.moves
    assert world.manager.tasks()["cam"][0].launched_by == "trigger"
    world.handle.progress = Progress("failed", 20, failures=(failure("a"),) * 4, reason="all died")
    world.manager.look()
    assert world.manager.tasks()["cam"][0].launched_by == "trigger"
    assert world.store.begun == 2


def test_an_update_that_does_not_begin_is_not_told_to_its_store(world, monkeypatch) -> None:
    def refuses(_task, _assignment):
        raise UserError("there is no node a")

    monkeypatch.setattr(world.trainer, "start", refuses)
    with pytest.raises(UserError, match="no node a"):
        world.manager.trigger(world.store)
    assert world.store.begun == 0


def test_a_closed_manager_has_ended_all_and_launches_nothing(world) -> None:
    world.manager.trigger(world.store)
    world.manager.close()
    assert world.handle.stopped
    assert not world.manager.tasks()
    with pytest.raises(UserError, match="cam: the manager is ending"):
        world.manager.trigger(world.store, "trigger")
    assert len(world.trainer.started) == 1


def test_a_machine_that_cannot_train_is_told_why(world) -> None:
    def admit(node):
        if node.name != "d":
            raise UserError(f"there is no Ray node {node.name}")

    async def talk():
        async with TestClient(TestServer(application(world.manager, {}, admit=admit))) as client:
            for name, status in (("d", 200), ("moon", 400)):
                said = await client.post("/monitor", params={"node": name, "kind": NANO})
                assert said.status == status
            told = await (await client.get("/monitor")).json()
            assert "d" in told["active"]
            assert "moon" not in told["active"]
            assert told["ended"] == {}

    asyncio.run(talk())


def test_the_service_watches_its_stores_and_tells_what_a_trigger_launched(world) -> None:
    @dataclass
    class Watched(Store):
        name: str = "cam"

        def new_samples(self):
            return 200

    def breaks():
        raise RuntimeError("one that cannot be looked at does not hide the others")

    watches = [breaks, StoreWatch(Watched(), Trigger(200), world.manager).look]

    async def talk():
        async with TestClient(TestServer(application(world.manager, {}, watches=watches))) as client:
            while not (told := await (await client.get("/monitor")).json())["tasks"]:
                await asyncio.sleep(0.01)
            assert told["tasks"]["cam"]["launched_by"] == "trigger"
            assert len(world.trainer.started) == 1

    asyncio.run(talk())


def test_the_components_are_reached_over_rest(world) -> None:
    async def talk():
        async with TestClient(TestServer(application(world.manager, {"cam": world.store}))) as client:
            said = await client.post(
                "/monitor", params={"node": "d", "kind": NANO, "trains": "1", "cpu": "0.3"}
            )
            assert said.status == 200
            told = await (await client.get("/monitor")).json()
            assert told["active"]["d"] == {"cpu": 0.3, "gpu": 0.0, "mem": 0.0}
            plan = await (await client.get("/solver", params={"store": "cam"})).json()
            assert {one["node"] for one in plan["workers"]} == {"a", "b", "c", "d"}
            assert not world.trainer.started
            assert (await client.post("/launcher", params={"store": "cam"})).status == 200
            world.handle.shows(0.4, 0.5)
            told = await (await client.get("/monitor")).json()
            assert told["tasks"]["cam"]["epochs"] == 1
            assert told["tasks"]["cam"]["launched_by"] == "request"
            told = await (await client.get("/accuracy", params={"task": "cam"})).json()
            assert (told["start"], told["accuracies"], told["planned"]) == (0.4, [0.5], 20)
            assert (await client.delete("/launcher", params={"task": "cam"})).status == 200
            assert world.handle.stopped
            for path, params, sentence in (
                ("/solver", {"store": "x"}, "there is no data store x; there is cam"),
                ("/solver", {}, "store is missing"),
                ("/accuracy", {"task": "cam"}, "no task cam is under way"),
            ):
                said = await client.get(path, params=params)
                assert said.status == 400
                assert sentence in (await said.json())["error"]
            for params, sentence in (
                ({"node": "d", "kind": NANO, "cpu": "3"}, "cpu=3 is no part"),
                ({"node": "d", "kind": NANO, "cpu": "nan"}, "cpu=nan is no number"),
                ({"node": "d", "kind": NANO, "app": "sift"}, "give its name and its deadline"),
            ):
                said = await client.post("/monitor", params=params)
                assert said.status == 400
                assert sentence in (await said.json())["error"]
            said = await client.post("/profiler")
            assert "profiles nothing; start it with --kind" in (await said.json())["error"]

    asyncio.run(talk())

"""A crew of processes in threads: deaths, complaints, silence, interruptions, and checkpoints kept."""

import threading
from collections import Counter, defaultdict
from concurrent.futures import Future, wait
from dataclasses import replace
from itertools import count

import pytest
from crews import EAST, HALVES, SITES, WEST, parted, process, task_of
from waiting import wait_until, wait_until_blocked

from ekya.core.errors import UserError
from ekya.fleet.policy.assignment import NodePart
from ekya.fleet.run.calls import CallError
from ekya.fleet.run.training import crew as crew_module
from ekya.fleet.run.training.crew import SILENT_S, Crew, CrewLostError, Dead
from ekya.fleet.run.training.dealing import deal
from ekya.fleet.run.training.material import Material
from ekya.fleet.run.training.protocol import FleetNode, NoProcessError

NODES = {name: FleetNode(name, SITES[name], name, 300) for name in (EAST, WEST)}


class Mortal:
    """A process that dies in, or is silent from, the call of one method on; ``called`` counts the calls.

    ``models`` counts the start models that were sent to it, and ``answers`` has all replies, by method.
    """

    def __init__(self, node):
        self._process, self.called, self.answers = process(node.name), Counter(), defaultdict(list)
        self.dies_in = self.silent_from = None
        self.models = 0

    @property
    def actor(self):
        return self._process._served

    def call(self, method, *arguments):
        self.answers[method].append(self._answer(method, *arguments))
        return self.answers[method][-1]

    def _answer(self, method, *arguments):
        self.called[arguments[0] if method == "on_server" else method] += 1
        if method in ("serve_training", "work_on_shard"):
            self.models += sum(isinstance(one, bytes) for one in arguments)
        answer = Future()
        if self.called["end"] or self.called[self.dies_in]:
            answer.set_exception(CallError("killed"))
        elif not self.called[self.silent_from]:
            return self._process.call(method, *arguments)
        return answer

    def end_process(self):
        self.called["end"] += 1


class Source:
    """Makes such processes, on the given nodes only."""

    def __init__(self, nodes=(EAST, WEST)):
        self.nodes, self.made, self.given_back = nodes, {}, []

    def take_process(self, node):
        if node.name not in self.nodes:
            raise NoProcessError(f"{node.site} gives no process away: it takes no guests")
        self.made.setdefault(node.name, []).append(Mortal(node))
        return self.made[node.name][-1]

    def give_back_process(self, node, process):
        self.given_back.append(process)


class Ledger:
    """Counts crops by node."""

    def __init__(self):
        self.crops = Counter()

    def count_sent(self, origin, target, kind, count):
        pass

    def count_work(self, worker, work):
        self.crops[worker.node] += work.crops


class Assembled:
    """A crew with its source and ledger; each worker has a node of its own."""

    def __init__(self, task, assignment=HALVES, source=None):
        self.material, self.source, self.ledger = Material.from_task(task), source or Source(), Ledger()
        self.assignment, self.shards = assignment, deal(self.material.crops_by_node(SITES), assignment)
        self.clock = lambda: 0.0
        self.crew = Crew(self.material, NODES, self.source, self.ledger, self.now_s)

    def now_s(self):
        return self.clock()

    def assemble(self, snapshot=None):
        return self.crew.assemble(self.material.lesson_plan(self.assignment), self.shards, EAST, snapshot)

    def run_epoch(self, epoch, interrupted=lambda: False):
        return self.crew.run_epoch(epoch, interrupted)


BESIDE = parted(NodePart(EAST), NodePart(WEST))


@pytest.fixture
def there(model):
    """East has the server and a worker, west a worker."""
    made = Assembled(task_of(model), BESIDE)
    made.assemble()
    made.worker, made.server = made.source.made[EAST]
    (made.west,) = made.source.made[WEST]
    return made


def test_who_gives_no_process_away_is_lost_by_name_and_nobody_elses_process_is(model) -> None:
    made = Assembled(task_of(model), BESIDE, Source([EAST]))
    with pytest.raises(CrewLostError, match="worker 0 on west: west gives no process away") as lost:
        made.assemble()
    (west,) = (worker for worker in made.shards if worker.node == WEST)
    assert lost.value.dead == (Dead(NODES[WEST], west, "west gives no process away: it takes no guests"),)
    made.crew.release_processes()
    assert made.source.given_back == made.source.made[EAST]


def test_a_start_model_is_sent_to_each_process_once(there) -> None:
    processes = (there.worker, there.server, there.west)
    assert [one.models for one in processes] == [1, 1, 1]
    there.assignment = parted(NodePart(EAST, share_milli=500), NodePart(WEST, share_milli=400))
    there.shards = deal(there.material.crops_by_node(SITES), there.assignment)
    there.assemble()
    assert [one.models for one in processes] == [1, 1, 1]
    assert there.west.called["work_on_shard"] == 2
    assert there.run_epoch(0) is not None


def test_a_start_model_is_sent_to_a_lone_worker_once(model) -> None:
    lone = Assembled(task_of(model), parted(NodePart(EAST)))
    lone.assemble()
    (process,) = lone.source.made[EAST]
    assert (process.models, process.called["work_on_shard"]) == (1, 1)
    assert lone.run_epoch(0) is not None


def test_a_worker_dies_and_the_others_go_on_with_another_from_the_checkpoint(there) -> None:
    _, checkpoint = there.run_epoch(0)
    there.west.called.clear()
    there.west.dies_in = "run_epoch"
    with pytest.raises(CrewLostError, match=r"^worker 0 on west: killed$"):
        there.run_epoch(1)
    assert there.ledger.crops[WEST] == 30, "of the first epoch"
    there.assemble(checkpoint.fetch())
    end, _ = there.run_epoch(1)
    assert (end.result.epoch, there.ledger.crops[WEST]) == (2, 60)
    assert [len(there.source.made[node]) for node in (EAST, WEST)] == [2, 2]


def test_a_server_that_dies_aborts_the_workers_epoch_and_takes_its_checkpoint_along(there) -> None:
    _, checkpoint = there.run_epoch(0)
    there.server.called.clear()
    there.server.dies_in = "pull_weights"
    with pytest.raises(CrewLostError, match=r"^parameter server on east: killed$"):
        there.run_epoch(1)
    with pytest.raises(CallError, match="killed"):
        checkpoint.fetch()


def test_one_that_is_silent_is_dead_and_is_not_waited_for(there, monkeypatch) -> None:
    ticks, waited_for = count(1000, SILENT_S + 1), []

    def time_passes():
        """Returns the time, which is long after the last, and by which all others have answered."""
        for one in (there.worker, there.server):
            wait_until(lambda one=one: all(ping.done() for ping in one.answers["pid"]))
        return next(ticks)

    def waits(asked, *within):
        waited_for.append(set(asked))
        return wait(asked, *within)

    there.west.silent_from = "run_epoch"
    there.clock = time_passes
    monkeypatch.setattr(crew_module, "wait", waits)
    with pytest.raises(CrewLostError, match=r"^worker 0 on west: no answer for 60 s$"):
        there.run_epoch(0)
    assert there.west.called["end"] == 1
    assert waited_for[-1].isdisjoint(there.west.answers["run_epoch"])
    assert there.server.called["abort_epoch"] == 1, "the other worker waited for the dead one"


def test_one_that_fails_at_its_task_while_all_are_alive_is_the_suspect(there) -> None:
    there.west.actor.release_training()
    with pytest.raises(CrewLostError, match=r"^worker 0 on west: LookupError: this worker works on no"):
        there.run_epoch(0)


def test_a_complaint_about_input_is_the_users(model) -> None:
    with pytest.raises(UserError, match="safetensors"):
        Assembled(replace(task_of(model), start=b"no weights")).assemble()


def test_an_epoch_that_is_interrupted_ends_and_its_abort_meets_no_later_one(there) -> None:
    actor, aborted = there.server.actor, []
    abort = actor.abort_epoch

    def late():
        abort()
        wait_until(lambda: all(one.done() for one in there.west.answers["run_epoch"]))
        wait_until_blocked(threading.main_thread())
        aborted.append("in time")

    actor.abort_epoch = late
    assert there.run_epoch(0, lambda: True) is None
    assert aborted == ["in time"]
    end, _ = there.run_epoch(0)
    assert end.result.epoch == 1


def test_a_server_keeps_the_newest_and_the_best_checkpoint_until_it_is_restored(model, monkeypatch) -> None:
    made = Assembled(task_of(model), parted(NodePart(EAST)))
    made.assemble()
    (process,) = made.source.made[EAST]
    accuracies = iter((0.5, 0.8, 0.8, 0.6, 0.7))
    monkeypatch.setattr(process.actor._server._updates, "_evaluate", lambda: next(accuracies))
    told = [made.run_epoch(epoch)[1] for epoch in range(5)]
    kept = []
    for place, checkpoint in enumerate(told, 1):
        try:
            checkpoint.fetch()
        except CallError as error:
            assert str(error) == "LookupError: a newer checkpoint has taken its place"
        else:
            kept.append(place)
    assert kept == [3, 5]
    best = told[2].fetch()
    monkeypatch.undo()
    made.assemble(best)
    for checkpoint in told:
        with pytest.raises(CallError, match="a newer checkpoint"):
            checkpoint.fetch()
    assert made.run_epoch(3)[0].result.epoch == 4


def test_a_process_that_is_given_back_answers_with_no_other_trainings_checkpoint(model) -> None:
    one, other = (Assembled(task_of(model), parted(NodePart(EAST))) for _ in range(2))
    one.assemble()
    (process,) = one.source.made[EAST]
    _, checkpoint = one.run_epoch(0)
    other.source.take_process = lambda node: process
    other.assemble()
    other.run_epoch(0)
    with pytest.raises(CallError):
        checkpoint.fetch()

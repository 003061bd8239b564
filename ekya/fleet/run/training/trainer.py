"""Training on several nodes: epochs, moves, and recovery from failures."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ekya.core.errors import UserError
from ekya.core.weights import RemoteCheckpoint
from ekya.fleet.policy.assignment import JobAssignment
from ekya.fleet.policy.places import JobName, NodeName
from ekya.fleet.policy.view import Strikes
from ekya.fleet.run.training.crew import Crew, CrewLostError
from ekya.fleet.run.training.dealing import deal, deal_again
from ekya.fleet.run.training.homecoming import Homecoming, RemoteEpochCheckpoint
from ekya.fleet.run.training.material import ALWAYS, LessonPlan, Material
from ekya.fleet.run.training.protocol import (
    Failure,
    FleetNode,
    ProcessSource,
    State,
    TrainingFailedError,
    TrainingProgress,
    TrainingTask,
)
from ekya.fleet.run.training.server import ServedEpoch
from ekya.fleet.run.training.workers import EpochWork, PayloadKind, Shard, WorkerId
from ekya.models.edge.checkpoints import from_bytes, to_bytes
from ekya.models.training.snapshot import Snapshot, restore_weights
from ekya.models.training.trainee import Trainee

_LOG = logging.getLogger(__name__)


class ProcessFleetTrainer:
    """Trains on nodes whose processes come from a source.

    Args:
        nodes: that assignments may name.
        processes: their source; its idle processes end when this is closed.
    """

    def __init__(self, nodes: Mapping[NodeName, FleetNode], processes: ProcessSource) -> None:
        self._nodes = dict(nodes)
        self._processes = processes

    def add_node(self, node: FleetNode) -> None:
        """Adds a node, or updates one that has another share or has come back as another machine.

        A training under way uses it from its next move or failure on. If the node was excluded there, it may
        take part again as another machine, but not with only another share.
        """
        self._nodes[node.name] = node

    def start_training(self, task: TrainingTask, assignment: JobAssignment) -> "FleetTraining":
        """Begins a training; its processes start in the background.

        Raises:
            UserError: the assignment names a node that does not exist, or assigns no work.
            ValueError: the task cannot be trained on several nodes.
        """
        _check(task.job, assignment, (task.home, *task.training), self._nodes)
        training = FleetTraining(task, assignment, self._nodes, self._processes)
        training.start_thread()
        return training

    def close(self) -> None:
        """Ends the processes that no training uses."""
        self._processes.close()


@dataclass(frozen=True, slots=True, eq=False)
class _Setting:
    """Present distribution of a training."""

    assignment: JobAssignment
    plan: LessonPlan
    shards: Mapping[WorkerId, Shard]
    server: NodeName


class FleetTraining:
    """One training, driven by a separate thread. Thread-safe; only ``wait`` and ``result`` block."""

    def __init__(
        self,
        task: TrainingTask,
        assignment: JobAssignment,
        nodes: Mapping[NodeName, FleetNode],
        processes: ProcessSource,
    ) -> None:
        self._task, self._nodes = task, nodes
        self._material = Material.from_task(task)
        self._crew = Crew(self._material, nodes, processes, self)
        self._lock = threading.Condition()
        self._progress = TrainingProgress("starting", task.config.epochs)
        self._next: JobAssignment | None = assignment
        self._stopped = threading.Event()
        self._strikes = Strikes()
        self._checkpoints = Homecoming(self._came_home, task.checkpoints_part)
        self._thread = threading.Thread(target=self._run, name=f"training {task.job}", daemon=True)

    def start_thread(self) -> None:
        """Starts its thread."""
        self._thread.start()

    def poll(self) -> TrainingProgress:
        """Returns the progress."""
        with self._lock:
            return self._progress

    def pids(self) -> dict[tuple[NodeName, str], int]:
        """Returns the ids of its processes, by node and by role as in ``Failure.what``."""
        return self._crew.pids()

    def set_epochs(self, epochs: int) -> None:
        """Sets the number of epochs in total: an accuracy monitor's estimate, or γ's again.

        Where at least as many are done, the training ends with the epoch under way.
        """
        if epochs < 1:
            raise ValueError(f"a training has at least one epoch, not {epochs}")
        self._note(planned_epochs=epochs)

    def move_to(self, assignment: JobAssignment) -> None:
        """Continues under another assignment after the epoch under way, from its checkpoint.

        A stranded training continues immediately. Excluded nodes stay excluded.

        Raises:
            UserError: it names a node that does not exist, or assigns no work.
        """
        _check(self._task.job, assignment, (), self._nodes)
        with self._lock:
            self._next = assignment
            self._lock.notify_all()

    def stop_training(self) -> None:
        """Ends the training within a step, or as soon as a checkpoint is home where there is none yet.

        The best epoch at home remains its result.
        """
        with self._lock:
            self._stopped.set()
            self._lock.notify_all()
        self._checkpoints.stop_transfers()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits for the end, at most for the timeout; returns whether the training has ended."""
        with self._lock:
            return self._lock.wait_for(lambda: self._progress.over, timeout_s)

    def result(self, timeout_s: float | None = None) -> RemoteCheckpoint:
        """Waits for the end and returns the result.

        Raises:
            TimeoutError: the training has not ended by then.
            TrainingFailedError: no epoch was ever completed.
        """
        if not self.wait(timeout_s):
            raise TimeoutError(f"{self._task.job} is not trained within {timeout_s:g} s")
        self._checkpoints.wait_home()
        trained = self.best_yet()
        if trained is None:
            raise TrainingFailedError(
                self.poll().reason or f"{self._task.job} was stopped in its first epoch"
            )
        return trained

    def best_yet(self) -> RemoteCheckpoint | None:
        """Returns the best checkpoint at home, made anew in each call; None before the first epoch."""
        best, task = self._checkpoints.best, self._task
        if best is None:
            return None
        trainee = Trainee(from_bytes(task.start), task.config, task.classes, task.seed)
        restore_weights(Snapshot.from_bytes(best.data), trainee)
        return RemoteCheckpoint(to_bytes(trainee.model()), best.accuracy, best.epochs)

    def count_sent(self, origin: NodeName, target: NodeName, kind: PayloadKind, count: int) -> None:
        """Counts traffic of its crew."""
        with self._lock:
            self._note(traffic=self._progress.traffic.with_bytes(origin, target, kind, count))

    def count_work(self, worker: WorkerId, work: EpochWork) -> None:
        """Counts work of its crew."""
        with self._lock:
            before = self._progress.work
            self._note(work={**before, worker.node: before.get(worker.node, EpochWork()).with_work(work)})

    def _run(self) -> None:
        try:
            self._train()
        except UserError as error:
            self._fail(str(error), self._crew.release_processes)
        except Exception as error:
            _LOG.exception("%s fails", self._task.job)
            # The processes are in an unknown state and must not be used again.
            self._fail(f"{type(error).__name__}: {error}", self._crew.end_processes)

    def _fail(self, reason: str, let_go: Callable[[], None]) -> None:
        try:
            let_go()
        finally:
            self._note(state="failed", reason=reason)

    def _train(self) -> None:
        setting = self._standing(self._ordered(None))
        while setting is not None:
            try:
                self._assemble(setting)
                self._epochs()
            except CrewLostError as lost:
                _LOG.warning("%s: %s", self._task.job, lost)
                self._strike(lost)
                self._go_back()
                setting = self._standing(setting)
                continue
            if self._stopped.is_set():
                if self._checkpoints.best is None:  # Its only ones are lost as soon as the processes rest.
                    self._checkpoints.wait_home()
                break
            self._go_back()
            # Without the lock: an order that comes from now on is as late as one after the end.
            if self._next is None:
                break
            setting = self._standing(self._ordered(setting))
        self._crew.release_processes()
        ended: State = "stopped" if self._stopped.is_set() else "done"
        self._note(state=ended)

    def _ordered(self, before: _Setting | None) -> _Setting:
        """Returns the setting of the last assignment."""
        with self._lock:
            ordered, self._next = self._next, None
        if ordered is None:
            raise RuntimeError("nothing was ordered")
        if before is not None:
            with self._lock:
                self._note(moves=self._progress.moves + 1)
        sites = {name: node.site for name, node in dict(self._nodes).items()}
        shards = deal(self._material.crops_by_node(sites), ordered)
        server = ordered.parameter_server or ordered.parts[0].node
        return _Setting(ordered, self._material.lesson_plan(ordered), shards, server)

    def _standing(self, setting: _Setting) -> _Setting | None:
        """Returns the setting without excluded nodes; waits for another where none is left, None if stopped.

        Raises:
            UserError: every node is excluded, and the task does not wait for others.
        """
        while (allowed := self._allowed(setting)) is None:
            names = ", ".join(sorted({worker.node for worker in setting.shards}))
            reason = f"{self._task.job}: no node is left to train on ({names} failed); give it others"
            if not self._task.waits:
                raise UserError(reason)
            _LOG.warning("%s", reason)
            self._crew.release_processes()
            self._note(state="stranded", reason=reason)
            with self._lock:
                self._lock.wait_for(lambda: self._stopped.is_set() or self._next is not None)
            if self._stopped.is_set():
                return None
            self._note(state="starting", reason="")
            setting = self._ordered(setting)
        return allowed

    def _allowed(self, setting: _Setting) -> _Setting | None:
        """Returns the setting without excluded nodes; None where all nodes with workers are excluded."""
        nodes = dict(self._nodes)
        out = {name for name, node in nodes.items() if node.machine_id in self._strikes.out}
        if all(worker.node in out for worker in setting.shards):
            return None
        if out.isdisjoint({setting.server, *(worker.node for worker in setting.shards)}):
            return setting
        shards = deal_again(setting.shards, out, setting.assignment)
        server = setting.server if setting.server not in out else min(shards).node
        return replace(setting, shards=shards, server=server)

    def _assemble(self, setting: _Setting) -> None:
        newest = self._checkpoints.newest
        snapshot = None if newest is None else newest.data
        accuracy = self._crew.assemble(setting.plan, setting.shards, setting.server, snapshot)
        self._note(state="training", **({"start_accuracy": accuracy} if newest is None else {}))

    def _epochs(self) -> None:
        """Runs epochs until the training is over or has to move."""
        while not self._stopped.is_set():
            with self._lock:
                done = len(self._progress.epochs)
                if self._next is not None or done >= self._progress.planned_epochs:
                    return
                last = done + 1 == self._progress.planned_epochs
            began_s = time.monotonic()
            above = ALWAYS if last else self._checkpoints.wanted_above
            ended = self._crew.run_epoch(done, self._stopped.is_set, above)
            if ended is not None:
                end, checkpoint = ended
                self._note_epoch(end, time.monotonic() - began_s)
                if checkpoint is not None:
                    self._checkpoints.add_checkpoint(checkpoint)

    def _go_back(self) -> None:
        """Resets the progress to the newest checkpoint, which is fetched home first if it is not lost."""
        self._checkpoints.wait_home()
        newest = self._checkpoints.newest
        home = 0 if newest is None else newest.epochs
        with self._lock:
            self._note(epochs=self._progress.epochs[:home], epoch_s=self._progress.epoch_s[:home])

    def _came_home(self, checkpoint: RemoteEpochCheckpoint, count: int) -> None:
        self.count_sent(checkpoint.node, self._task.home, PayloadKind.CHECKPOINT, count)
        with self._lock:
            self._note(epochs_home=max(self._progress.epochs_home, checkpoint.epochs))

    def _strike(self, lost: CrewLostError) -> None:
        for dead in lost.dead:
            machine_id = dead.on.machine_id
            there = self._crew.is_there(machine_id)
            self._strikes = (
                self._strikes.with_failures(machine_id) if there else self._strikes.with_dead_node(machine_id)
            )
            epoch = len(self.poll().epochs) + 1
            failure = Failure(dead.node, dead.what, epoch, dead.reason, machine_id in self._strikes.out)
            with self._lock:
                self._note(failures=(*self._progress.failures, failure))

    def _note_epoch(self, end: ServedEpoch, took_s: float) -> None:
        with self._lock:
            now = self._progress
            self._note(
                epochs=(*now.epochs, end.result),
                epoch_s=(*now.epoch_s, took_s),
                stalest=max(now.stalest, end.stalest),
            )

    def _note(self, **changes: Any) -> None:
        with self._lock:
            self._progress = replace(self._progress, **changes)
            self._lock.notify_all()


def _check(
    job: JobName, assignment: JobAssignment, others: Iterable[NodeName], known: Mapping[NodeName, FleetNode]
) -> None:
    """Raises UserError where a node does not exist, or the assignment names none."""
    server = () if assignment.parameter_server is None else (assignment.parameter_server,)
    for node in (*(part.node for part in assignment.parts), *server, *others):
        if node not in known:
            names = ", ".join(known)
            raise UserError(f"{job}: there is no node {node}; the fleet has {names}")
    if not assignment.parts:
        raise UserError(f"{job}: its assignment names no node; give it at least one")

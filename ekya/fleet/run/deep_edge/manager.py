"""The Deep-Edge Manager in its online mode (§IV.C, Figure 8)."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from ekya.core.errors import UserError
from ekya.core.units import US_PER_S
from ekya.fleet.policy.assignment import Assignment
from ekya.fleet.policy.deep_edge.profile import ProfilePoint
from ekya.fleet.policy.deep_edge.stopping import Outlook, StopRule, outlook
from ekya.fleet.policy.deep_edge.watching import Resources
from ekya.fleet.policy.job import Left, TrainJob
from ekya.fleet.policy.names import JobName, NodeName
from ekya.fleet.policy.places import Node, Places
from ekya.fleet.policy.protocol import FleetPolicy
from ekya.fleet.policy.strikes import Strikes
from ekya.fleet.policy.view import FleetView, JobState
from ekya.fleet.run.deep_edge.launcher import Launched, Launcher
from ekya.fleet.run.deep_edge.profiler import lived
from ekya.fleet.run.deep_edge.store import DataStore, LaunchedBy
from ekya.fleet.run.training.protocol import Failure, Progress, TrainingFailedError

_LOG = logging.getLogger(__name__)

SILENT_S = 30.0
"""Without a heartbeat for this long, a machine counts as dead."""


@dataclass(slots=True)
class _Followed:
    """Monitoring state of a task.

    Attributes:
        before: failures under its former launches.
        epochs: that the Accuracy Monitor has judged.
        outlook: its last estimate.
        nodes: machines and their states when the task began.
    """

    before: tuple[Failure, ...] = ()
    epochs: int = 0
    outlook: Outlook | None = None
    nodes: dict[NodeName, Node] = field(default_factory=dict)

    def failures(self, progress: Progress) -> tuple[Failure, ...]:
        """Returns all failures under the task."""
        return self.before + progress.failures

    def strikes(self, progress: Progress) -> Strikes:
        """Returns its failures by machine; one that comes back keeps its own."""
        return Strikes().struck(*(failure.node for failure in self.failures(progress)))


@dataclass(frozen=True, slots=True)
class Ended:
    """Outcome of an update.

    Attributes:
        epochs: that were done.
        accuracy: of the weights given to the store, on its validation crops; None without weights.
        failures: processes and machines that died during it.
        reason: why there are no weights; empty otherwise.
        launched_by: request or trigger.
    """

    epochs: int
    accuracy: float | None
    failures: int
    reason: str
    launched_by: LaunchedBy


class EdgeManager:
    """Combines Solver, Resource Monitor, Launcher and Accuracy Monitor. Thread-safe.

    Args:
        policy: the solver with its models and limits.
        launcher: starts trainings.
        rule: decides whether another epoch is worth its time.
        silent_s: without a heartbeat for this long, a machine counts as dead.
        clock: monotonic seconds; tests pass another.
        learned: callback for the machines' speeds measured in each training.
    """

    def __init__(
        self,
        policy: FleetPolicy,
        launcher: Launcher,
        rule: StopRule,
        silent_s: float = SILENT_S,
        clock: Callable[[], float] = time.monotonic,
        learned: Callable[[Sequence[ProfilePoint]], object] = lambda _points: None,
    ) -> None:
        self._learned = learned
        self._policy, self._launcher, self._rule, self._clock = policy, launcher, rule, clock
        self._resources = Resources(round(silent_s * US_PER_S))
        self._followed: dict[JobName, _Followed] = {}
        self._ended: dict[JobName, Ended] = {}
        self._lock = threading.RLock()
        self._closed = False

    def hear(self, node: Node) -> None:
        """Receives a machine's heartbeat with its state.

        During a training a machine cannot measure X_i, its state without the training; the last one stays.
        """
        with self._lock:
            for name, task in self._launcher.tasks.items():
                before = self._followed[name].nodes.get(node.name)
                if before is not None and node.name in _used(task.assignment):
                    node = replace(node, state=before.state)
            self._resources = self._resources.hears(node, self._now_us())

    def ended(self) -> dict[JobName, Ended]:
        """Returns the outcome of the last update of each name."""
        with self._lock:
            return dict(self._ended)

    def active(self) -> dict[NodeName, Node]:
        """Returns the map of active workers."""
        with self._lock:
            return self._resources.active(self._now_us())

    def tasks(self) -> dict[JobName, tuple[Launched, Outlook | None]]:
        """Returns the updates under way, each with the estimate of the epochs that it needs."""
        with self._lock:
            followed = self._followed
            return {name: (task, followed[name].outlook) for name, task in self._launcher.tasks.items()}

    def solve(self, job: TrainJob) -> Assignment:
        """Solves shards, batches and machines for an update, by the machines' present states.

        Raises:
            UserError: no machine can train it, with the reason.
        """
        with self._lock:
            return self._solve(job)

    def trigger(self, store: DataStore, launched_by: LaunchedBy = "request") -> Assignment:
        """Solves an update of a data store, fetches its samples and launches it.

        Raises:
            UserError: no machine can train it, one of this name is under way, or the manager is closed.
        """
        with self._lock:
            job = store.job()
            if self._closed:
                raise UserError(f"{job.name}: the manager is ending; start it again, and ask then")
            assignment = self._solve(job)
            self._launcher.launch(job, assignment, store, launched_by)
            self._followed[job.name] = _Followed(nodes=self.active())
            return assignment

    def kill(self, job: JobName) -> None:
        """Ends an update.

        Raises:
            UserError: there is none of this name.
        """
        with self._lock:
            self._launcher.kill(job)
            del self._followed[job]

    def close(self) -> None:
        """Ends all updates under way and refuses new ones."""
        with self._lock:
            self._closed = True
            for name in self._launcher.tasks:
                _LOG.warning("%s was not over, and is ended", name)
                self.kill(name)

    def look(self) -> None:
        """Runs one round of both monitors; to be called periodically."""
        with self._lock:
            for name, task in self._launcher.tasks.items():
                progress = task.progress
                if progress.over:
                    self._end(name, task, progress)
                else:
                    self._relaunch(name, task, progress)
                    self._judge(name, task, progress)

    def _end(self, name: JobName, task: Launched, progress: Progress) -> None:
        """Hands the weights to the store; a failed update is launched again where machines remain for it."""
        if progress.state == "failed" and progress.failures:
            followed = self._followed[name]
            broke = {failure.node for failure in progress.failures}
            try:
                assignment = self._solve(task.job, broke | followed.strikes(progress).out)
                self._launcher.launch_anew(name, assignment)
            except UserError as error:
                _LOG.warning("%s is not launched again: %s", name, error)
            else:
                self._followed[name] = _Followed(followed.failures(progress), nodes=self.active())
                return
        points = lived(task.assignment, self._followed[name].nodes, progress)
        if points:
            self._learned(points)
        self._launcher.forget(name)
        del self._followed[name]
        epochs, failures, by = len(progress.epochs), len(progress.failures), task.launched_by
        try:
            trained = task.handle.result(0)
            task.store.update(trained)
        except (TrainingFailedError, UserError) as error:
            self._ended[name] = Ended(epochs, None, failures, str(error), by)
            task.store.failed(str(error))
        else:
            self._ended[name] = Ended(epochs, trained.validation_accuracy, failures, "", by)

    def _relaunch(self, name: JobName, task: Launched, progress: Progress) -> None:
        """Moves a task away from excluded or silent machines; it continues from its checkpoint."""
        out = self._followed[name].strikes(progress).out
        used = _used(task.assignment)
        active = self._resources.active(self._now_us())
        gone = (used & out) | (used - active.keys())
        if not gone:
            return
        try:
            assignment = self._solve(task.job, out | gone)
        except UserError as error:
            _LOG.warning("%s goes on as it can: %s", name, error)
            return
        self._launcher.move(name, assignment)
        followed = self._followed[name]
        followed.nodes = {**active, **followed.nodes}

    def _judge(self, name: JobName, task: Launched, progress: Progress) -> None:
        """Accuracy Monitor: estimates after each epoch how many epochs the task should have."""
        followed = self._followed[name]
        if progress.start_accuracy is None or len(progress.epochs) <= followed.epochs:
            return
        followed.epochs = len(progress.epochs)
        measured = [progress.start_accuracy, *(epoch.validation_accuracy for epoch in progress.epochs)]
        followed.outlook = outlook(measured, task.job.epochs, self._rule)
        if followed.outlook.epochs != progress.planned_epochs:
            _LOG.info("%s: %s", name, followed.outlook.reason)
            task.handle.set_epochs(followed.outlook.epochs)

    def _solve(self, job: TrainJob, out: Collection[str] = ()) -> Assignment:
        taken = {
            part.node
            for name, task in self._launcher.tasks.items()
            if name != job.name
            for part in task.assignment.parts
        }
        active = self._resources.active(self._now_us())
        nodes = {name: node for name, node in active.items() if name not in taken and name not in out}
        arrived = replace(job, arrives_us=0)
        view = FleetView(0, (JobState(arrived, Left.all_of(job)),), Places(nodes))
        decision = self._policy.decide(view)
        assignment = decision.of(job.name)
        if assignment is None:
            raise UserError(f"{job.name}: {decision.waiting[job.name]}; tell the states of more machines")
        return assignment

    def _now_us(self) -> int:
        return round(self._clock() * US_PER_S)


def _used(assignment: Assignment) -> set[NodeName]:
    nodes = {part.node for part in assignment.parts}
    return nodes if assignment.parameter_server is None else nodes | {assignment.parameter_server}

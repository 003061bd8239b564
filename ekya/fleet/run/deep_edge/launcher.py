"""Launcher (Deep-Edge §IV.B.4): starts updates on the solver's machines and keeps those that run."""

from dataclasses import dataclass, replace

from ekya.core.errors import UserError
from ekya.fleet.policy.assignment import Assignment
from ekya.fleet.policy.job import TrainJob
from ekya.fleet.policy.names import JobName
from ekya.fleet.run.deep_edge.store import DataStore, LaunchedBy
from ekya.fleet.run.training.protocol import FleetTrainer, Progress, TrainingHandle


@dataclass(frozen=True, slots=True, eq=False)
class Launched:
    """An update under way, with all that a new launch of it needs.

    Attributes:
        job: of the update.
        assignment: shards, batches and machines.
        store: source of its samples.
        handle: of the training.
        launched_by: request or trigger.
    """

    job: TrainJob
    assignment: Assignment
    store: DataStore
    handle: TrainingHandle
    launched_by: LaunchedBy

    @property
    def progress(self) -> Progress:
        """Current progress of the training."""
        return self.handle.poll()


class Launcher:
    """Starts, moves and ends updates, by name.

    Args:
        trainer: runs the trainings.
    """

    def __init__(self, trainer: FleetTrainer) -> None:
        self._trainer = trainer
        self._launched: dict[JobName, Launched] = {}

    @property
    def tasks(self) -> dict[JobName, Launched]:
        """All updates under way."""
        return dict(self._launched)

    def task(self, job: JobName) -> Launched:
        """Returns an update under way.

        Raises:
            UserError: there is none of this name.
        """
        if job not in self._launched:
            known = ", ".join(self._launched) or "none"
            raise UserError(f"no task {job} is under way; there is {known}")
        return self._launched[job]

    def launch(
        self, job: TrainJob, assignment: Assignment, store: DataStore, launched_by: LaunchedBy
    ) -> Launched:
        """Starts an update and notifies its store.

        Raises:
            UserError: an update of this name is under way, or a machine does not exist.
        """
        if job.name in self._launched:
            raise UserError(f"task {job.name} is under way; wait for its end, or kill it")
        handle = self._trainer.start(store.task(assignment), assignment)
        launched = Launched(job, assignment, store, handle, launched_by)
        self._launched[job.name] = launched
        store.began()
        return launched

    def launch_anew(self, job: JobName, assignment: Assignment) -> None:
        """Restarts a task from its beginning; if that fails, the former entry stays.

        Raises:
            UserError: a machine does not exist.
        """
        before = self.forget(job)
        try:
            self.launch(before.job, assignment, before.store, before.launched_by)
        except UserError:
            self._launched[job] = before
            raise

    def move(self, job: JobName, assignment: Assignment) -> None:
        """Moves a task to other machines, where it continues from its last checkpoint."""
        task = self.task(job)
        task.handle.move(assignment)
        self._launched[job] = replace(task, assignment=assignment)

    def kill(self, job: JobName) -> None:
        """Ends the processes of a task and forgets it."""
        self.task(job).handle.stop()
        del self._launched[job]

    def forget(self, job: JobName) -> Launched:
        """Removes a task that is over and returns it."""
        task = self.task(job)
        del self._launched[job]
        return task

"""Records the versions of served models; their weights are in the run folder."""

from ekya.control.protocols import Batch
from ekya.control.step import StepResult
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.units import JobId
from ekya.pipeline.record import ModelRecord
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_state import ModelRow, StateStore


class ModelKeeper:
    """Observer of the loop that writes a row for each hot swap and roll-back."""

    def __init__(self, folder: RunFolder, store: StateStore) -> None:
        self._folder = folder
        self._store = store
        self._started: dict[JobId, cmd.StartRetraining] = {}

    def __call__(self, batch: Batch, turn: StepResult) -> None:
        """Records the model changes of a step."""
        for command in turn.commands:
            if isinstance(command, cmd.StartRetraining):
                self._started[command.job] = command
        for event in batch.events:
            if isinstance(event, ev.RolledBack):
                record = ModelRecord(self._folder, self._store, event.stream)
                record.serve_again(event.version, event.of, event.t_us)
            if isinstance(event, ev.ModelSwapped) and event.job in self._started:
                started = self._started[event.job]
                path = self._folder.model(event.stream, event.version)
                self._store.put_model(
                    ModelRow(
                        stream=event.stream,
                        version=event.version,
                        window=started.window,
                        path=self._folder.relative(path),
                        gamma=started.config,
                        validation_accuracy=event.validation_accuracy,
                        served_from_us=event.t_us,
                    )
                )

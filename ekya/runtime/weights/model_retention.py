"""Observers of a live run that keep its records bounded: models that no one needs any more, and windows."""

import logging
from collections import deque
from collections.abc import Iterable

from ekya.control.protocols import Batch
from ekya.control.step import StepResult
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.errors import UserError
from ekya.core.units import ModelVersion, StreamId
from ekya.results.storage.model_files import remove_spent
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_state import StateStore

_LOG = logging.getLogger(__name__)

_BACK = 2
"""The shadow gate goes back to what served when labels were taken before the last."""


class ModelPruner:
    """Removes earlier weights of a stream at each change of its model. It follows ``ModelKeeper``.

    What may serve again stays, however many models came after it.

    Args:
        folder, store: of the run.
        keep: number of a stream's newest models that stay.
    """

    def __init__(self, folder: RunFolder, store: StateStore, keep: int) -> None:
        self._folder, self._store, self._keep = folder, store, keep
        # Versions that served when the last labels were taken.
        self._at_labels: dict[StreamId, deque[ModelVersion]] = {}
        self._being_labelled: dict[StreamId, ModelVersion] = {}
        # Streams that are told to serve earlier weights, and the windows that may still open before they do.
        self._going_back: dict[StreamId, int] = {}

    def __call__(self, batch: Batch, result: StepResult) -> None:
        """Follows a step of the loop."""
        added = {event.stream for event in batch.events if isinstance(event, ev.StreamAdded)}
        self._forget(added & self._at_labels.keys())  # an earlier one of this name
        versions = {stream.stream: stream.version for stream in result.state.fleet.streams}
        for stream, version in versions.items():
            self._at_labels.setdefault(stream, deque([version], maxlen=_BACK))
        swapped = set()
        for event in batch.events:
            if isinstance(event, ev.WindowOpened):
                going = self._going_back.items()
                self._going_back = {stream: windows - 1 for stream, windows in going if windows}
            elif isinstance(event, ev.LabelsReady) and event.stream in self._being_labelled:
                self._at_labels[event.stream].append(self._being_labelled.pop(event.stream))
            elif isinstance(event, ev.Swapped):
                swapped.add(event.stream)
                if isinstance(event, ev.RolledBack):
                    self._going_back.pop(event.stream, None)
        for command in result.commands:
            if isinstance(command, cmd.BeginPreparation):
                asked = {one.stream for one in command.streams}
                self._being_labelled |= {one: versions[one] for one in asked & versions.keys()}
            elif isinstance(command, cmd.RollBack):
                self._going_back[command.stream] = 1
        for stream in swapped - self._going_back.keys():
            self._prune(stream)
        self._forget(self._at_labels.keys() - versions.keys())

    def _prune(self, stream: StreamId) -> None:
        if stream not in self._at_labels:
            return
        since = self._at_labels[stream][0]
        try:
            remove_spent(self._folder, self._store, stream, self._keep, since)
        except (UserError, OSError) as error:  # the run goes on with more on its disk
            _LOG.warning("%s: earlier weights cannot be removed: %s", stream, error)

    def _forget(self, removed: Iterable[StreamId]) -> None:
        """Forgets streams that were removed from the run."""
        for stream in list(removed):
            del self._at_labels[stream]
            self._being_labelled.pop(stream, None)
            self._going_back.pop(stream, None)


class WindowKeeper:
    """Records windows in ``state.sqlite`` as they open, so that labels can be removed by their age."""

    def __init__(self, store: StateStore) -> None:
        self._store = store

    def __call__(self, batch: Batch, result: StepResult) -> None:
        """Follows a step of the loop."""
        for event in batch.events:
            if isinstance(event, ev.WindowOpened):
                self._store.put_window(event.index, event.t_us, event.end_us)

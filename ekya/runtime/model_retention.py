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
"""The shadow gate goes back to what was evaluated in the preparation before, and another stream may adopt
what served when its own preparation began, in this window or the last."""


class ModelPruner:
    """Removes earlier weights of a stream at each change of its model. It follows ``ModelKeeper``.

    Args:
        folder, store: of the run.
        keep: number of a stream's newest models that stay.
    """

    def __init__(self, folder: RunFolder, store: StateStore, keep: int) -> None:
        self._folder, self._store, self._keep = folder, store, keep
        # Versions that served when the last windows opened, and when the last preparations began.
        self._at_windows: dict[StreamId, deque[ModelVersion]] = {}
        self._at_preparations: dict[StreamId, deque[ModelVersion]] = {}

    def __call__(self, batch: Batch, result: StepResult) -> None:
        """Follows a step of the loop."""
        versions = {stream.stream: stream.version for stream in result.state.fleet.streams}
        opened = any(isinstance(event, ev.WindowOpened) for event in batch.events)
        prepared = {
            one.stream
            for command in result.commands
            if isinstance(command, cmd.BeginPreparation)
            for one in command.streams
        }
        _note(self._at_windows, versions, versions if opened else ())
        _note(self._at_preparations, versions, prepared)
        for stream in {event.stream for event in batch.events if isinstance(event, ev.Swapped)}:
            since = min(self._at_windows[stream][0], self._at_preparations[stream][0])
            try:
                remove_spent(self._folder, self._store, stream, self._keep, since)
            except (UserError, OSError) as error:  # the run goes on with more on its disk
                _LOG.warning("%s: earlier weights cannot be removed: %s", stream, error)


class WindowKeeper:
    """Records windows in ``state.sqlite`` as they open, so that labels can be removed by their age."""

    def __init__(self, store: StateStore) -> None:
        self._store = store

    def __call__(self, batch: Batch, result: StepResult) -> None:
        """Follows a step of the loop."""
        for event in batch.events:
            if isinstance(event, ev.WindowOpened):
                self._store.put_window(event.index, event.t_us, event.end_us)


def _note(
    known: dict[StreamId, deque[ModelVersion]],
    versions: dict[StreamId, ModelVersion],
    now: Iterable[StreamId],
) -> None:
    """Notes the versions of streams that are new, and of ``now``; forgets streams that are gone."""
    for gone in known.keys() - versions.keys():
        del known[gone]
    for stream, version in versions.items():
        if stream not in known:
            known[stream] = deque([version], maxlen=_BACK)
    for stream in now:
        if stream in known:
            known[stream].append(versions[stream])

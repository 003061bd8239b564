"""The zoo of a live run: models are kept in a thread of its own, since the loop must not wait for a disk."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from ekya.core import commands as cmd
from ekya.core.units import ModelVersion, StreamId
from ekya.core.weights import KeptModel
from ekya.pipeline.zoo_folder import ZooFolder
from ekya.results.storage.run_folder import RunFolder
from ekya.runtime.actors.actor_kinds import LentWeights
from ekya.system.files import write_bytes_atomic

_LOG = logging.getLogger(__name__)

_WRITTEN_S = 30.0
"""Longest wait for weights that serve already, and which their trainer still writes."""

_LOOK_S = 0.05


class ZooKeeper:
    """Keeps models and lends them. Its methods return at once, except ``read_weights``, which reads a file.

    Args:
        zoo: that it writes to alone; what it looks up there changes in one step.
        folder: of the run.
    """

    def __init__(self, zoo: ZooFolder, folder: RunFolder) -> None:
        self._zoo, self._folder = zoo, folder
        self._writer = ThreadPoolExecutor(1, "zoo")
        self._closing = threading.Event()

    def keep_model(self, command: cmd.KeepModel) -> None:
        """Adds the weights of a command once they are written, and removes others."""
        weights = self._folder.model(command.stream, command.model.version)
        self._submit(partial(self._keep, command, weights))

    def kept_model(self, number: int | None) -> KeptModel | None:
        """Returns what is known of a kept model; None if it is kept no more."""
        return None if number is None else self._zoo.model(number)

    def lend_models(self, numbers: Sequence[int]) -> tuple[LentWeights, ...]:
        """Returns kept models that a stream tries; those that are kept no more are left out."""
        lent = []
        for number in numbers:
            kept, fetch = self._zoo.model(number), self._zoo.reader(number)
            if kept is not None and fetch is not None:
                lent.append(LentWeights(kept, fetch))
        return tuple(lent)

    def read_weights(self, number: int) -> bytes | None:
        """Returns the weights of a kept model that is to serve; None if they cannot be read."""
        return self._zoo.read(number)

    def record_serving(self, number: int, stream: StreamId, version: ModelVersion, weights: bytes) -> None:
        """Records that a kept model serves a stream as this version, with a file in the run folder."""
        self._submit(partial(self._serves, number, self._folder.model(stream, version), weights))

    def close(self) -> None:
        """Returns when everything that is there is written."""
        self._closing.set()
        self._writer.shutdown()
        self._zoo.close()

    def _submit(self, write: Callable[[], None]) -> None:
        def write_or_warn() -> None:
            try:
                write()
            except Exception as error:  # the run goes on without this model
                _LOG.warning("a model cannot be kept: %s", error)

        self._writer.submit(write_or_warn)

    def _keep(self, command: cmd.KeepModel, weights: Path) -> None:
        give_up_s = time.monotonic() + _WRITTEN_S
        while not weights.is_file() and time.monotonic() < give_up_s and not self._closing.wait(_LOOK_S):
            pass
        self._zoo.keep(command.model, weights, command.forget)

    def _serves(self, number: int, path: Path, weights: bytes) -> None:
        write_bytes_atomic(path, weights)
        self._zoo.use(number)

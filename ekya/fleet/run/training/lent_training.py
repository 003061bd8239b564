"""A training for another service, on a process of this one."""

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ekya.core.errors import NotThereError, UserError
from ekya.fleet.run.training.bundle_file import digest_of
from ekya.fleet.run.training.processes import Process, ProcessSource
from ekya.fleet.run.training.protocol import MOST_ATTEMPTS, Begun, CallError, EpochOutcome, LentProgress

_LOG = logging.getLogger(__name__)


class LentTraining:
    """Trains in a thread until its epochs are done, or it is stopped. Thread-safe.

    Args:
        loan: under which it runs.
        bundle: file with what it needs; removed at the end.
        share_milli: of the GPU.
        processes: source of its process.
        over: called at the end, in its thread.
    """

    def __init__(
        self, loan: str, bundle: Path, share_milli: int, processes: ProcessSource, over: Callable[[], None]
    ) -> None:
        self._loan, self._bundle, self._share_milli = loan, bundle, share_milli
        self._processes, self._over = processes, over
        self._lock = threading.Lock()
        self._progress, self._best = LentProgress(), b""
        self._planned: int | None = None
        self._stopped = threading.Event()
        self._process: Process | None = None
        threading.Thread(target=self._run, name=f"lent {loan}", daemon=True).start()

    def poll(self) -> LentProgress:
        """Returns the progress."""
        return self._progress

    def set_epochs(self, epochs: int) -> None:
        """Sets the number of epochs in total."""
        self._planned = epochs

    def read_checkpoint(self, digest: str) -> bytes:
        """Returns the best checkpoint.

        Raises:
            NotThereError: it has another SHA-256, since a better one has come.
        """
        with self._lock:
            if digest != self._progress.best:
                raise NotThereError("a better checkpoint has taken its place")
            return self._best

    def stop(self) -> None:
        """Ends it within a step."""
        self._stopped.set()
        process = self._process
        if process is not None:
            process.tell("abort_epoch", self._loan)

    def _run(self) -> None:
        try:
            while not self._attempt():
                pass
        except (UserError, CallError) as error:
            self._note(state="failed", reason=str(error))
        except Exception as error:
            _LOG.exception("%s fails", self._loan)
            self._note(state="failed", reason=f"{type(error).__name__}: {error}")
        else:
            self._note(state="stopped" if self._stopped.is_set() else "done")
        finally:
            with suppress(OSError):
                self._bundle.unlink()
            self._over()

    def _attempt(self) -> bool:
        """Trains on a process; returns False where that died and another may go on."""
        process = self._processes.take_process()
        try:
            self._train(process)
        except CallError as error:
            process.end_process()
            if self._stopped.is_set():
                return True
            _LOG.warning("%s: its process has died: %s", self._loan, error)
            now = self._progress
            failures = (*now.failures, str(error))
            self._note(
                failures=failures, epochs=tuple(one for one in now.epochs if one.epoch <= now.best_epoch)
            )
            if len(failures) >= MOST_ATTEMPTS:
                raise
            return False
        except BaseException:
            process.end_process()
            raise
        self._processes.give_back_process(process)
        return True

    def _train(self, process: Process) -> None:
        begun: Begun = process.ask(
            "begin_training", self._loan, self._bundle, self._best or None, self._share_milli
        )
        self._process, done = process, begun.epochs_done  # What is being prepared is not aborted.
        self._note(state="training", start_accuracy=begun.accuracy)
        while not self._stopped.is_set() and done < (self._planned or begun.planned_epochs):
            ended: tuple[EpochOutcome, bytes | None] | None = process.ask("run_epoch")
            if ended is None:
                return
            outcome, snapshot = ended
            done = outcome.result.epoch
            best = {} if snapshot is None else {"best": digest_of(snapshot), "best_epoch": done}
            with self._lock:
                self._best = snapshot or self._best
                now = self._progress
                self._progress = replace(
                    now,
                    epochs=(*now.epochs, outcome.result),
                    crops=now.crops + outcome.crops,
                    took_s=now.took_s + outcome.took_s,
                    **best,  # type: ignore[arg-type]
                )

    def _note(self, **changes: Any) -> None:
        with self._lock:
            self._progress = replace(self._progress, **changes)

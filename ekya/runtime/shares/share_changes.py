"""Carries out share changes through actor calls, in the command of the ledger, and returns replies to it."""

import logging
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from ray.exceptions import RayActorError, RayError

from ekya.control.options import LoopOptions
from ekya.control.share_ledger import Overdue, ShareCommand, ShareLedger, Timeouts
from ekya.core import events as ev
from ekya.core.configs import InferenceConfig
from ekya.core.shares import ShareHolder, Work, inference_holder
from ekya.core.units import US_PER_S, JobId, StreamId
from ekya.gpu.backends.backend import Resized
from ekya.planning.placement.homes import PREPARATION_GPU
from ekya.runtime.actors.actor_messages import RunClock, in_words
from ekya.runtime.driver.actor_processes import SHARES, RemoteCalls
from ekya.runtime.driver.fleet_actors import FleetActors

_LOG = logging.getLogger(__name__)

TIMEOUTS = Timeouts(
    growers_us=1 * US_PER_S,
    limits_us={
        Work.INFERENCE: 10 * US_PER_S,
        Work.RETRAINING: 10 * US_PER_S,
        # One call of the golden model is one batch, the longest of all.
        Work.PREPARATION: 30 * US_PER_S,
    },
)
"""Timeouts for batches of zero duration; ``release_timeouts`` adds the duration of batches."""

_TIMEOUT_BATCHES = 100
"""Timeout in batches. Beside other jobs, at a small share, a batch may take many times as long as alone, and
losing a retraining is expensive."""


def release_timeouts(batch_s: float) -> Timeouts:
    """Returns the timeouts for releasing a share, where the longest batch takes ``batch_s`` seconds alone."""
    batches_us = int(_TIMEOUT_BATCHES * batch_s * US_PER_S)
    limits_us = {work: limit_us + batches_us for work, limit_us in TIMEOUTS.limits_us.items()}
    return replace(TIMEOUTS, limits_us=limits_us)


Begin = Callable[[int, int], Any]
"""Begins a job at a share, with the command's serial number; returns the reference of its reply."""


def ledger_for(options: LoopOptions, home: Callable[[StreamId], int], batch_s: float = 0.0) -> ShareLedger:
    """Returns an empty ledger: a pool for each GPU or node if streams have homes, otherwise one.

    Args:
        options: of the loop.
        home: returns the GPU of a stream's processes.
        batch_s: the longest batch of a job on this machine, in seconds.
    """
    limits, step_milli = release_timeouts(batch_s), options.share_step_milli
    if not options.homes:
        return ShareLedger((options.capacity_milli,), lambda holder: 0, limits, step_milli)

    pools = options.pool_by_place

    def pool_of(holder: ShareHolder) -> int:
        return pools[PREPARATION_GPU if holder.stream is None else home(holder.stream)]

    return ShareLedger(options.pools, pool_of, limits, step_milli)


class ShareChanges:
    """Sends share commands to the actors. No method blocks.

    Args:
        actors: those that hold shares.
        ledger: share ledger, still empty.
        clock: run time.
        calls: table of the calls in flight.
        emit: callback for events.
    """

    def __init__(
        self,
        actors: FleetActors,
        ledger: ShareLedger,
        clock: RunClock,
        calls: RemoteCalls,
        emit: Callable[[ev.Event], None],
    ) -> None:
        self._actors = actors
        self._ledger = ledger
        self._clock = clock
        self._calls = calls
        self._emit = emit
        self._begin: dict[ShareHolder, Begin] = {}
        self._lambdas: dict[StreamId, InferenceConfig] = {}

    def left_s(self) -> float:
        """Returns the seconds until ``pass_time`` is due; infinite if only a reply can change anything."""
        now_us = self._clock.now_us()
        due_us = self._ledger.next_due_us(now_us)
        return math.inf if due_us is None else (due_us - now_us) / US_PER_S

    def resize_pool(self, capacity_milli: int) -> None:
        """Changes the capacity, where it is one pool."""
        self._send(self._ledger.resize_pool(0, capacity_milli, self._clock.now_us()))

    def set_inference(self, stream: StreamId, config: InferenceConfig, share_milli: int, epoch: int) -> None:
        """Sets λ and share of a stream's inference; λ changes together with the share."""
        self._lambdas[stream] = config
        self.resize_job(inference_holder(stream), share_milli, epoch)

    def start_job(self, holder: ShareHolder, share_milli: int, epoch: int, begin: Begin) -> None:
        """Begins a job as soon as there is a share for it."""
        self._begin[holder] = begin
        self.resize_job(holder, share_milli, epoch)

    def resize_job(self, holder: ShareHolder, share_milli: int, epoch: int) -> None:
        """Changes the share of a job, including one that has not begun yet."""
        self._send(self._ledger.set_target(holder, share_milli, epoch, self._clock.now_us()))

    def release_inference(self, stream: StreamId) -> None:
        """Releases the inference share of a stream without frames."""
        if inference_holder(stream) in self._ledger.holders:
            self.resize_job(inference_holder(stream), 0, 0)

    def end_job(self, holder: ShareHolder) -> None:
        """Ends a job, or releases the share of one that has ended."""
        self._begin.pop(holder, None)
        self._send(self._ledger.release_holder(holder, self._clock.now_us()))

    def release_worker(self, work: Work, stream: StreamId | None) -> None:
        """Removes all jobs of a dead worker, including those that were to begin there."""
        gone = [one for one in self._ledger.holders if (one.work, one.stream) == (work, stream)]
        for holder in gone:
            self._begin.pop(holder, None)
        self._send(self._ledger.remove_dead_holders(gone, self._clock.now_us()))

    def training_streams(self) -> Counter[StreamId]:
        """Returns the number of retrainings of each stream that hold a share, or are to get one."""
        holders = self._ledger.holders
        return Counter(
            one.stream for one in holders if one.work is Work.RETRAINING and one.stream is not None
        )

    def pass_time(self, end: Callable[[ShareHolder], None]) -> None:
        """Ends holders that exceed their timeout, and gives free shares to those that wait for them.

        ``end`` ends the worker of a holder; its death is reported elsewhere.
        """
        overdue, commands = self._ledger.pass_time(self._clock.now_us())
        for one in overdue:
            self._report_overdue(one)
            end(one.holder)
        self._send(commands)

    def _report_overdue(self, one: Overdue) -> None:
        holder = one.holder
        _LOG.warning(
            "%s of %s has not released its share for %.1f s and is ended",
            holder.work,
            holder.stream or "all",
            one.waited_us / US_PER_S,
        )
        self._emit(ev.ShareOverdue(max(self._clock.now_us(), 0), holder, one.epoch, one.waited_us))

    def _send(self, commands: list[ShareCommand]) -> None:
        for command in commands:
            begins = command.holder in self._begin
            self._calls.add_call(self._call(command), partial(self._replied, command, begins))

    def _replied(
        self, command: ShareCommand, begins: bool, resized: Resized | None, error: RayError | None
    ) -> None:
        holder, now_us = command.holder, max(self._clock.now_us(), 0)
        # The death of a worker is handled elsewhere.
        if error is not None and not isinstance(error, RayActorError):
            _LOG.error("%s of %s could not change its share: %s", holder.work, holder.stream or "all", error)
            if begins and holder.work is Work.RETRAINING and holder.stream is not None:
                # Nothing has begun that could report its failure.
                job, reason = JobId(holder.number), in_words(error)
                self._emit(ev.RetrainFailed(now_us, holder.stream, job, reason))
                self.end_job(holder)
        if resized is None:
            return
        if command.changes:
            self._emit(
                ev.ShareResized(
                    now_us, holder, command.epoch, resized.share_milli, resized.took_us, resized.note
                )
            )
        self._send(self._ledger.confirm_command(command, now_us))

    def _call(self, command: ShareCommand) -> Any:
        """Sends a command to the actor of its holder."""
        holder, begin = command.holder, self._begin.pop(command.holder, None)
        # The first order of a job begins it at the share that was free, which may be less than was planned.
        if begin is not None:
            return begin(command.share_milli, command.serial)
        if holder.stream is None:
            preparation = self._actors.preparation
            if command.leaves:
                return _in_group(preparation.end_preparation).remote(holder.number, round=holder.round)
            return _in_group(preparation.resize_preparation).remote(
                holder.number, command.share_milli, command.serial, round=holder.round
            )
        own = self._actors.streams[holder.stream]
        if holder.work is Work.INFERENCE:
            configure, config = _in_group(own.inference.set_inference), self._lambdas[holder.stream]
            return configure.remote(holder.stream, config, command.share_milli, command.serial)
        job = JobId(holder.number)
        if command.leaves:
            return _in_group(own.retraining.stop_retraining).remote(holder.stream, job)
        return _in_group(own.retraining.resize_retraining).remote(
            holder.stream, job, command.share_milli, command.serial
        )


def _in_group(method: Any) -> Any:
    return method.options(concurrency_group=SHARES)

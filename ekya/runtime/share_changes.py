"""Share changes to calls of actors, in the order that the ledger says, and their answers back to it."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import ray
from ray.exceptions import RayActorError, RayError

from ekya.control.options import LoopOptions
from ekya.control.resizing import Overdue, Patience, ShareLedger, ShareOrder
from ekya.core import events as ev
from ekya.core.configs import InferenceConfig
from ekya.core.ids import JobId, StreamId
from ekya.core.shares import ShareHolder, Work, inference_holder
from ekya.core.units import US_PER_S
from ekya.gpu.protocol import Resized
from ekya.placement.homes import PREPARATION_GPU
from ekya.placement.pack import rooms_milli
from ekya.runtime.actor_processes import SHARES
from ekya.runtime.fleet_actors import FleetActors

_LOG = logging.getLogger(__name__)

PATIENCE = Patience(
    growers_us=1 * US_PER_S,
    limits_us={
        Work.INFERENCE: 10 * US_PER_S,
        Work.RETRAINING: 10 * US_PER_S,
        # What the golden model is asked at once is one batch, the longest there is.
        Work.PREPARATION: 30 * US_PER_S,
    },
)
"""Where batches take no time; ``patience`` adds what they take."""

_PATIENT_BATCHES = 100
"""Beside other jobs, at a small share, a batch may take many times what it takes alone; and a lost retraining
is dear."""


def patience(batch_s: float) -> Patience:
    """How long a holder may take to let go of its share, where the longest batch takes so long alone."""
    batches_us = int(_PATIENT_BATCHES * batch_s * US_PER_S)
    limits_us = {work: limit_us + batches_us for work, limit_us in PATIENCE.limits_us.items()}
    return replace(PATIENCE, limits_us=limits_us)


Begin = Callable[[int, int], Any]
"""Begins a job at a share, by an order with a serial number, and returns the reference of its answer."""


class Clock(Protocol):
    """Run time."""

    def now_us(self) -> int:
        """Microseconds since the run began."""


def ledger_for(options: LoopOptions, batch_s: float = 0.0) -> ShareLedger:
    """An empty ledger: every GPU is a pool where processes have homes; otherwise all there is is one.

    Args:
        options: of the loop.
        batch_s: the longest batch of a job on this machine.
    """
    limits, step_milli = patience(batch_s), options.share_step_milli
    if not options.homes:
        return ShareLedger((options.capacity_milli,), lambda holder: 0, limits, step_milli)
    homes = {one.stream: one.gpu for one in options.homes}

    def gpu_of(holder: ShareHolder) -> int:
        return PREPARATION_GPU if holder.stream is None else homes[holder.stream]

    pools_milli = rooms_milli(options.capacity_milli, ())
    return ShareLedger(pools_milli, gpu_of, limits, step_milli)


class ShareChanges:
    """Who is to have which share, carried to the actors. Nothing here waits for any of them.

    Args:
        actors: those that hold shares.
        ledger: who holds what; nobody yet.
        clock: run time.
        tell: is handed what happens.
        end: ends the worker of a holder that does not answer; how that is heard of is not this one's matter.
    """

    def __init__(
        self,
        actors: FleetActors,
        ledger: ShareLedger,
        clock: Clock,
        tell: Callable[[ev.Event], None],
        end: Callable[[ShareHolder], None],
    ) -> None:
        self._actors = actors
        self._ledger = ledger
        self._clock = clock
        self._tell = tell
        self._end = end
        self._begin: dict[ShareHolder, Begin] = {}
        self._lambdas: dict[StreamId, InferenceConfig] = {}
        self._under_way: dict[Any, ShareOrder] = {}

    @property
    def references(self) -> tuple[Any, ...]:
        """Of the answers that are to come."""
        return tuple(self._under_way)

    def left_us(self) -> int | None:
        """Until ``pass_time`` has something to do; None where only an answer can change anything."""
        now_us = self._clock.now_us()
        due_us = self._ledger.next_due_us(now_us)
        return None if due_us is None else due_us - now_us

    def configure(self, stream: StreamId, config: InferenceConfig, share_milli: int, epoch: int) -> None:
        """Another λ or share for a stream's inference; λ changes when the share does."""
        self._lambdas[stream] = config
        self.resize(inference_holder(stream), share_milli, epoch)

    def begin(self, holder: ShareHolder, share_milli: int, epoch: int, begin: Begin) -> None:
        """A job that begins as soon as there is a share for it."""
        self._begin[holder] = begin
        self.resize(holder, share_milli, epoch)

    def resize(self, holder: ShareHolder, share_milli: int, epoch: int) -> None:
        """Another share for a job, or for one that has not begun yet."""
        self._send(self._ledger.aim(holder, share_milli, epoch, self._clock.now_us()))

    def silence(self, stream: StreamId) -> None:
        """A stream without frames gives the share of its inference back."""
        if inference_holder(stream) in self._ledger.holders:
            self.resize(inference_holder(stream), 0, 0)

    def leave(self, holder: ShareHolder) -> None:
        """A job ends, or has ended its work."""
        self._begin.pop(holder, None)
        self._send(self._ledger.leave(holder, self._clock.now_us()))

    def died(self, work: Work, stream: StreamId | None) -> None:
        """A worker's process has ended, and with it every job that was in it or was to begin there."""
        gone = [one for one in self._ledger.holders if (one.work, one.stream) == (work, stream)]
        for holder in gone:
            self._begin.pop(holder, None)
        self._send(self._ledger.gone(gone, self._clock.now_us()))

    def hear(self, reference: Any) -> bool:
        """Takes an answer; False where the reference is of something else."""
        order = self._under_way.pop(reference, None)
        if order is None:
            return False
        try:
            resized: Resized | None = ray.get(reference)
        except RayActorError:
            return True  # A dead worker tells of itself elsewhere.
        except RayError as error:
            holder = order.holder
            _LOG.error("%s of %s could not change its share: %s", holder.work, holder.stream or "all", error)
            return True
        if resized is not None:
            self._answered(order, resized)
        return True

    def pass_time(self) -> None:
        """Ends who has not let go within its limit, and gives what is free to those that waited for it."""
        overdue, orders = self._ledger.pass_time(self._clock.now_us())
        for one in overdue:
            self._give_up(one)
        self._send(orders)

    def _answered(self, order: ShareOrder, resized: Resized) -> None:
        now_us = max(self._clock.now_us(), 0)
        if order.changes:
            self._tell(
                ev.ShareResized(
                    now_us, order.holder, order.epoch, resized.share_milli, resized.took_us, resized.note
                )
            )
        self._send(self._ledger.answer(order, now_us))

    def _give_up(self, one: Overdue) -> None:
        holder = one.holder
        _LOG.warning(
            "%s of %s has not let go of its share for %.1f s and is ended",
            holder.work,
            holder.stream or "all",
            one.waited_us / US_PER_S,
        )
        self._tell(ev.ShareOverdue(max(self._clock.now_us(), 0), holder, one.epoch, one.waited_us))
        self._end(holder)

    def _send(self, orders: list[ShareOrder]) -> None:
        for order in orders:
            self._under_way[self._call(order)] = order

    def _call(self, order: ShareOrder) -> Any:
        holder, begin = order.holder, self._begin.pop(order.holder, None)
        if begin is not None:
            return begin(order.share_milli, order.serial)
        if holder.stream is None:
            actor = self._actors.preparation
            if order.leaves:
                return _order(actor.end).remote(holder.number)
            return _order(actor.resize).remote(holder.number, order.share_milli, order.serial)
        own = self._actors.streams[holder.stream]
        if holder.work is Work.INFERENCE:
            config = self._lambdas[holder.stream]
            asked = _order(own.inference.configure)
            return asked.remote(holder.stream, config, order.share_milli, order.serial)
        if order.leaves:
            return _order(own.retraining.stop).remote(holder.stream, JobId(holder.number))
        resize = _order(own.retraining.resize)
        return resize.remote(holder.stream, JobId(holder.number), order.share_milli, order.serial)


def _order(method: Any) -> Any:
    return method.options(concurrency_group=SHARES)

"""Shares on virtual time: work done at the speed of its share, and changes that jobs confirm at once."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from ekya.control.share_ledger import ShareCommand, ShareLedger, Timeouts
from ekya.core.commands import BeginPreparation, ResizeRetraining, SetInference, StartRetraining
from ekya.core.events import ShareResized
from ekya.core.shares import ShareHolder, Work
from ekya.core.speed import SpeedCurve
from ekya.core.units import US_PER_S


class ShareWork:
    """Work in consecutive steps.

    Args:
        speed: at a share.
        now_us: start of the first step.
        share_milli: share of the first step, until it is changed.
        gpu_s: GPU-seconds of the first step.
    """

    def __init__(self, speed: SpeedCurve, now_us: int, share_milli: int, gpu_s: float) -> None:
        self._speed = speed
        self._since_us = now_us
        self._share_milli = share_milli
        self._left_gpu_s = gpu_s
        self._used_gpu_s = 0.0
        self._pace = 1.0

    @property
    def speed_alone(self) -> float:
        """Speed of the share, at pace 1."""
        return self._speed.speed_at(self._share_milli)

    @property
    def due_us(self) -> int | None:
        """End of the current step; None while the share is 0."""
        speed = self.speed_alone * self._pace
        if speed == 0.0:
            return None
        return self._since_us + max(round(self._left_gpu_s / speed * US_PER_S), 1)

    def resize(self, share_milli: int, now_us: int) -> None:
        """Sets the share from ``now_us`` on; the finished part of the step stays."""
        self._advance(now_us)
        self._share_milli = share_milli

    def set_pace(self, pace: float, now_us: int) -> None:
        """Sets the speed from ``now_us`` on, relative to that of the share alone."""
        self._advance(now_us)
        self._pace = pace

    def delay(self, delay_us: int) -> None:
        """Pauses the work, for example while a checkpoint is taken."""
        self._since_us += delay_us

    def next_step(self, gpu_s: float, now_us: int) -> None:
        """Ends the current step and begins the next one."""
        self._advance(now_us)
        self._left_gpu_s = gpu_s

    def used_gpu_s(self, now_us: int) -> float:
        """Returns the GPU-seconds spent since the last call."""
        self._advance(now_us)
        used, self._used_gpu_s = self._used_gpu_s, 0.0
        return used

    def _advance(self, now_us: int) -> None:
        passed_us = max(now_us - self._since_us, 0)
        speed = self.speed_alone * self._pace
        worked = min(self._left_gpu_s, passed_us / US_PER_S * speed)
        self._left_gpu_s -= worked
        self._used_gpu_s += worked
        self._since_us = max(self._since_us, now_us)


_IN_NO_TIME = Timeouts(0, dict.fromkeys(Work, 0))

ShareCommandT = TypeVar("ShareCommandT", BeginPreparation, SetInference, StartRetraining, ResizeRetraining)
"""Command that gives a job a share."""

GoTo = Callable[[int], None]
"""Sets a job's share in thousandths; the first call starts the job."""


class InstantShares:
    """Shares of all holders in a world of one process.

    Args:
        capacity_milli: all GPUs together.
    """

    def __init__(self, capacity_milli: int) -> None:
        self._ledger = ShareLedger((capacity_milli,), lambda holder: 0, _IN_NO_TIME)
        self._jobs: dict[ShareHolder, GoTo] = {}
        self._events: list[ShareResized] = []

    def change(self, holder: ShareHolder, share_milli: int, epoch: int, now_us: int, go_to: GoTo) -> None:
        """Sets a job's share by an order of the plan with this number (``epoch``).

        Raises:
            ValueError: other holders occupy the planned share.
        """
        self._jobs[holder] = go_to
        self._carry_out(self._ledger.set_target(holder, share_milli, epoch, now_us), now_us)
        if holder in self._ledger.holders and self._ledger.held_milli(holder) != share_milli:
            raise ValueError(f"there are not {share_milli} thousandths of a GPU for {holder}")

    def carry_out(
        self,
        holder: ShareHolder,
        command: ShareCommandT,
        now_us: int,
        act: Callable[[ShareCommandT], None],
    ) -> None:
        """Executes a command that gives a job a share, at the share that is available for it.

        Raises:
            ValueError: see ``change``.
        """

        def go_to(share_milli: int) -> None:
            act(replace(command, share_milli=share_milli))

        self.change(holder, command.share_milli, command.plan_epoch, now_us, go_to)

    def silence(self, holder: ShareHolder, now_us: int) -> None:
        """Sets the share of a job without work to 0."""
        if holder in self._ledger.holders:
            self.change(holder, 0, 0, now_us, self._jobs[holder])

    def remove_holder(self, holder: ShareHolder, now_us: int) -> None:
        """Removes a job that has ended."""
        self._carry_out(self._ledger.release_holder(holder, now_us), now_us)
        self._jobs.pop(holder, None)

    def take_events(self) -> tuple[ShareResized, ...]:
        """Returns the events since the last call."""
        events, self._events = tuple(self._events), []
        return events

    def _carry_out(self, orders: list[ShareCommand], now_us: int) -> None:
        for order in orders:
            # Emit before the change: a job without work ends immediately and emits its own event.
            if order.changes:
                self._events.append(ShareResized(now_us, order.holder, order.epoch, order.share_milli, 0))
            if not order.leaves:
                self._jobs[order.holder](order.share_milli)
            self._carry_out(self._ledger.confirm_command(order, now_us), now_us)

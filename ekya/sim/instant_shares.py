"""Share changes on virtual time: the same protocol as live, with jobs that answer in no time."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from ekya.control.resizing import Patience, ShareLedger, ShareOrder
from ekya.core.commands import BeginPreparation, ResizeRetraining, SetInference, StartRetraining
from ekya.core.events import ShareResized
from ekya.core.shares import ShareHolder, Work

_IN_NO_TIME = Patience(0, dict.fromkeys(Work, 0))

ShareCommandT = TypeVar("ShareCommandT", BeginPreparation, SetInference, StartRetraining, ResizeRetraining)
"""A command that gives a job a share."""

GoTo = Callable[[int], None]
"""Brings a job to a share, in thousandths; the first time it begins there."""


class InstantShares:
    """Who holds which share in a world of one process.

    Args:
        capacity_milli: all GPUs together.
    """

    def __init__(self, capacity_milli: int) -> None:
        self._ledger = ShareLedger((capacity_milli,), lambda holder: 0, _IN_NO_TIME)
        self._jobs: dict[ShareHolder, GoTo] = {}
        self._told: list[ShareResized] = []

    def change(self, holder: ShareHolder, share_milli: int, epoch: int, now_us: int, go_to: GoTo) -> None:
        """Brings a job to a share by an order of the plan with this number.

        Raises:
            ValueError: others hold what it was planned to have.
        """
        self._jobs[holder] = go_to
        self._carry_out(self._ledger.aim(holder, share_milli, epoch, now_us), now_us)
        if holder in self._ledger.holders and self._ledger.held_milli(holder) != share_milli:
            raise ValueError(f"there are not {share_milli} thousandths of a GPU for {holder}")

    def carry_out(
        self,
        holder: ShareHolder,
        command: ShareCommandT,
        now_us: int,
        act: Callable[[ShareCommandT], None],
    ) -> None:
        """Has a command that gives a job a share carried out at the share that there is for it.

        Raises:
            ValueError: as ``change``.
        """

        def go_to(share_milli: int) -> None:
            act(replace(command, share_milli=share_milli))

        self.change(holder, command.share_milli, command.plan_epoch, now_us, go_to)

    def silence(self, holder: ShareHolder, now_us: int) -> None:
        """A job has nothing to work on for now, and gives its share back."""
        if holder in self._ledger.holders:
            self.change(holder, 0, 0, now_us, self._jobs[holder])

    def leave(self, holder: ShareHolder, now_us: int) -> None:
        """A job has ended."""
        self._carry_out(self._ledger.leave(holder, now_us), now_us)
        self._jobs.pop(holder, None)

    def take_told(self) -> tuple[ShareResized, ...]:
        """What there is to tell since the last call."""
        told, self._told = tuple(self._told), []
        return told

    def _carry_out(self, orders: list[ShareOrder], now_us: int) -> None:
        for order in orders:
            # First told, then done: a job that finds nothing to do ends at once, and tells of that.
            if order.changes:
                self._told.append(ShareResized(now_us, order.holder, order.epoch, order.share_milli, 0))
            if not order.leaves:
                self._jobs[order.holder](order.share_milli)
            self._carry_out(self._ledger.answer(order, now_us), now_us)

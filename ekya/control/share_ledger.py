"""Ledger of shares: holders shrink first, then others grow into the share that is confirmed free.

Plans are carried out in sequence, each under its number (its epoch), independent of their cause. The ledger
neither waits nor reads a clock: callers pass the time, receive commands, and report their results.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ekya.core.shares import ShareHolder, Work


@dataclass(frozen=True, slots=True)
class ShareCommand:
    """Command to a holder to change to a share, at its next batch boundary.

    Attributes:
        holder: recipient of the command.
        epoch: number of its plan.
        serial: number of the command; of two to one holder only the higher one is valid.
        share_milli: the new share.
        leaves: the holder is to end and release its share.
        changes: the share differs from that of the previous command.
    """

    holder: ShareHolder
    epoch: int
    serial: int
    share_milli: int
    leaves: bool = False
    changes: bool = True


@dataclass(frozen=True, slots=True)
class Overdue:
    """A holder that missed its time limit; ``waited_us`` counts from the first command to shrink."""

    holder: ShareHolder
    epoch: int
    waited_us: int


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Time limits for holders.

    Attributes:
        growers_us: how long growing holders wait for shrinking ones before they get only the free share.
        limits_us: by kind of work, time after which a holder that has not released its share is ended.
    """

    growers_us: int
    limits_us: Mapping[Work, int]


@dataclass(slots=True, eq=False)
class _Held:
    """State of one holder.

    Attributes:
        target_milli: share in the newest plan.
        held_milli: upper bound of its use now.
        rank: growing holders are served in the order of their ranks.
        command: last command to it.
        asked_us: time of the oldest unconfirmed command to shrink; None without one.
    """

    pool: int
    target_milli: int = 0
    held_milli: int = 0
    rank: int = 0
    command: ShareCommand | None = None
    asked_us: int | None = None
    leaving: bool = False
    overdue: bool = False

    @property
    def grows(self) -> bool:
        return self.target_milli > self.held_milli and not (self.leaving or self.overdue)


class ShareLedger:
    """Tracks the share that each holder may be using, and issues commands.

    In every pool the sum of shares in use never exceeds the capacity, at any instant, and does not grow
    while it is above a capacity that was made smaller. A share that a holder gives up counts as used until
    the holder has confirmed or is gone, and a share that it gets counts from the command on. A late reply
    to a superseded command changes nothing. Holders whose shares fit get their planned shares once all have
    replied.
    """

    def __init__(
        self,
        pools_milli: Sequence[int],
        pool_of: Callable[[ShareHolder], int],
        timeouts: Timeouts,
        step_milli: int = 1,
    ) -> None:
        """Starts without holders.

        Args:
            pools_milli: capacity of each GPU, or of all cores together.
            pool_of: index of a holder's pool; constant for a holder.
            timeouts: time limits.
            step_milli: the smallest difference between two shares.
        """
        self._pools_milli = tuple(pools_milli)
        self._pool_of = pool_of
        self._timeouts = timeouts
        self._step_milli = step_milli
        self._holders: dict[ShareHolder, _Held] = {}
        self._epoch = 0
        self._ranks = 0
        self._serials = 0

    @property
    def holders(self) -> tuple[ShareHolder, ...]:
        """Holders with a current or planned share, or one that is still being released."""
        return tuple(self._holders)

    def held_milli(self, holder: ShareHolder) -> int:
        """Returns the upper bound of a holder's use now."""
        return self._holders[holder].held_milli if holder in self._holders else 0

    def free_milli(self, pool: int) -> int:
        """Returns the share that is certainly free."""
        held = sum(one.held_milli for one in self._holders.values() if one.pool == pool)
        return self._pools_milli[pool] - held

    def resize_pool(self, pool: int, capacity_milli: int, now_us: int) -> list[ShareCommand]:
        """Changes the capacity of a pool; returns the commands to holders that can grow now.

        While more than a smaller capacity is in use, no holder grows.
        """
        pools_milli = list(self._pools_milli)
        pools_milli[pool] = capacity_milli
        self._pools_milli = tuple(pools_milli)
        return self._grow(now_us)

    def set_target(
        self, holder: ShareHolder, share_milli: int, epoch: int, now_us: int
    ) -> list[ShareCommand]:
        """Sets a holder's planned share; returns the commands to it and to others that can grow now.

        Args:
            holder: the holder.
            share_milli: its total share, not the difference.
            epoch: number of the plan; decisions between two plans belong to the last one.
            now_us: run time.
        """
        self._epoch = max(self._epoch, epoch)
        one = self._holders.setdefault(holder, _Held(self._pool_of(holder)))
        self._ranks += 1
        one.target_milli, one.rank = share_milli, self._ranks
        commands = []
        if share_milli < one.held_milli:
            commands.append(self._shrink(holder, one, now_us))
        else:
            one.asked_us = None
            if self._needs_command(holder, one):
                commands.append(self._command(holder, one, one.held_milli))
        return [*commands, *self._grow(now_us)]

    def release_holder(self, holder: ShareHolder, now_us: int) -> list[ShareCommand]:
        """Ends a holder; one without any command is removed immediately."""
        one = self._holders.get(holder)
        if one is None or one.leaving:
            return []
        one.target_milli, one.leaving = 0, True
        if one.command is None:
            return self.remove_dead_holders([holder], now_us)
        return [self._shrink(holder, one, now_us), *self._grow(now_us)]

    def confirm_command(self, command: ShareCommand, now_us: int) -> list[ShareCommand]:
        """Confirms that a holder has carried out a command; ignored for a superseded one."""
        one = self._holders.get(command.holder)
        if one is None or one.asked_us is None or one.command is None or one.command.serial != command.serial:
            return []
        one.held_milli, one.asked_us = command.share_milli, None
        if one.leaving:
            del self._holders[command.holder]
        return self._grow(now_us)

    def remove_dead_holders(self, holders: Iterable[ShareHolder], now_us: int) -> list[ShareCommand]:
        """Removes holders whose process has ended, so that they no longer use any share."""
        for holder in holders:
            self._holders.pop(holder, None)
        return self._grow(now_us)

    def pass_time(self, now_us: int) -> tuple[list[Overdue], list[ShareCommand]]:
        """Returns holders that missed their limit, each once, and commands to those that waited for them.

        An overdue holder's share counts as used until it is gone or replies after all.
        """
        overdue = []
        for holder, one in self._holders.items():
            if one.asked_us is not None and not one.overdue and now_us >= self._limit_us(holder, one):
                one.overdue = True
                overdue.append(Overdue(holder, self._epoch, now_us - one.asked_us))
        return overdue, self._grow(now_us)

    def next_due_us(self, now_us: int) -> int | None:
        """Returns the next time at which a timeout expires; None without one."""
        marks = [mark for mark in self._marks_us() if mark > now_us]
        return min(marks, default=None)

    def _marks_us(self) -> Iterator[int]:
        for holder, one in self._holders.items():
            if one.asked_us is not None and not one.overdue:
                yield one.asked_us + self._timeouts.growers_us
                yield self._limit_us(holder, one)

    def _limit_us(self, holder: ShareHolder, one: _Held) -> int:
        return (one.asked_us or 0) + self._timeouts.limits_us[holder.work]

    def _needs_command(self, holder: ShareHolder, one: _Held) -> bool:
        """Returns whether a holder needs a command although its share stays.

        Either an earlier command to shrink is revoked, or it is an inference, whose λ may have changed.
        """
        if one.command is not None and one.command.share_milli != one.held_milli:
            return True
        return holder.work is Work.INFERENCE and one.target_milli == one.held_milli

    def _shrink(self, holder: ShareHolder, one: _Held, now_us: int) -> ShareCommand:
        # A new command does not extend the time limit of an unconfirmed one.
        one.asked_us = now_us if one.asked_us is None else one.asked_us
        return self._command(holder, one, one.target_milli)

    def _grow(self, now_us: int) -> list[ShareCommand]:
        """Returns commands to the holders that can grow now, in the order of planning."""
        commands = []
        growing = [(holder, one) for holder, one in self._holders.items() if one.grows]
        for holder, one in sorted(growing, key=lambda item: item[1].rank):
            wanted, free = one.target_milli - one.held_milli, self.free_milli(one.pool)
            if wanted > free:
                if self._is_awaited(one.pool, now_us):
                    continue
                # Less than nothing is free while a pool that was made smaller is in use above its capacity.
                wanted = max(free, 0) // self._step_milli * self._step_milli
            if wanted > 0:
                one.held_milli += wanted
                commands.append(self._command(holder, one, one.held_milli))
        return commands

    def _is_awaited(self, pool: int, now_us: int) -> bool:
        """Returns whether a holder may still shrink in time, so that one command suffices instead of two."""
        return any(
            one.asked_us is not None and not one.overdue and now_us < one.asked_us + self._timeouts.growers_us
            for one in self._holders.values()
            if one.pool == pool
        )

    def _command(self, holder: ShareHolder, one: _Held, share_milli: int) -> ShareCommand:
        self._serials += 1
        changes = one.command is None or one.command.share_milli != share_milli or one.leaving
        one.command = ShareCommand(holder, self._epoch, self._serials, share_milli, one.leaving, changes)
        return one.command

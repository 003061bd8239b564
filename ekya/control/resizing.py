"""How shares change hands: first somebody lets go, then somebody else gets what is known to be free.

Plans are carried out one after the other, each under its number (its epoch), whatever made it: a window that
opens, a retraining that completes, a camera that is lost. Nothing here waits or reads a clock: time is told,
orders are given back, and what becomes of them is told again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ekya.core.shares import ShareHolder, Work


@dataclass(frozen=True, slots=True)
class ShareOrder:
    """Asks a holder to go to a share, at its next batch boundary.

    Attributes:
        holder: who is asked.
        epoch: number of the plan that it is of.
        serial: number of the order; of two orders to one holder only that with the higher one counts.
        share_milli: where to.
        leaves: it is to end, and its share with it.
        changes: it is another share than was last asked for.
    """

    holder: ShareHolder
    epoch: int
    serial: int
    share_milli: int
    leaves: bool = False
    changes: bool = True


@dataclass(frozen=True, slots=True)
class Overdue:
    """A holder that has not answered within its limit; ``waited_us`` since it was first asked to let go."""

    holder: ShareHolder
    epoch: int
    waited_us: int


@dataclass(frozen=True, slots=True)
class Patience:
    """How long is waited for whom.

    Attributes:
        growers_us: growers wait so long for those that are to let go; then they get what is free.
        limits_us: by kind of work, after how long a holder that has not let go is to be ended.
    """

    growers_us: int
    limits_us: Mapping[Work, int]


@dataclass(slots=True, eq=False)
class _Held:
    """What is known of one holder.

    Attributes:
        target_milli: what the newest plan gives it.
        held_milli: the most that it may be using now.
        turn: growers are served in this order.
        order: the last it was given.
        asked_us: since when it is to let go and has not answered; None where it has.
    """

    pool: int
    target_milli: int = 0
    held_milli: int = 0
    turn: int = 0
    order: ShareOrder | None = None
    asked_us: int | None = None
    leaving: bool = False
    overdue: bool = False

    @property
    def grows(self) -> bool:
        return self.target_milli > self.held_milli and not (self.leaving or self.overdue)


class ShareLedger:
    """Who may be using how much, and what is asked of whom.

    In every pool what everybody may be using is never above what is there, at no instant: what a holder
    gives up counts as used until it has answered or is gone, what it gets counts from the order on. A late
    answer to an overtaken order changes nothing. Holders whose shares fit get all that they are planned to
    have once all have answered.
    """

    def __init__(
        self,
        pools_milli: Sequence[int],
        pool_of: Callable[[ShareHolder], int],
        patience: Patience,
        step_milli: int = 1,
    ) -> None:
        """Nobody holds anything.

        Args:
            pools_milli: what there is: for each GPU, or of all cores together.
            pool_of: the place of a holder's pool among them; never another one for the same holder.
            patience: how long is waited.
            step_milli: the smallest difference between two shares.
        """
        self._pools_milli = tuple(pools_milli)
        self._pool_of = pool_of
        self._patience = patience
        self._step_milli = step_milli
        self._holders: dict[ShareHolder, _Held] = {}
        self._epoch = 0
        self._turns = 0
        self._serials = 0

    @property
    def holders(self) -> tuple[ShareHolder, ...]:
        """All that have a share, are to have one, or had one a moment ago."""
        return tuple(self._holders)

    def held_milli(self, holder: ShareHolder) -> int:
        """The most that a holder may be using now."""
        return self._holders[holder].held_milli if holder in self._holders else 0

    def free_milli(self, pool: int) -> int:
        """What nobody can be using."""
        held = sum(one.held_milli for one in self._holders.values() if one.pool == pool)
        return self._pools_milli[pool] - held

    def aim(self, holder: ShareHolder, share_milli: int, epoch: int, now_us: int) -> list[ShareOrder]:
        """A plan gives a holder this share; with what others get now because of it.

        Args:
            holder: who.
            share_milli: all that it is to have, not what it is to have more.
            epoch: of the plan; what is decided between two plans belongs to the last one.
            now_us: run time.
        """
        self._epoch = max(self._epoch, epoch)
        one = self._holders.setdefault(holder, _Held(self._pool_of(holder)))
        self._turns += 1
        one.target_milli, one.turn = share_milli, self._turns
        orders = []
        if share_milli < one.held_milli:
            orders.append(self._let_go(holder, one, now_us))
        else:
            one.asked_us = None
            if self._is_to_be_told(holder, one):
                orders.append(self._order(holder, one, one.held_milli))
        return [*orders, *self._grow(now_us)]

    def leave(self, holder: ShareHolder, now_us: int) -> list[ShareOrder]:
        """A holder is to end; one that was never given anything is forgotten."""
        one = self._holders.get(holder)
        if one is None or one.leaving:
            return []
        one.target_milli, one.leaving = 0, True
        if one.order is None:
            return self.gone([holder], now_us)
        return [self._let_go(holder, one, now_us), *self._grow(now_us)]

    def answer(self, order: ShareOrder, now_us: int) -> list[ShareOrder]:
        """A holder has carried an order out; of one that was overtaken that says nothing any more."""
        one = self._holders.get(order.holder)
        if one is None or one.asked_us is None or one.order is None or one.order.serial != order.serial:
            return []
        one.held_milli, one.asked_us = order.share_milli, None
        if one.leaving:
            del self._holders[order.holder]
        return self._grow(now_us)

    def gone(self, holders: Iterable[ShareHolder], now_us: int) -> list[ShareOrder]:
        """A process has ended with these holders in it, and nothing of them uses anything."""
        for holder in holders:
            self._holders.pop(holder, None)
        return self._grow(now_us)

    def pass_time(self, now_us: int) -> tuple[list[Overdue], list[ShareOrder]]:
        """Who has not answered within its limit, each told once; and what others get, who waited for it.

        What an overdue holder may be using stays used until it is gone or answers after all.
        """
        overdue = []
        for holder, one in self._holders.items():
            if one.asked_us is not None and not one.overdue and now_us >= self._limit_us(holder, one):
                one.overdue = True
                overdue.append(Overdue(holder, self._epoch, now_us - one.asked_us))
        return overdue, self._grow(now_us)

    def next_due_us(self, now_us: int) -> int | None:
        """When time alone changes something next; None where it never does."""
        marks = [mark for mark in self._marks_us() if mark > now_us]
        return min(marks, default=None)

    def _marks_us(self) -> Iterator[int]:
        for holder, one in self._holders.items():
            if one.asked_us is not None and not one.overdue:
                yield one.asked_us + self._patience.growers_us
                yield self._limit_us(holder, one)

    def _limit_us(self, holder: ShareHolder, one: _Held) -> int:
        return (one.asked_us or 0) + self._patience.limits_us[holder.work]

    def _is_to_be_told(self, holder: ShareHolder, one: _Held) -> bool:
        """Whether a holder that keeps what it has must hear of it.

        It was asked to let go and need not any more; or it is an inference, whose λ may be another one.
        """
        if one.order is not None and one.order.share_milli != one.held_milli:
            return True
        return holder.work is Work.INFERENCE and one.target_milli == one.held_milli

    def _let_go(self, holder: ShareHolder, one: _Held, now_us: int) -> ShareOrder:
        # Another order does not give a holder that owes an answer more time for it.
        one.asked_us = now_us if one.asked_us is None else one.asked_us
        return self._order(holder, one, one.target_milli)

    def _grow(self, now_us: int) -> list[ShareOrder]:
        """What growers get now, in the order in which they were planned for."""
        orders = []
        growing = [(holder, one) for holder, one in self._holders.items() if one.grows]
        for holder, one in sorted(growing, key=lambda item: item[1].turn):
            wanted, free = one.target_milli - one.held_milli, self.free_milli(one.pool)
            if wanted > free:
                if self._is_awaited(one.pool, now_us):
                    continue
                wanted = max(free, 0) // self._step_milli * self._step_milli
            if wanted > 0:
                one.held_milli += wanted
                orders.append(self._order(holder, one, one.held_milli))
        return orders

    def _is_awaited(self, pool: int, now_us: int) -> bool:
        """Whether somebody may still let go in time, so that one order is enough instead of two."""
        return any(
            one.asked_us is not None and not one.overdue and now_us < one.asked_us + self._patience.growers_us
            for one in self._holders.values()
            if one.pool == pool
        )

    def _order(self, holder: ShareHolder, one: _Held, share_milli: int) -> ShareOrder:
        self._serials += 1
        changes = one.order is None or one.order.share_milli != share_milli or one.leaving
        one.order = ShareOrder(holder, self._epoch, self._serials, share_milli, one.leaving, changes)
        return one.order

"""A job on SMs of its own, inside its process: what resizes it, and what its batches run in."""

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ekya.errors import UserError
from ekya.gpu.claims import SmClaims
from ekya.gpu.gated_levels import GatedLevels
from ekya.gpu.gpu_streams import GpuStreams
from ekya.gpu.levels import Level
from ekya.gpu.meter import BatchMeter
from ekya.gpu.protocol import Measured, Resized
from ekya.gpu.sm_layout import SmSpan, place_again

ANSWER_WITHIN_S = 2.0
"""A resize waits so long for the batch under way; after that it is made up for at the batch's end."""

_RETRY_S = 0.02
"""Between two looks at SMs that others have and that a job waits for."""

_RIVALS = 8
"""So often somebody else can be quicker in one resize."""

_BUSY = "the batch under way has not ended; it changes as soon as that has"


class GreenHandle:
    """One job's SMs. A ``ShareHandle``.

    Its batches run on the stream of a level, whose kernels cannot leave the level's SMs; the SMs are
    claimed, so nobody else's level has them. A resize claims new ones, makes their level ready beside the
    batches, switches between two batches, when the old stream's work is done, and only then lets go of the
    old ones. So growers come after shrinkers without being told: what is missing they take at a batch
    boundary, when it is free.

    Nothing of a job runs on the primary context after attach: the attaching thread enters a level then,
    every other thread with its first batch, and no thread leaves for anything but another level. Each batch
    checks that it is where it should be. What a thread does that never had a batch is not seen here.
    """

    def __init__(
        self,
        levels: GatedLevels,
        streams: GpuStreams,
        claims: SmClaims,
        share_milli: int,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Enters a level: that of the share, or at share 0 one group until there is a share.

        Raises:
            UserError: no level of this GPU can be used.
        """
        self._levels = levels
        self._streams = streams
        self._claims = claims
        self._clock_ns = clock_ns
        self._meter = BatchMeter(streams)
        self._changed = threading.Condition()
        self._resizing = threading.Lock()
        self._own = threading.local()
        self._level: Level | None = None
        self._wanted = 0
        self._inside = 0
        self._switching = False
        self._released = False
        self._retry_at_ns = 0
        self._used_ns = 0
        self._asked_at_ns = clock_ns()
        self._lane = levels.take_lane()
        weakref.finalize(self, levels.give_lane_back, self._lane)
        weakref.finalize(self, claims.close)
        smallest = levels.usable(0, 1, self._lane)
        if smallest.level is None:
            raise UserError(_no_level(smallest.refused))
        self._smallest = smallest.level
        self.resize(share_milli)
        streams.enter((self._level or self._smallest).stream)

    @property
    def level(self) -> Level | None:
        """Where batches run; None while the job has no SMs."""
        return self._level

    def resize(self, share_milli: int, span: SmSpan | None = None) -> Resized:
        """To the groups that the share pays for, between two batches.

        Args:
            share_milli: thousandths of the GPU; less than one group's is nothing.
            span: which groups, where somebody has planned that; they are found here otherwise.

        Raises:
            ValueError: a negative share.
            RuntimeError: the calling thread is inside a batch, which it would wait for.
        """
        if share_milli < 0:
            raise ValueError(f"a share cannot be negative: {share_milli}")
        if getattr(self._own, "inside", False):
            raise RuntimeError("a share cannot change inside a batch of the thread that changes it")
        began_ns = self._clock_ns()
        with self._resizing:
            if self._released:
                return Resized(self._share_milli(), 0, "the job is ending")
            self._wanted = self._levels.layout.groups_for(share_milli)
            note = self._move(span, ANSWER_WITHIN_S)
        with self._changed:
            self._changed.notify_all()
        if share_milli > 0 and self._wanted == 0:
            note = f"less than one group of SMs, which is {self._levels.layout.step_milli} thousandths"
        return Resized(self._share_milli(), (self._clock_ns() - began_ns) // 1000, note)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Around one batch. Does not nest. At share 0 it waits until it is resized or released.

        Raises:
            RuntimeError: the thread's kernels would go elsewhere.
        """
        level = self._begin()
        self._own.inside = True
        try:
            self._streams.enter(level.stream)
            if self._streams.current() != level.stream:
                raise RuntimeError("the thread's stream is not that of its level")
            with self._meter.batch(self._levels.layout.share_milli(level.sms)):
                yield
        finally:
            self._own.inside = False
            self._end()

    def measured(self) -> Measured:
        """GPU time of batches x the part of the SMs they ran on; a batch counts when the GPU has done it."""
        self._settle()
        with self._changed:
            now_ns = self._clock_ns()
            measured = Measured(self._used_ns // 1000, (now_ns - self._asked_at_ns) // 1000)
            self._used_ns, self._asked_at_ns = 0, now_ns
            return measured

    def release(self) -> None:
        """Every wait ends; the SMs are free as soon as no batch runs. Later ones are not held back."""
        with self._changed:
            self._released = True
            self._changed.notify_all()
            is_idle = self._inside == 0
        if is_idle:
            self._let_go()

    def _begin(self) -> Level:
        """Waits for SMs and counts the thread in."""
        self._settle()
        while True:
            self._catch_up()
            with self._changed:
                if not self._switching and (self._level is not None or self._released):
                    self._inside += 1
                    return self._level or self._smallest
                self._changed.wait(_RETRY_S if self._wanted else None)

    def _end(self) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()
            is_over = self._released and self._inside == 0
        if is_over:
            self._let_go()

    def _settle(self) -> None:
        used_ns = self._meter.settle()
        with self._changed:
            self._used_ns += used_ns

    def _catch_up(self) -> None:
        """Between two batches: what a resize could not do, because a batch ran or others had the SMs."""
        held = 0 if self._level is None else self._level.groups
        if held == self._wanted or self._released or self._clock_ns() < self._retry_at_ns:
            return
        if not self._resizing.acquire(blocking=False):
            return
        try:
            if self._released:
                return
            self._move(None, 0.0)
            self._retry_at_ns = self._clock_ns() + round(_RETRY_S * 1e9)
        finally:
            self._resizing.release()

    def _move(self, span: SmSpan | None, within_s: float) -> str:
        """Towards the groups that are wanted; says why it is not all of them."""
        level, note = self._claim(span) if self._wanted else (None, "")
        if level != self._level and not self._switch(level, within_s):
            note = _BUSY
        held = self._level
        if held is None:
            self._claims.give_back()
        else:
            self._claims.keep_only(held.first, held.groups)
        return note

    def _claim(self, span: SmSpan | None) -> tuple[Level | None, str]:
        """A level on groups that nobody else has; the old ones stay claimed."""
        held = None if self._level is None else SmSpan(0, self._level.first, self._level.groups)
        note = ""
        for _ in range(_RIVALS):
            target = span or place_again(self._claims.taken(), self._wanted, held)
            if target is None:
                return None, "others have all SMs; they are taken when they are free"
            if not self._claims.take(target.first, target.groups):
                note = "the SMs that were planned are not free yet; " if span else ""
                span = None
                continue
            usable = self._levels.usable(target.first, target.groups, self._lane)
            if usable.refused:
                note += "; ".join(usable.refused)
                self._wanted = 0 if usable.level is None else usable.level.groups
            elif target.groups < self._wanted:
                note += f"{target.groups} of {self._wanted} groups of SMs are free; the others follow"
            return usable.level or self._level, note
        return self._level, "others were quicker; it is tried again at the next batch"

    def _switch(self, level: Level | None, within_s: float) -> bool:
        """To another level between two batches, with the old one's work done; False if a batch runs on."""
        with self._changed:
            self._switching = True
            self._changed.wait_for(lambda: self._inside == 0 or self._released, within_s)
            is_idle = self._inside == 0
        try:
            if is_idle:
                if self._level is not None:
                    self._streams.synchronise(self._level.stream)
                self._level = level
        finally:
            with self._changed:
                self._switching = False
                self._changed.notify_all()
        return is_idle

    def _let_go(self) -> None:
        with self._resizing:
            if self._level is not None:
                self._streams.synchronise(self._level.stream)
            self._claims.close()

    def _share_milli(self) -> int:
        return 0 if self._level is None else self._levels.layout.share_milli(self._level.sms)


def _no_level(refused: tuple[str, ...]) -> str:
    return (
        f"--shares: no green context of this GPU can be used ({'; '.join(refused)}); use --shares duty-cycle"
    )

"""A job on SMs of its own, inside its process: what resizes it, and what its batches run in."""

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from ekya.core.units import FULL_GPU_MILLI
from ekya.errors import UserError
from ekya.gpu.bucket import Clocks, TokenBucket
from ekya.gpu.claims import SmClaims
from ekya.gpu.gated_levels import GatedLevels, sizes_of
from ekya.gpu.gpu_streams import GpuStreams
from ekya.gpu.levels import Level
from ekya.gpu.meter import BatchMeter
from ekya.gpu.protocol import Measured, Resized, ShareJob
from ekya.gpu.seat import Seat
from ekya.gpu.sm_layout import SmSpan, place_again

ANSWER_WITHIN_S = 2.0
"""A resize waits so long for the batch under way; after that it is made up for at the batch's end."""

_RETRY_S = 0.02
"""Between two looks at SMs that others have and that a job waits for."""

_GUEST_LEVELS = 8
"""Levels from the first group on that guests use: each is checked once, while a frame waits."""

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

    An inference, and whatever has less than one group's share, is a guest: it has no SMs of its own, since
    frames come in bursts and want many for a moment. It looks before each batch which SMs nobody has
    claimed, from the first one on, runs there, and is held to its share by a token bucket on time x the part
    of the SMs.

    Nothing of a job runs on the primary context after attach: the attaching thread enters a level then,
    every other thread with its first batch, and no thread leaves for anything but another level. Each batch
    checks that it is where it should be. What a thread does that never had a batch is not seen here.
    """

    def __init__(
        self,
        levels: GatedLevels,
        streams: GpuStreams,
        claims: SmClaims,
        job: ShareJob,
        clocks: Clocks | None = None,
    ) -> None:
        """Enters a level: that of the share, or at share 0 one group until there is a share.

        Args:
            levels, streams: what the process holds of the GPU.
            claims: the job's own; closed with it.
            job: its role and first share.
            clocks: tests pass their own.

        Raises:
            UserError: no level of this GPU can be used.
        """
        self._levels = levels
        self._streams = streams
        self._claims = claims
        self._clock_ns = (clocks or Clocks()).wall_ns
        self._bucket = TokenBucket(0, clocks)
        self._meter = BatchMeter(streams)
        self._seat = Seat(streams)
        self._lane = levels.take_lane()
        weakref.finalize(self, levels.give_lane_back, self._lane)
        weakref.finalize(self, claims.close)
        self._is_inference = job.role == "inference"
        self._guest = False
        self._owned: Level | None = None
        self._with_guests = False
        self._guest_sizes = sizes_of(levels.layout, _GUEST_LEVELS)
        self._wanted = 0
        self._retry_at_ns = 0
        self._resizing = threading.Lock()
        self._own = threading.local()
        self._used = threading.Lock()
        self._used_ns = 0
        self._asked_at_ns = self._clock_ns()
        smallest = levels.usable(0, 1, self._lane)
        if smallest.level is None:
            raise UserError(
                f"--shares: no green context of this GPU can be used ({'; '.join(smallest.refused)}); "
                "use --shares duty-cycle"
            )
        self._smallest = smallest.level
        self.resize(job.share_milli)
        streams.enter((self.level or self._smallest).stream)

    @property
    def level(self) -> Level | None:
        """Where batches run; None while the job has no SMs."""
        return self._seat.level

    def resize(self, share_milli: int, span: SmSpan | None = None) -> Resized:
        """To the groups that the share pays for, between two batches.

        Args:
            share_milli: thousandths of the GPU; with less than one group's the job becomes a guest.
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
            if self._seat.released:
                return Resized(self._level_milli(), 0, "the job is ending")
            groups = self._levels.layout.groups_for(share_milli)
            guest = self._is_inference or (share_milli > 0 and groups == 0)
            # A job with SMs of its own needs no bucket to hold it.
            paid = self._bucket.resize(share_milli if guest else FULL_GPU_MILLI)
            self._guest, self._wanted = guest, 0 if guest else groups
            note = self._move(span, ANSWER_WITHIN_S)
        self._seat.wake()
        granted_milli = paid.share_milli if guest else self._level_milli()
        settled = paid.settled and note != _BUSY
        return Resized(granted_milli, (self._clock_ns() - began_ns) // 1000, note or paid.note, settled)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Around one batch. Does not nest. At share 0 it waits until it is resized or released.

        Raises:
            RuntimeError: the thread's kernels would go elsewhere.
        """
        self._begin()
        self._own.inside = True
        try:
            level = self.level or self._smallest
            before = self._streams.current()
            if before != level.stream:
                # Streams do not wait for each other: what the thread has made elsewhere must be there first.
                self._streams.synchronise(before)
                self._streams.enter(level.stream)
            if self._streams.current() != level.stream:
                raise RuntimeError("the thread's stream is not that of its level")
            part_milli = self._levels.layout.share_milli(level.sms)
            with self._bucket.under_way(), self._meter.batch(part_milli):
                yield
        finally:
            self._own.inside = False
            if self._seat.end():
                self._let_go()

    def measured(self) -> Measured:
        """GPU time of batches x the part of the SMs they ran on; a batch counts when the GPU has done it."""
        self._settle()
        with self._used:
            now_ns = self._clock_ns()
            measured = Measured(self._used_ns // 1000, (now_ns - self._asked_at_ns) // 1000)
            self._used_ns, self._asked_at_ns = 0, now_ns
            return measured

    def release(self) -> None:
        """Every wait ends; the SMs are free as soon as no batch runs. Later ones are not held back."""
        self._bucket.release()
        if self._seat.release():
            self._let_go()

    def _begin(self) -> None:
        """Waits for the job's turn and for SMs, and counts the batch in."""
        if self._guest:
            self._meter.wait_until_under_way(1)
        self._settle()
        while True:
            if self._guest:
                self._bucket.wait_for_turn()
            self._look()
            if self._seat.begin(_RETRY_S if self._wanted or self._guest else None):
                return

    def _settle(self) -> None:
        used_ns = self._meter.settle()
        if self._guest:
            self._bucket.charge(used_ns)
        with self._used:
            self._used_ns += used_ns

    def _look(self) -> None:
        """Between two batches: what a resize could not do, because a batch ran or others had the SMs."""
        held = 0 if self._owned is None else self._owned.groups
        as_wanted = not self._guest and held == self._wanted
        if as_wanted or self._seat.released or self._clock_ns() < self._retry_at_ns:
            return
        if not self._resizing.acquire(blocking=False):
            return
        try:
            if not self._seat.released:
                self._move(None, 0.0)
                self._retry_at_ns = 0 if self._guest else self._clock_ns() + round(_RETRY_S * 1e9)
        finally:
            self._resizing.release()

    def _move(self, span: SmSpan | None, within_s: float) -> str:
        """Towards the SMs that are wanted; says why it is not all of them."""
        level, note = self._find(span)
        if level != self.level and not self._seat.move_to(level, within_s):
            self._keep(self._owned)
            return _BUSY
        self._keep(None if self._guest else level)
        return note

    def _keep(self, own: Level | None) -> None:
        """Lets go of all claims but those of one level; a guest keeps the first group with the others."""
        if own is not None:
            self._claims.keep_only(own.first, own.groups)
            self._with_guests = False
        elif not self._guest:
            self._claims.give_back()
            self._with_guests = False
        elif not self._with_guests:
            self._with_guests = self._claims.keep_for_guests()
        self._owned = own

    def _find(self, span: SmSpan | None) -> tuple[Level | None, str]:
        """A level that the job may use now; what it has is still claimed."""
        if self._guest:
            free = self._claims.free_for_guests()
            size = max((one for one in self._guest_sizes if one <= free), default=1)
            return self._levels.usable(0, size, self._lane).level or self._smallest, ""
        if self._wanted == 0:
            return None, ""
        held = None if self._owned is None else SmSpan(0, self._owned.first, self._owned.groups)
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
            level = usable.level or self._owned
            if usable.refused:
                note += "; ".join(usable.refused)
                self._wanted = 0 if level is None else level.groups
            elif target.groups < self._wanted:
                note += f"{target.groups} of {self._wanted} groups of SMs are free; the others follow"
            return level, note
        return self._owned, "others were quicker; it is tried again at the next batch"

    def _let_go(self) -> None:
        with self._resizing:
            if self.level is not None:
                self._streams.synchronise(self.level.stream)
            self._claims.close()

    def _level_milli(self) -> int:
        return 0 if self.level is None else self._levels.layout.share_milli(self.level.sms)

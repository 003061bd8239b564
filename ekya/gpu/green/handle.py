"""Handle of a job that runs on green contexts: resizes it and runs its batches."""

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from ekya.core.errors import UserError
from ekya.core.units import FULL_GPU_MILLI
from ekya.gpu.backends.backend import Measured, Resized, ShareJob
from ekya.gpu.backends.gpu_streams import BatchMeter, GpuStreams
from ekya.gpu.backends.token_bucket import Clocks, TokenBucket
from ekya.gpu.green.claims import SmClaims, SmSpan, place_again
from ekya.gpu.green.levels import GatedLevels, Level, sizes_of

ANSWER_WITHIN_S = 2.0
"""Time that a resize waits for the running batch; afterwards it is completed at the batch's end."""

_RETRY_S = 0.02
"""Poll interval for SMs that other jobs hold and this one waits for."""

_GUEST_LEVELS = 8
"""Number of levels, from the first group on, that guests use: each is checked once, while a frame waits."""

_RIVALS = 8
"""Attempts to claim SMs in one resize, since other jobs may claim them first."""

_BUSY = "the batch under way has not ended; it changes as soon as that has"


class GreenHandle:
    """Handle of one job's SMs. A ``ShareHandle``.

    Batches run on the stream of a level, whose kernels stay on the level's SMs; the SMs are claimed, so no
    other job's level has them. A resize claims new SMs, prepares their level while batches run, switches
    between two batches once the old stream's work is done, and only then releases the old SMs. Growing jobs
    therefore need no signal from shrinking ones: they take missing SMs at a batch boundary once these are
    free.

    An inference, and any job with less than one group's share, is a guest without dedicated SMs, since
    frames come in bursts and need many SMs for a moment. Before each batch a guest finds the unclaimed SMs
    from the first one on, runs there, and is limited to its share by a token bucket on time x the part of
    the SMs.

    No work of a job runs on the primary context after attach: the attaching thread enters a level then,
    every other thread with its first batch, and threads only ever move to another level. Each batch checks
    its thread's stream. Threads that never run a batch are not covered.
    """

    def __init__(
        self,
        levels: GatedLevels,
        streams: GpuStreams,
        claims: SmClaims,
        job: ShareJob,
        clocks: Clocks | None = None,
    ) -> None:
        """Enters the level of the share, or at share 0 a level of one group until the share grows.

        Args:
            levels, streams: the process's resources on the GPU.
            claims: claims of this job; closed with the handle.
            job: role and first share.
            clocks: clocks of the bucket; tests pass their own.

        Raises:
            UserError: no level of this GPU can be used.
        """
        self._levels = levels
        self._streams = streams
        self._claims = claims
        self._clock_ns = (clocks or Clocks()).wall_ns
        self._bucket = TokenBucket(0, clocks)
        self._meter = BatchMeter(streams)
        self._current = CurrentLevel(streams)
        self._lane = levels.take_lane()
        # The lane is given back only when nothing can run a batch on it: batches go on after a release.
        # The claims too, if the job was never released.
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
        # A job without SMs of its own needs a level too, or its thread would run on the primary context.
        smallest = levels.usable(0, 1, self._lane)
        if smallest.level is None:
            raise UserError(
                f"--shares: no green context of this GPU can be used ({'; '.join(smallest.refused)}); "
                "use --shares duty-cycle"
            )
        self._smallest = smallest.level
        self.resize(job.share_milli)
        # Checks of new levels may have left this thread on another stream.
        streams.enter_stream((self.level or self._smallest).stream)

    @property
    def level(self) -> Level | None:
        """Level on which batches run; None while the job has no SMs."""
        return self._current.level

    def resize(self, share_milli: int) -> Resized:
        """Moves the job between two batches to the groups that the share pays for.

        Args:
            share_milli: thousandths of the GPU; below one group's share the job becomes a guest.

        Raises:
            ValueError: the share is negative.
            RuntimeError: the calling thread is inside a batch, for which it would wait forever.
        """
        if share_milli < 0:
            raise ValueError(f"a share cannot be negative: {share_milli}")
        if getattr(self._own, "inside", False):
            raise RuntimeError("a share cannot change inside a batch of the thread that changes it")
        began_ns = self._clock_ns()
        with self._resizing:
            # Under the lock, since ``_let_go`` closes the claims under it.
            if self._current.released:
                return Resized(self._level_milli(), 0, "the job is ending")
            groups = self._levels.layout.groups_for(share_milli)
            guest = self._is_inference or (share_milli > 0 and groups == 0)
            # Dedicated SMs limit a job by themselves, so its bucket is left open.
            paid = self._bucket.resize(share_milli if guest else FULL_GPU_MILLI)
            self._guest, self._wanted = guest, 0 if guest else groups
            note = self._move(ANSWER_WITHIN_S)
        # A batch of a job without SMs waits without a time limit, and must see that it wants some now.
        self._current.wake_waiting()
        granted_milli = paid.share_milli if guest else self._level_milli()
        settled = paid.settled and note != _BUSY
        return Resized(granted_milli, (self._clock_ns() - began_ns) // 1000, note or paid.note, settled)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Context manager around one batch. Does not nest. At share 0 waits for a resize or release.

        Raises:
            RuntimeError: the thread's stream is not that of the job's level.
        """
        self._begin()
        self._own.inside = True
        try:
            level = self.level or self._smallest
            before = self._streams.current()
            if before != level.stream:
                # Streams are unordered: the thread's work on the old stream must finish first.
                self._streams.wait_for_stream(before)
                self._streams.enter_stream(level.stream)
            if self._streams.current() != level.stream:
                raise RuntimeError("the thread's stream is not that of its level")
            part_milli = self._levels.layout.share_milli(level.sms)
            with self._bucket.under_way(), self._meter.batch(part_milli):
                yield
        finally:
            self._own.inside = False
            if self._current.end_batch():
                self._let_go()

    def measured(self) -> Measured:
        """Returns GPU time x the part of the SMs used; a batch counts once the GPU has finished it."""
        self._settle()
        with self._used:
            now_ns = self._clock_ns()
            measured = Measured(self._used_ns // 1000, (now_ns - self._asked_at_ns) // 1000)
            self._used_ns, self._asked_at_ns = 0, now_ns
            return measured

    def release(self) -> None:
        """Ends every wait; frees the SMs once no batch runs. Later batches are not delayed."""
        self._bucket.release()
        if self._current.release():
            self._let_go()

    def _begin(self) -> None:
        """Waits for the share and for SMs, and registers the batch."""
        if self._guest:
            # A batch is charged when the GPU has finished it, so at most one may be ahead of the charge.
            self._meter.wait_until_under_way(1)
        self._settle()
        while True:
            if self._guest:
                self._bucket.wait_for_turn()
            self._look()
            # Other jobs free SMs without a signal, so a job that lacks some looks again.
            if self._current.begin_batch(_RETRY_S if self._wanted or self._guest else None):
                return

    def _settle(self) -> None:
        used_ns = self._meter.settle_finished()
        if self._guest:
            self._bucket.charge_use(used_ns)
        with self._used:
            self._used_ns += used_ns

    def _look(self) -> None:
        """Completes, between two batches, a resize delayed by a running batch or by SMs of other jobs."""
        held = 0 if self._owned is None else self._owned.groups
        as_wanted = not self._guest and held == self._wanted
        if as_wanted or self._current.released or self._clock_ns() < self._retry_at_ns:
            return
        # A resize under way looks for SMs itself, and may take seconds.
        if not self._resizing.acquire(blocking=False):
            return
        try:
            # Again: the job may have been released, and its claims closed, before the lock was taken.
            if not self._current.released:
                self._move(0.0)
                # A guest looks before each batch, since training may have claimed its SMs.
                self._retry_at_ns = 0 if self._guest else self._clock_ns() + round(_RETRY_S * 1e9)
        finally:
            self._resizing.release()

    def _move(self, within_s: float) -> str:
        """Moves towards the wanted SMs; returns why not all were reached."""
        level, note = self._find()
        if level != self.level and not self._current.move_to(level, within_s):
            # The running batch still uses the old SMs, so only new claims are given back.
            self._keep(self._owned)
            return _BUSY
        # Only after the switch: until then the job's kernels ran on the old SMs.
        self._keep(None if self._guest else level)
        return note

    def _keep(self, own: Level | None) -> None:
        """Releases all claims but those of one level; a guest shares the claim on the first group."""
        if own is not None:
            self._claims.keep_only(own.first, own.groups)
            self._with_guests = False
        elif not self._guest:
            self._claims.give_back()
            self._with_guests = False
        elif not self._with_guests:
            self._with_guests = self._claims.keep_for_guests()
        self._owned = own

    def _find(self) -> tuple[Level | None, str]:
        """Returns a level that the job may use now, with a note; keeps the current claims."""
        if self._guest:
            free = self._claims.free_for_guests()
            size = max((one for one in self._guest_sizes if one <= free), default=1)
            return self._levels.usable(0, size, self._lane).level or self._smallest, ""
        if self._wanted == 0:
            return None, ""
        held = None if self._owned is None else SmSpan(self._owned.first, self._owned.groups)
        for _ in range(_RIVALS):
            target = place_again(self._claims.taken(), self._wanted, held)
            if target is None:
                return None, "others have all SMs; they are taken when they are free"
            if not self._claims.claim_groups(target.first, target.groups):
                continue
            usable = self._levels.usable(target.first, target.groups, self._lane)
            level, note = usable.level or self._owned, "; ".join(usable.refused)
            if usable.refused:
                # Otherwise every batch would try again what was refused.
                self._wanted = 0 if level is None else level.groups
            elif target.groups < self._wanted:
                note = f"{target.groups} of {self._wanted} groups of SMs are free; the others follow"
            return level, note
        return self._owned, "others were quicker; it is tried again at the next batch"

    def _let_go(self) -> None:
        # A resize under way may still claim SMs, for which it needs the open file.
        with self._resizing:
            if self.level is not None:
                # Another job may take the SMs at once, so no kernel may be left on them.
                self._streams.wait_for_stream(self.level.stream)
            self._claims.close()

    def _level_milli(self) -> int:
        return 0 if self.level is None else self._levels.layout.share_milli(self.level.sms)


class CurrentLevel:
    """Level on which a job's batches run; changes only between two batches. Thread-safe."""

    def __init__(self, streams: GpuStreams) -> None:
        self._streams = streams
        self._changed = threading.Condition()
        self._level: Level | None = None
        self._inside = 0
        self._switching = False
        self._released = False

    @property
    def level(self) -> Level | None:
        """Level of the next batch; None where the batch will wait."""
        return self._level

    @property
    def released(self) -> bool:
        """True once the job is ending, so that no batch waits."""
        return self._released

    def move_to(self, level: Level | None, within_s: float) -> bool:
        """Moves to another level once no batch is running and the old stream's work is done.

        Batches that would begin meanwhile wait.

        Returns:
            False, with the level unchanged, if a batch ran longer than ``within_s`` or the job is ending.
        """
        with self._changed:
            # Before the wait: with no new batches, the running ones come to an end.
            self._switching = True
            self._changed.wait_for(lambda: self._inside == 0 or self._released, within_s)
            is_idle = self._inside == 0 and not self._released
        try:
            # Not under the lock: ``release`` and ``wake_waiting`` must not wait for the GPU.
            if is_idle:
                if self._level is not None:
                    self._streams.wait_for_stream(self._level.stream)
                self._level = level
        finally:
            with self._changed:
                self._switching = False
                self._changed.notify_all()
        return is_idle

    def begin_batch(self, wait_s: float | None) -> bool:
        """Registers a batch; False without a level, after one wait of ``wait_s`` (None: for any change)."""
        with self._changed:
            if not self._switching and (self._level is not None or self._released):
                self._inside += 1
                return True
            self._changed.wait(wait_s)
            return False

    def end_batch(self) -> bool:
        """Unregisters a batch; returns True for the last batch of a job that is ending."""
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()
            return self._released and self._inside == 0

    def wake_waiting(self) -> None:
        """Wakes all threads that wait for a level."""
        with self._changed:
            self._changed.notify_all()

    def release(self) -> bool:
        """Ends every wait; returns True if no batch is running."""
        with self._changed:
            self._released = True
            self._changed.notify_all()
            return self._inside == 0

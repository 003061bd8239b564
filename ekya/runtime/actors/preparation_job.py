"""One preparation in the actor `micro-profiler`: its streams as they hand in, their labels, its share."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from ekya.core.commands import BeginPreparation, PrepareStream
from ekya.core.profile import FamilyCurve
from ekya.core.units import US_PER_S, StreamId
from ekya.core.weights import KeptModel
from ekya.gpu.backends.backend import Resized
from ekya.pipeline.labels import StreamLabels
from ekya.pipeline.stream_preparation import StreamPreparation
from ekya.runtime.actors.actor_kinds import LentWeights
from ekya.runtime.shares.job_share import JobShare


@dataclass(slots=True, eq=False)
class PreparationJob:
    """A preparation: the streams that have handed in their frames, and what is made of them.

    Attributes:
        share: its use is reported in the events of the preparation, and measures the cost of trials.
        changed: guards and announces changes of ``streams``, ``unlabelled`` and the end.
        unlabelled: streams that are not labelled yet, in order.
        others: weights that each stream tries on its labels.
        kept: what the zoo knows of the model that each stream serves.
        alone: the curve of each stream's first family, tried on its own newest labels alone.
        overdue: streams whose audit the preparation before had no time for. They are audited right after
            their labels, or they might never be.
    """

    command: BeginPreparation
    share: JobShare
    unlabelled: list[StreamId]
    changed: threading.Condition = field(default_factory=threading.Condition)
    streams: dict[StreamId, StreamPreparation] = field(default_factory=dict)
    others: dict[StreamId, Sequence[LentWeights]] = field(default_factory=dict)
    kept: dict[StreamId, KeptModel | None] = field(default_factory=dict)
    labels: dict[StreamId, StreamLabels] = field(default_factory=dict)
    alone: dict[StreamId, FamilyCurve] = field(default_factory=dict)
    overdue: tuple[StreamId, ...] = ()
    has_ended: bool = False

    def streams_to_label(self) -> tuple[PrepareStream, ...]:
        """Returns the streams that are still to be labelled; none once the time is up."""
        with self.changed:
            waiting = () if self.has_ended else self.unlabelled
            return tuple(one for one in self.command.streams if one.stream in waiting)

    def next_to_label(self, timeout_s: float | None) -> StreamId | None:
        """Waits for the next stream that has handed in; returns None after the timeout."""
        with self.changed:
            self.changed.wait_for(
                lambda: self.has_ended or not self.unlabelled or self._handed_in(), timeout_s
            )
            stream = None if self.has_ended else self._handed_in()
            if stream is not None:
                self.unlabelled.remove(stream)
            return stream

    def drain_overdue(self, stream: StreamId | None = None) -> tuple[StreamId, ...]:
        """Returns the overdue streams, or this one if it is, and removes them."""
        taken = tuple(one for one in self.overdue if stream in (None, one))
        self.overdue = tuple(one for one in self.overdue if one not in taken)
        return taken

    def drop_stream(self, stream: StreamId) -> None:
        """Removes a stream that cannot hand anything in."""
        with self.changed:
            self.unlabelled.remove(stream)
            self.changed.notify_all()

    def _handed_in(self) -> StreamId | None:
        return next((one for one in self.unlabelled if one in self.streams), None)

    def end_job(self) -> Resized:
        """Drops unfinished work, since the time is up; returns when the last batch is over."""
        with self.changed:
            self.has_ended = True
            self.changed.notify_all()
        return self.share.stop_job()

    @property
    def used_s(self) -> float:
        """GPU-seconds used since this was last read."""
        return self.share.unreported_us() / US_PER_S

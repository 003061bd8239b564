"""Derives the health of each stream in each window from a run's steps, during the run or afterwards."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core import requests as rq
from ekya.core.commands import StepRecord
from ekya.core.configs import InferenceConfig
from ekya.core.units import JobId, StreamId
from ekya.results.metrics.health import (
    FEWEST_FRAMES,
    WELL,
    FrameCount,
    Gone,
    Health,
    HealthState,
    LabelState,
    WindowFacts,
    WindowHealth,
    judge_health,
)

_A_WHILE_US = 10_000_000
"""Frames of an open window are not judged before this or half the window: hot swaps and crowds pass."""


def health_of(
    steps: Sequence[StepRecord], frames: Mapping[StreamId, Mapping[int, FrameCount]]
) -> dict[StreamId, tuple[WindowHealth, ...]]:
    """Returns the health of each stream in each window, from the one in which it was added to its end.

    Args:
        steps: steps of a run.
        frames: numbers of each stream's frames, by window.
    """
    follower = HealthFollower()
    for step in steps:
        follower.follow_step(step)
    return {
        stream: tuple(
            WindowHealth(
                facts.index,
                judge_health(replace(facts, frames=frames.get(stream, {}).get(facts.index, FrameCount()))),
            )
            for facts in windows
        )
        for stream, windows in follower.window_facts()
    }


class HealthFollower:
    """Tracks the health of a run's streams step by step.

    Args:
        windows: number of past windows that are kept of each stream; None for all.
    """

    def __init__(self, windows: int | None = None) -> None:
        self._kept_windows = windows
        self._streams: dict[StreamId, _Stream] = {}
        self._removed: set[StreamId] = set()
        self._window = -1
        self._end_us = 0
        self._now_us = 0
        self._prepared: bool | None = None

    def follow_step(self, step: StepRecord) -> None:
        """Applies a step of the loop. Only runs that count frames as they come report them in events."""
        for event in ev.in_order(step.events):
            self._now_us = max(self._now_us, event.t_us)
            self._take(event)
        self._now_us = max(self._now_us, step.now_us)
        for command in step.commands:
            self._carry_out(command, step.now_us)

    def present_health(self) -> dict[StreamId, Health]:
        """Returns the present health of each stream that has not ended."""
        return {
            name: stream.present_health(self._now_us)
            for name, stream in sorted(self._streams.items())
            if not stream.ended
        }

    def window_facts(self) -> Iterator[tuple[StreamId, tuple[WindowFacts, ...]]]:
        """Yields the facts of each stream in each window; those of the open window so far."""
        for name, stream in sorted(self._streams.items()):
            if stream.facts is None:
                yield name, tuple(stream.past)
            else:
                # A retraining could still begin.
                yield name, (*stream.past, replace(stream.so_far(self._now_us), missed_gain=0.0))

    def keep_only(self, streams: Iterable[StreamId]) -> None:
        """Forgets all other streams."""
        for name in self._streams.keys() - set(streams):
            del self._streams[name]

    def _take(self, event: ev.Event) -> None:
        match event:
            case ev.WindowOpened():
                self._window, self._end_us, self._prepared = event.index, event.end_us, None
                for stream in self._streams.values():
                    stream.open(event.index, event.t_us, event.end_us)
            case ev.WindowClosed():
                self._end_preparation()
                for stream in self._streams.values():
                    stream.close(event.t_us)
            case ev.PreparationEnded() if event.window == self._window:
                self._end_preparation()
            case ev.StreamAdded():
                self._removed.discard(event.stream)
                self._of(event.stream, event.t_us)
            case rq.StreamRemoved():
                # Its workers' late events would add it anew.
                self._removed.add(event.stream)
                self._streams.pop(event.stream, None)
            case rq.MinAccuracyChanged() | rq.SchedulerChanged():
                return
            case rq.LabelBudgetChanged() | rq.CapacityChanged() | rq.RestartRequested():
                return
            case ev.GpuMeasured() | ev.ShareResized() | ev.ShareOverdue() | ev.CapacityLent() | ev.Warned():
                return
            case ev.PreparationEnded() | ev.ProfilerDown() | ev.ProfilerBack():
                return
            case _ if event.stream not in self._removed:
                self._of(event.stream, event.t_us).follow_event(event)

    def _carry_out(self, command: cmd.Command, now_us: int) -> None:
        match command:
            # No labels are due after a drift, or where λ alone are profiled.
            case cmd.BeginPreparation() if command.round == 0 and all(one.labels for one in command.streams):
                self._prepared = False
                asked = {one.stream for one in command.streams}
                for name, stream in self._streams.items():
                    stream.expect_labels(asked=name in asked)
            case cmd.EndPreparation() if command.window == self._window:
                self._end_preparation()
            case cmd.SetAside():
                self._of(command.stream, now_us).note_absence(Gone.SET_ASIDE, command.reason, now_us)
            case cmd.SetInference():
                stream = self._of(command.stream, now_us)
                stream.inference, stream.share_milli = command.config, command.share_milli
            case cmd.StartRetraining():
                self._of(command.stream, now_us).job = command.job

    def _of(self, stream: StreamId, now_us: int) -> "_Stream":
        """Returns a stream; an unknown one is added from now on, as after a resume."""
        if stream not in self._streams:
            self._streams[stream] = _Stream(deque(maxlen=self._kept_windows))
            if self._window >= 0:
                self._streams[stream].open(self._window, now_us, self._end_us)
        return self._streams[stream]

    def _end_preparation(self) -> None:
        if self._prepared is False:
            self._prepared = True
            for stream in self._streams.values():
                stream.end_preparation()


@dataclass(slots=True, eq=False)
class _Stream:
    """State of one stream.

    Attributes:
        past: facts of the windows that are over.
        facts: of the open window, without what is in progress; None between windows and after the stream's
            end.
        from_us, until_us: when it entered the open window, and when that ends.
        since_us: since when it is silent in the open window; None while it is not.
        gone: reasons why it is silent.
        job: its retraining, until the first epoch or its end.
        labels_due: it is to be labelled in the open window.
        paused: an operator has paused it, so nothing is judged.
        carried: its health when the last window closed.
    """

    past: deque[WindowFacts]
    facts: WindowFacts | None = None
    from_us: int = 0
    until_us: int = 0
    since_us: int | None = None
    gone: dict[Gone, str] = field(default_factory=dict)
    inference: InferenceConfig | None = None
    share_milli: int = 0
    job: JobId | None = None
    labels_due: bool = False
    ended: bool = False
    paused: bool = False
    lost_us: int | None = None
    carried: Health = WELL

    def open(self, index: int, t_us: int, until_us: int) -> None:
        """Begins a window."""
        if self.ended or self.paused:
            return
        self.facts, self.job = WindowFacts(index, 0), None
        self.from_us, self.until_us = t_us, until_us
        self.labels_due = False
        if self.gone:
            self._go_silent(t_us)

    def close(self, t_us: int) -> None:
        """Ends the window; a retraining without an epoch until then is unfinished."""
        if self.facts is None:
            return
        if self.job is not None:
            self.facts.unfinished = True
        over = self.so_far(t_us)
        if over.span_us > 0:
            self.past.append(over)
            self.carried = judge_health(over)
        self.facts = self.since_us = None

    def so_far(self, now_us: int) -> WindowFacts:
        """Returns the facts of the open window so far."""
        assert self.facts is not None
        silent_us = self.facts.silent_us + (0 if self.since_us is None else max(now_us - self.since_us, 0))
        return replace(
            self.facts,
            span_us=max(now_us - self.from_us, 0),
            silent_us=silent_us,
            inference=self.inference,
            share_milli=self.share_milli,
        )

    def follow_event(self, event: ev.Event) -> None:
        """Applies an event of the stream."""
        match event:
            case ev.StreamLost():
                self.lost_us = event.t_us
                self.note_absence(Gone.CAMERA, event.reason, event.t_us)
            case ev.StreamBack():
                self.come_back(Gone.CAMERA, event.t_us)
            case ev.WorkerDied(role=ev.Role.INFERENCE):
                self.note_absence(Gone.INFERENCE, event.reason, event.t_us)
            case ev.WorkerBack(role=ev.Role.INFERENCE):
                self.come_back(Gone.INFERENCE, event.t_us)
            case ev.StreamReadmitted():
                self.note_return(event.t_us)
            case ev.StreamEnded():
                self.note_end(event.t_us)
            case rq.StreamPaused():
                # The rest of the window in which it goes on is not judged either.
                self.paused, self.facts, self.since_us, self.carried = event.paused, None, None, WELL
                self.note_return(event.t_us)
            case _ if self.facts is not None:
                self._note(self.facts, event)

    def _note(self, facts: WindowFacts, event: ev.Event) -> None:
        match event:
            case ev.FramesCounted() if event.window == facts.index:
                facts.frames += FrameCount(event.due, event.analysed)
            case ev.LabelsReady() if event.window == facts.index:
                # A resumed run has no frames to label in its first window, which says nothing about objects.
                asked = event.training_crops + event.validation_crops > 0
                in_time = LabelState.EMPTY if asked and event.objects == 0 else LabelState.IN_TIME
                facts.labels = LabelState.LATE if facts.labels is LabelState.MISSING else in_time
            case ev.ProfileReady() if event.window == facts.index and event.curve.accuracies:
                gain = max(event.curve.accuracies) - event.curve.accuracies[0]
                facts.missed_gain = max(facts.missed_gain, gain)
            case ev.RetrainProgress() if event.job == self.job:
                self.job, facts.retrained = None, True
            case ev.RetrainFinished() if event.job == self.job:
                self.job = None
            case ev.RetrainFailed() if event.job == self.job:
                self.job, facts.broke = None, event.reason
            case ev.WorkerDied(role=ev.Role.RETRAINING) if self.job is not None:
                self.job, facts.broke = None, event.reason

    def note_absence(self, gone: Gone, why: str, t_us: int) -> None:
        """Marks the stream as silent from now on."""
        self.gone[gone] = why
        self._go_silent(t_us)

    def _go_silent(self, t_us: int) -> None:
        last = max(self.gone, key=list(Gone).index)
        if self.facts is not None:
            self.facts.gone, self.facts.why = last, self.gone[last]
            self.since_us = t_us if self.since_us is None else self.since_us

    def come_back(self, gone: Gone, t_us: int) -> None:
        """Removes one reason for being silent."""
        self.gone.pop(gone, None)
        if self.gone or self.since_us is None or self.facts is None:
            return
        self.facts.silent_us += max(t_us - self.since_us, 0)
        self.since_us = None

    def note_return(self, t_us: int) -> None:
        """Marks a stream that was set aside as one whose inference is started again."""
        why = self.gone.pop(Gone.SET_ASIDE, None)
        if why is not None:
            self.note_absence(Gone.INFERENCE, why, t_us)

    def note_end(self, t_us: int) -> None:
        """Ends the stream; one that is lost at the same moment broke off and has not ended."""
        if Gone.CAMERA in self.gone and self.lost_us == t_us:
            return
        self.come_back(Gone.CAMERA, t_us)
        self.job = None
        self.labels_due = False
        self.close(t_us)
        self.ended = True

    def expect_labels(self, *, asked: bool) -> None:
        """Begins labelling, perhaps again.

        Labels are due even from a stream that is silent and could not be labelled.
        """
        if self.facts is None or not (asked or (self.gone and self.past)):
            return
        self.labels_due = True
        if asked and self.facts.labels is LabelState.MISSING:
            self.facts.labels = LabelState.NOT_DUE

    def end_preparation(self) -> None:
        """Ends labelling; labels that are due and not ready are missing."""
        if self.facts is not None and self.labels_due and self.facts.labels is LabelState.NOT_DUE:
            self.facts.labels = LabelState.MISSING

    def present_health(self, now_us: int) -> Health:
        """Returns the present health."""
        if self.facts is None:
            return self.carried
        facts = self.so_far(now_us)
        if self.gone:
            # Silence is judged as a part of the span. Of a span of 0 any is too much: it is silent now.
            return judge_health(replace(facts, silent_us=max(facts.silent_us, 1), span_us=0))
        # Whether a retraining was missed is decided when the window is over.
        health = judge_health(replace(facts, silent_us=0, missed_gain=0.0, frames=self._judged_frames(facts)))
        return health if health.state is not HealthState.OK or not self._still_holds(facts) else self.carried

    def _judged_frames(self, facts: WindowFacts) -> FrameCount:
        """Returns the open window's frames, or none while they are too few to judge."""
        while_us = min(_A_WHILE_US, (self.until_us - self.from_us) // 2)
        return facts.frames if facts.span_us >= while_us else FrameCount()

    def _still_holds(self, facts: WindowFacts) -> bool:
        """Returns whether this window has not yet shown that the last window's state is over."""
        match self.carried.state:
            case HealthState.BEHIND:
                return self._judged_frames(facts).due < FEWEST_FRAMES
            case HealthState.UNLABELLED:
                return facts.labels is LabelState.NOT_DUE
            case HealthState.STALE:
                return self.job is None and not facts.retrained
            case _:
                return False

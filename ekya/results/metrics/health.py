"""Judges whether a stream got what it needs in a window: a state, its reason and a remedy."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from ekya.core.configs import InferenceConfig
from ekya.core.records import PredictionColumns
from ekya.core.units import StreamId, us_to_seconds

TOLERATED_PART = 0.1
"""Fraction of the frames that λ intends, and of a window's time, that may be missing without a report."""

FEWEST_FRAMES = 10
"""Minimum number of intended frames for a judgement."""

STALE_GAIN = 0.1
"""Minimum gain of a micro-profile, which is shorter than any retraining, for a retraining to pay."""

UNWELL_PART = 0.5
"""A run with a larger fraction of stream-windows that are not ``ok`` has failed its purpose."""


class HealthState(StrEnum):
    """State of a stream; if several hold, the last one listed here is reported."""

    OK = "ok"
    STALE = "stale"
    """Retraining would pay, but did not take place."""
    UNLABELLED = "unlabelled"
    """Its labels came too late or not at all, or they are of frames without any object."""
    BEHIND = "behind"
    """Frames that λ intends were dropped."""
    LOST = "lost"
    """Its camera gave no frames, or they were not analysed."""


@dataclass(frozen=True, slots=True)
class Health:
    """A state, its reason and a remedy, each in one line; reason and remedy are empty for ``ok``."""

    state: HealthState = HealthState.OK
    reason: str = ""
    remedy: str = ""

    @property
    def line(self) -> str:
        """State, reason and remedy in one line, for display."""
        return f"{self.state}: {self.reason}; {self.remedy}" if self.reason else str(self.state)


WELL = Health()


@dataclass(frozen=True, slots=True)
class FrameCount:
    """Numbers of frames that λ intends to have analysed, that were, and that the GPU was too late for."""

    due: int = 0
    analysed: int = 0
    late_gpu: int = 0

    @property
    def dropped(self) -> int:
        """Number of intended frames that were not analysed."""
        return max(self.due - self.analysed, 0)

    def __add__(self, other: "FrameCount") -> "FrameCount":
        late_gpu = self.late_gpu + other.late_gpu
        return FrameCount(self.due + other.due, self.analysed + other.analysed, late_gpu)


class LabelState(StrEnum):
    """State of a stream's labels in a window."""

    NOT_DUE = "not due"
    IN_TIME = "in time"
    LATE = "late"
    MISSING = "missing"
    EMPTY = "empty"


class Gone(StrEnum):
    """Reason why a stream is silent; if several hold, the last one listed here is reported."""

    CAMERA = "camera"
    INFERENCE = "inference"
    SET_ASIDE = "set aside"


@dataclass(slots=True)
class WindowFacts:
    """Facts of one stream in one window.

    Attributes:
        index: the window.
        span_us: time for which the stream was in it.
        silent_us, gone, why: part of that time without answers, and the last reason.
        frames: numbers of its frames.
        inference, share_milli: λ and the inference share that were assigned last.
        labels: state of the labels for its retraining.
        broke: why its last retraining failed; None if none did.
        unfinished: its retraining reached no epoch before the window ended.
        retrained: a retraining of the window completed an epoch.
        missed_gain: gain of its best micro-profile.
    """

    index: int
    span_us: int
    silent_us: int = 0
    gone: Gone = Gone.CAMERA
    why: str = ""
    frames: FrameCount = FrameCount()
    inference: InferenceConfig | None = None
    share_milli: int = 0
    labels: LabelState = LabelState.NOT_DUE
    broke: str | None = None
    unfinished: bool = False
    retrained: bool = False
    missed_gain: float = 0.0


@dataclass(frozen=True, slots=True)
class WindowHealth:
    """Health of a stream in one window."""

    index: int
    health: Health


def judge_health(facts: WindowFacts) -> Health:
    """Returns the health of a stream in a window."""
    if facts.silent_us > TOLERATED_PART * facts.span_us:
        return _lost(facts)
    if is_behind(facts.frames):
        return _behind(facts)
    # What the golden detector answers does not depend on labels.
    by_golden = facts.inference is not None and facts.inference.by_golden
    if not by_golden and facts.labels in (LabelState.LATE, LabelState.MISSING, LabelState.EMPTY):
        return _unlabelled(facts)
    return _stale(facts)


def is_behind(frames: FrameCount) -> bool:
    """Returns whether too many of the intended frames were dropped."""
    return frames.due >= FEWEST_FRAMES and frames.dropped > TOLERATED_PART * frames.due


def counted_frames(predictions: PredictionColumns) -> Mapping[int, FrameCount]:
    """Returns the numbers of a stream's frames by window."""
    due = predictions.frame % np.maximum(predictions.every, 1) == 0
    return {
        int(window): FrameCount(
            int(np.count_nonzero(due & (predictions.window == window))),
            int(np.count_nonzero(predictions.analysed & (predictions.window == window))),
        )
        for window in np.unique(predictions.window)
    }


def health_values(streams: Mapping[StreamId, Sequence[WindowHealth]]) -> dict[str, Any]:
    """Returns ``health`` of a summary."""
    judged = _judged(streams)
    states = [one.health.state for one in judged]
    return {
        "judged": len(states),
        "total": {str(state): states.count(state) for state in HealthState},
        "sentence": _sentence(judged),
        "streams": {
            stream: [{"index": one.index, **asdict(one.health)} for one in windows]
            for stream, windows in sorted(streams.items())
        },
    }


def _judged(streams: Mapping[StreamId, Sequence[WindowHealth]]) -> list[WindowHealth]:
    """Returns the judged windows: not window 0, in which nothing is due, unless there is no other."""
    every = [one for windows in streams.values() for one in windows]
    return [one for one in every if one.index > 0] or every


def _sentence(judged: Sequence[WindowHealth]) -> str | None:
    """Returns in one sentence what is wrong with a run; None if it served its purpose."""
    unwell = [one.health for one in judged if one.health.state is not HealthState.OK]
    if len(unwell) <= UNWELL_PART * len(judged):
        return None
    states = [health.state for health in unwell]
    most = max(HealthState, key=states.count)
    counts = ", ".join(f"{states.count(state)} {state}" for state in HealthState if state in states)
    example = next(health for health in unwell if health.state is most)
    return (
        f"the streams were not well in {len(unwell)} of their {len(judged)} windows ({counts}); for example, "
        f"{example.reason}; {example.remedy}"
    )


def _lost(facts: WindowFacts) -> Health:
    for_s = f"{us_to_seconds(facts.silent_us):.1f} s"
    why = f" ({facts.why})" if facts.why else ""
    match facts.gone:
        case Gone.CAMERA:
            reason = f"its camera gave nothing for {for_s}{why}"
            remedy = "check the camera, its address and the network, or its file"
        case Gone.INFERENCE:
            reason = f"its inference was down for {for_s}{why}"
            remedy = "see what ended its process, often too little memory"
        case Gone.SET_ASIDE:
            reason = f"it was set aside{why}"
            remedy = "mend its cause; a service tries again by itself, at once with ekya ctl resume"
    return Health(HealthState.LOST, reason, remedy)


def _behind(facts: WindowFacts) -> Health:
    frames, config = facts.frames, facts.inference
    how = "" if config is None else f" ({config.name} at {facts.share_milli / 10:g}% of a GPU)"
    key = "inference.golden_every" if config is not None and config.by_golden else "inference.every"
    return Health(
        HealthState.BEHIND,
        f"{frames.dropped} of {frames.due} frames that it should analyse were dropped{how}",
        f"use more GPUs (--gpus) or fewer cameras, end other programs, or allow a coarser {key}",
    )


def _unlabelled(facts: WindowFacts) -> Health:
    if facts.labels is LabelState.EMPTY:
        return Health(
            HealthState.UNLABELLED,
            "the golden detector saw no object in its frames: at night or in an empty scene there is nothing "
            "to learn",
            "if there are objects, check the camera's view and classes, or use a better golden model",
        )
    came = "came too late" if facts.labels is LabelState.LATE else "did not come"
    return Health(
        HealthState.UNLABELLED,
        f"its labels {came} in the time that labelling has",
        "use longer windows (--window), a larger preparation.share_milli, or fewer labels "
        "(golden.labels_per_window, or golden.frames_per_window)",
    )


def _stale(facts: WindowFacts) -> Health:
    if facts.retrained:
        return WELL
    if facts.broke is not None:
        reason = f"its retraining broke ({facts.broke})"
        remedy = (
            "see the warnings; where memory was short, allow fewer trainable_blocks or smaller batch_sizes"
        )
    elif facts.unfinished:
        reason = "its retraining reached no epoch before the window ended"
        remedy = "use longer windows (--window), more GPUs (--gpus) or cheaper configurations (retraining)"
    elif facts.missed_gain >= STALE_GAIN and not (facts.inference and facts.inference.by_golden):
        points = f"{100 * facts.missed_gain:.0f} points"
        reason = (
            f"a trial of a few epochs gained {points}, and it was not retrained for want of share or time"
        )
        remedy = "use more GPUs (--gpus), longer windows (--window) or fewer cameras"
    else:
        return WELL
    return Health(HealthState.STALE, reason, remedy)

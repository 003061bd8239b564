"""Outcome of each stream in each window: whether it was retrained, with what, at what share, and why."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ekya.core import commands as cmd
from ekya.core.commands import StepRecord
from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.units import StreamId
from ekya.results.metrics.run_history import RunHistory, WindowSpan, mean_shares


@dataclass(frozen=True, slots=True)
class WindowOutcome:
    """Outcome of a stream in one window.

    Attributes:
        stream, index: the stream, and the index of the window.
        retrained: a model that was retrained in this window came into service.
        gamma: γ of the retraining that ran, None if none ran.
        inference: λ that held longest, None if the stream did not serve.
        retrain_share_milli, inference_share_milli: averaged over the window.
        reason: of the scheduler's decision, in one sentence.
        validation_accuracy: of the model that served when the labels of the window before were ready, on
            their validation part; None if there were none.
    """

    stream: StreamId
    index: int
    retrained: bool
    gamma: RetrainConfig | None
    inference: InferenceConfig | None
    retrain_share_milli: int
    inference_share_milli: int
    reason: str
    validation_accuracy: float | None = None


def list_outcomes(steps: Sequence[StepRecord], history: RunHistory) -> tuple[WindowOutcome, ...]:
    """Returns the outcome of each stream in each window that was not over when the stream was added."""
    return tuple(
        _outcome(steps, history, stream, window)
        for stream in history.streams
        for window in history.windows
        if history.added_us[stream] < window.end_us
    )


def _outcome(
    steps: Sequence[StepRecord], history: RunHistory, stream: StreamId, window: WindowSpan
) -> WindowOutcome:
    runs = [run for run in history.retrainings if run.window == window.index and run.stream == stream]
    retrain_milli, inference_milli = mean_shares(history.shares, stream, window.start_us, window.end_us)
    return WindowOutcome(
        stream=stream,
        index=window.index,
        retrained=any(run.job in history.served for run in runs),
        gamma=runs[-1].config if runs else None,
        inference=_longest_inference(steps, stream, window),
        retrain_share_milli=retrain_milli,
        inference_share_milli=inference_milli,
        reason=_reason(steps, stream, window),
        validation_accuracy=history.validation_accuracy.get((stream, window.index)),
    )


def _longest_inference(
    steps: Sequence[StepRecord], stream: StreamId, window: WindowSpan
) -> InferenceConfig | None:
    changes = [
        (max(step.now_us, window.start_us), command.config)
        for step in steps
        if step.now_us < window.end_us
        for command in step.commands
        if isinstance(command, cmd.SetInference) and command.stream == stream
    ]
    held_us: Counter[InferenceConfig] = Counter()
    for (from_us, config), (until_us, _) in pairwise([*changes, (window.end_us, None)]):
        if config is not None:
            held_us[config] += until_us - from_us
    # Ties go by the configuration, so that equal runs give equal summaries.
    return max(held_us, key=lambda config: (held_us[config], config), default=None)


def _reason(steps: Sequence[StepRecord], stream: StreamId, window: WindowSpan) -> str:
    """Returns the reason of the plan that started the window's last retraining, else of its last plan."""
    reason = started = ""
    for step in steps:
        if step.plan is None or not window.start_us <= step.now_us < window.end_us:
            continue
        for assignment in step.plan.phases[0].assignments:
            if assignment.stream == stream:
                reason = assignment.reason
        if any(isinstance(c, cmd.StartRetraining) and c.stream == stream for c in step.commands):
            started = reason
    return started or reason

"""Checks what retrainings promised: gains of their weights on labels that were made after them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.commands import StepRecord
from ekya.core.units import JobId, StreamId, us_to_seconds
from ekya.results.metrics.accuracy import rounded


@dataclass(frozen=True, slots=True)
class CheckedPromise:
    """A retraining whose weights served, and were compared on new labels with those before.

    Attributes:
        t_us: time of these labels.
        promised_gain: in accuracy, by the plan that started it.
        gain: on these labels.
        objects: that they show.
    """

    stream: StreamId
    t_us: int
    promised_gain: float
    gain: float
    objects: int


def check_promises(steps: Sequence[StepRecord]) -> Iterator[CheckedPromise]:
    """Yields the promises that were checked, in order.

    Where several retrainings of a stream came between two labels, none of them can be told from the others.
    """
    accuracy: dict[StreamId, float] = {}
    promised: dict[JobId, float] = {}
    served: dict[StreamId, set[JobId]] = {}
    for step in steps:
        for event in ev.in_order(step.events):
            match event:
                case ev.LabelsReady():
                    jobs, seen = served.pop(event.stream, set()), event.compared
                    if seen is not None and len(jobs) == 1:
                        gain = promised[jobs.pop()]
                        yield CheckedPromise(
                            event.stream, event.t_us, gain, seen.new - seen.old, seen.objects
                        )
                    known = event.accuracy_on_all
                    accuracy[event.stream] = event.serving_accuracy if known is None else known
                case ev.ModelSwapped() if event.job in promised:
                    served.setdefault(event.stream, set()).add(event.job)
                case ev.RolledBack():
                    served.pop(event.stream, None)
        for command in step.commands:
            if isinstance(command, cmd.StartRetraining) and command.stream in accuracy:
                promised[command.job] = command.expected_accuracy - accuracy[command.stream]


def promise_values(promise: CheckedPromise) -> dict[str, Any]:
    """Returns a checked promise as JSON values of a summary."""
    return {
        "stream": promise.stream,
        "at_s": round(us_to_seconds(promise.t_us), 3),
        "promised": rounded(promise.promised_gain),
        "came": rounded(promise.gain),
        "objects": promise.objects,
    }

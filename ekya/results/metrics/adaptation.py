"""Whether a run adapted its models, and if not, why: where that was asked for, serving is not enough."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ekya.core.units import StreamId
from ekya.results.metrics.accuracy import mean_or_none
from ekya.results.metrics.run_history import RunHistory

GOOD_ENOUGH = 0.9
"""Accuracy of the students on their labels from which nothing has to be retrained."""

MOSTLY = 0.5
"""Part of the frames that the golden detector answers itself, from which a student need not be retrained."""


@dataclass(frozen=True, slots=True)
class Adapted:
    """What a run did to adapt its models.

    Attributes:
        labelled: number of labelled objects.
        served: number of retrainings whose weights came into service.
        sentence: why nothing was adapted, with a remedy; None if something was, or nothing had to be.
    """

    labelled: int
    served: int
    sentence: str | None

    @property
    def values(self) -> dict[str, Any]:
        """``adaptation`` of a summary."""
        return {"labelled": self.labelled, "served": self.served, "sentence": self.sentence}


def judge_adaptation(history: RunHistory, *, asked: bool, golden_parts: Mapping[StreamId, float]) -> Adapted:
    """Returns what a run did to adapt its models.

    Args:
        history: of the run.
        asked: whether its scheduler retrains.
        golden_parts: of each stream, the part of the frames that the golden detector answered itself.
    """
    served = len(history.served)
    sentence = None if served or not asked else _reason(history, golden_parts)
    return Adapted(history.labels, served, sentence)


def _reason(history: RunHistory, golden_parts: Mapping[StreamId, float]) -> str | None:
    by_golden = mean_or_none(list(golden_parts.values()))
    if (by_golden or 0.0) >= MOSTLY:
        return None
    windows = len(history.windows)
    if not history.labels:
        if history.labellings:
            return (
                "nothing was adapted, since the golden model found no object in what it labelled; check the "
                "cameras' views and the classes (--classes), or use a better golden model (--golden)"
            )
        return (
            f"nothing was adapted, since no window was labelled in a run of {windows}; use shorter windows "
            "(--window), or a longer video"
        )
    accuracy = mean_or_none(list(history.validation_accuracy.values()))
    if (accuracy or 0.0) >= GOOD_ENOUGH:
        return None
    counts = history.retraining_counts()
    if not counts["started"]:
        return (
            "nothing was adapted, since no retraining that pays would have ended in its window; use longer "
            "windows (--window), more GPUs (--gpus) or fewer cameras"
        )
    if counts["finished"]:
        return (
            f"nothing was adapted: none of {counts['started']} retrainings gave better weights on the "
            "newest labels; use longer windows (--window), or more labels (golden.frames_per_window)"
        )
    return (
        f"nothing was adapted: {counts['started']} retrainings were begun, and none ended in its window; use "
        "longer windows (--window), more GPUs (--gpus) or fewer cameras"
    )

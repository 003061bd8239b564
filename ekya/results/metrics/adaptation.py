"""Verdict on a run that was to adapt its models: what it adapted, or why it adapted nothing."""

from collections.abc import Mapping
from dataclasses import dataclass

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
        sentence: why nothing was adapted though its scheduler retrains; None if something was.
        missed: whether something had to be; then the sentence has a remedy.
    """

    labelled: int
    served: int
    sentence: str | None = None
    missed: bool = False


def judge_adaptation(history: RunHistory, *, asked: bool, golden_parts: Mapping[StreamId, float]) -> Adapted:
    """Returns what a run did to adapt its models.

    Args:
        history: of the run.
        asked: whether its scheduler retrains.
        golden_parts: of each stream, the part of the frames that the golden detector answered itself.
    """
    served = len(history.served)
    if served or not asked:
        return Adapted(history.labels, served)
    excuse = _excuse(history, golden_parts)
    sentence = f"nothing was adapted, since {excuse or _reason(history)}"
    return Adapted(history.labels, served, sentence, missed=excuse is None)


def _excuse(history: RunHistory, golden_parts: Mapping[StreamId, float]) -> str | None:
    """Returns why nothing had to be adapted; None if something had."""
    by_golden = mean_or_none(list(golden_parts.values())) or 0.0
    if by_golden >= MOSTLY:
        return f"the golden detector answered {100 * by_golden:.0f}% of the frames itself"
    accuracy = mean_or_none(list(history.validation_accuracy.values())) or 0.0
    if accuracy >= GOOD_ENOUGH:
        return f"the models reach {100 * accuracy:.0f}% on new labels as they are"
    return None


def _reason(history: RunHistory) -> str:
    windows, counts = len(history.windows), history.retraining_counts()
    longer = "use longer windows (--window), more GPUs (--gpus) or fewer cameras"
    if not history.labels and history.labellings:
        return (
            "the golden model found no object in what it labelled; check the cameras' views and the classes "
            "(--classes), or use a better golden model (--golden)"
        )
    if not history.labels:
        many = "one window" if windows == 1 else f"{windows} windows"
        return f"a run of {many} had no labels; use shorter windows (--window), or a longer video"
    if not counts["started"]:
        return f"no retraining that pays would have ended in its window; {longer}"
    if not counts["finished"]:
        return f"of {counts['started']} retrainings none ended in its window; {longer}"
    return (
        f"of {counts['started']} retrainings none gave better weights on the newest labels; use longer "
        "windows (--window), or more labels (golden.frames_per_window, golden.labels_per_window)"
    )

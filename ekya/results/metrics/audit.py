"""Accuracy of a stream's answers from audits, with an interval: pure arithmetic.

A frame is a cluster: its objects are seen together, so they are right or wrong together, and count as less
than as many independent ones. The estimate is the ratio of two totals over all frames that arrived: parts
that are right over parts that count, where each audited frame stands for the frames that it was drawn from.
Its variance is that of a ratio of weighted clusters (linearised, with replacement).

The interval is Wilson's for as many independent parts as would have this variance. It stays within [0, 1],
and is not empty where all audited answers are right. There, and with few frames, the variance that a sample
shows is too small; so a right and a wrong frame of mean size are added to it, not to the estimate.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from ekya.core.preparation_events import AccuracyAudited
from ekya.core.units import US_PER_S

CONFIDENCE = 0.95
"""Probability with which an interval holds the accuracy."""

FEWEST_FRAMES = 5
"""Audited frames with objects below which nothing is said."""

RECENT_US = 3600 * US_PER_S
"""Audits of this time before the newest one count."""

FEWEST_AUDITS, MOST_AUDITS = 12, 400
"""Number of newest audits that count, even if they are older; and that are kept at most."""


@dataclass(frozen=True, slots=True)
class AuditEstimate:
    """Estimated accuracy of answers.

    Attributes:
        accuracy: in [0, 1].
        low, high: bounds of the 95% interval.
        frames: number of audited frames.
        since_us, until_us: run times of the first and the last audit.
    """

    accuracy: float
    low: float
    high: float
    frames: int
    since_us: int
    until_us: int


def estimate_accuracy(audits: Sequence[AccuracyAudited]) -> AuditEstimate | None:
    """Returns the accuracy that a stream's audits show; None with fewer than ``FEWEST_FRAMES`` with objects.

    Args:
        audits: in order of time.
    """
    audits = [one for one in audits if one.counted]
    counted = np.array([parts for one in audits for parts in one.counted], np.float64)
    correct = np.array([parts for one in audits for parts in one.correct], np.float64)
    frames, shown = len(counted), int(np.count_nonzero(counted))
    if shown < FEWEST_FRAMES:
        return None
    weights = np.repeat(
        [one.arrived / len(one.counted) for one in audits], [len(one.counted) for one in audits]
    )
    total, right = float((weights * counted).sum()), float((weights * correct).sum())
    mean = total / shown
    # Strictly between 0 and 1 by the two added frames, so the count that it gives below is above 0.
    ratio = (right + mean) / (total + 2 * mean)
    spread = float(((weights * (correct - ratio * counted)) ** 2).sum()) * frames / (frames - 1)
    added = (mean * ratio) ** 2 + (mean * (1 - ratio)) ** 2
    variance = (spread + added) / (total + 2 * mean) ** 2
    low, high = wilson_interval(
        right / total,
        ratio * (1 - ratio) / variance,
        float(stdtrit(shown - 1, (1 + CONFIDENCE) / 2)),
    )
    return AuditEstimate(right / total, low, high, frames, audits[0].t_us, audits[-1].t_us)


def wilson_interval(part: float, count: float, quantile: float) -> tuple[float, float]:
    """Returns Wilson's interval of a part of ``count`` independent things, which need not be whole."""
    by = quantile**2 / count
    centre = (part + by / 2) / (1 + by)
    half = float(np.sqrt(by * part * (1 - part) + by**2 / 4)) / (1 + by)
    return max(centre - half, 0.0), min(centre + half, 1.0)


class AuditTrail:
    """A stream's newest audits, in bounded memory: those of an hour, or the last twelve if these go further.

    Attributes:
        estimate: what they show; None while that is too little.
    """

    def __init__(self) -> None:
        self._audits: deque[AccuracyAudited] = deque(maxlen=MOST_AUDITS)
        self.estimate: AuditEstimate | None = None

    def add_audit(self, audit: AccuracyAudited) -> None:
        """Adds an audit, later than all before."""
        self._audits.append(audit)
        while len(self._audits) > FEWEST_AUDITS and self._audits[0].t_us <= audit.t_us - RECENT_US:
            self._audits.popleft()
        self.estimate = estimate_accuracy(self._audits)

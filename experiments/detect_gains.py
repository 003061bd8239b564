"""Gain of an adapted detector over one that stays as it is: by video, and in the mean over videos."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from estimate import Estimate

ADAPTED, FROZEN = "ekya", "no-retrain"

MOST_LOWER = 0.02
"""A video whose gain is below minus this is named."""


@dataclass(frozen=True, slots=True)
class Row:
    """Result of one way on one video.

    Attributes:
        way: scheduler of the student, or how often the golden detector runs.
        price: of a golden frame, in student's frames; ``real`` for the card's.
        f1: mean over the windows; None without objects.
        after: F1 on the frames from the adapted run's first hot swap on; None without one.
        gpu_s: GPU-seconds of everything.
    """

    video: str
    seed: int
    price: str
    way: str
    f1: float | None
    after: float | None
    gpu_s: float


@dataclass(frozen=True, slots=True)
class Gain:
    """F1 of the adapted student minus that of the same student without retraining.

    Attributes:
        over: a video, or the videos whose mean it is.
        price: as in ``Row``.
        seeds: number of seeds.
        whole: gain over the run.
        after: gain from the first hot swap on. A run without one gains nothing.
    """

    over: str
    price: str
    seeds: int
    whole: Estimate
    after: Estimate


def gains(rows: Sequence[Row], price: str, tuned_on: Collection[str] = ()) -> Iterator[Gain]:
    """Yields the gain on each video, then in the mean over videos.

    Args:
        rows: of all ways.
        price: of the rows that count.
        tuned_on: videos on which settings were chosen; if there are any, the last gain is that on the others.
    """
    pairs = _pairs([row for row in rows if row.price == price])
    videos = list(dict.fromkeys(video for video, _ in pairs))
    for video in videos:
        yield _gain(video, price, pairs, [video])
    if len(videos) > 1:
        yield _gain(f"mean of all {len(videos)} videos", price, pairs, videos)
    others = [video for video in videos if video not in tuned_on]
    if tuned_on and others:
        yield _gain(f"mean of the {len(others)} that no setting was chosen on", price, pairs, others)


def lower(every: Sequence[Gain], videos: Collection[str]) -> list[str]:
    """Returns the videos that lose more than 2 points over the run or after the first hot swap."""
    return [
        gain.over
        for gain in every
        if gain.over in videos and min(gain.whole.mean, gain.after.mean) < -MOST_LOWER
    ]


_Pairs = dict[tuple[str, int], tuple[float, float]]
"""Gain over the run and after the first hot swap, by video and seed."""


def _pairs(rows: Sequence[Row]) -> _Pairs:
    by_way = {(row.video, row.seed, row.way): row for row in rows}
    found: _Pairs = {}
    for (video, seed, way), row in by_way.items():
        before = by_way.get((video, seed, FROZEN))
        if way != ADAPTED or before is None or row.f1 is None or before.f1 is None:
            continue
        later = 0.0 if row.after is None or before.after is None else row.after - before.after
        found[video, seed] = row.f1 - before.f1, later
    return found


def _gain(over: str, price: str, pairs: _Pairs, videos: Sequence[str]) -> Gain:
    """Returns the gain in the mean over videos: videos are given, and seeds are drawn."""
    seeds = sorted({seed for video, seed in pairs if video in videos})
    each = [[pairs[video, seed] for video in videos if (video, seed) in pairs] for seed in seeds]
    whole, after = ([fmean(pair[part] for pair in own) for own in each] for part in (0, 1))
    return Gain(over, price, len(seeds), Estimate.over_seeds(whole), Estimate.over_seeds(after))

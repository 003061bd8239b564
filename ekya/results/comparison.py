"""Several schedulers on the same frames: played seed by seed, and scored on the same objects."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from scipy.special import stdtrit

from ekya.config.fleet_file import FleetConfig
from ekya.results.finalize import labelled_in_any, score_run
from ekya.results.metrics.accuracy import mean_or_none, rounded
from ekya.results.storage.run_folder import RunFolder

_LOG = logging.getLogger(__name__)

Play = Callable[[str, int], Path]
"""Plays a scheduler with a seed to its end, and returns the folder of the run."""


def compare_schedulers(
    fleet: FleetConfig, schedulers: Sequence[str], seeds: Sequence[int], play: Play
) -> dict[str, Any]:
    """Plays every scheduler with every seed.

    The schedulers of a seed follow each other, and another one begins with each seed, so that what changes on
    a machine meanwhile strikes all alike. An object that any scheduler took labels from counts for none, or
    its whole frame where models detect, so that all are scored on the same objects.

    Returns:
        ``runs``: the summary of each, with its accuracies on the common objects and its ``folder``;
        ``mean``: per scheduler its mean accuracy over the seeds, and per seed; ``pairs``: for each two the
        mean difference over the seeds, with its 95% interval by Student's t where there are several.
    """
    runs: list[dict[str, Any]] = []
    for number, seed in enumerate(seeds):
        first = number % len(schedulers)
        try:
            runs += _one_seed(fleet, (*schedulers[first:], *schedulers[:first]), seed, play)
        except KeyboardInterrupt:
            if not runs:
                raise
            _LOG.warning("stopped during seed %d; the seeds before it are compared", seed)
            break
    means = {name: _means(runs, name) for name in schedulers}
    pairs = [_difference(means, *names) for names in combinations(schedulers, 2)]
    return {"runs": runs, "mean": means, "pairs": pairs}


def _one_seed(fleet: FleetConfig, schedulers: Sequence[str], seed: int, play: Play) -> list[dict[str, Any]]:
    folders, summaries = {}, []
    for scheduler in schedulers:
        folder = folders[scheduler] = RunFolder(play(scheduler, seed))
        summary: dict[str, Any] = json.loads(folder.summary.read_text(encoding="utf-8"))
        summaries.append({**summary, "scheduler": scheduler, "folder": str(folder.path)})
    _score_alike(fleet, folders, summaries)
    return summaries


def _score_alike(
    fleet: FleetConfig, folders: Mapping[str, RunFolder], summaries: Sequence[dict[str, Any]]
) -> None:
    """Replaces the accuracies in one seed's summaries by those on objects that no run labelled."""
    labelled = {stream.id: labelled_in_any(folders.values(), stream.id) for stream in fleet.streams}
    for summary, folder in zip(summaries, folders.values(), strict=True):
        scores = score_run(folder, fleet, labelled)
        summary["mean_accuracy"] = rounded(mean_or_none([score.accuracy for score in scores.values()]))
        summary["balanced_accuracy"] = rounded(
            mean_or_none([score.balanced_accuracy for score in scores.values()])
        )
        summary["ap50"] = rounded(mean_or_none([score.ap50 for score in scores.values()]))
        for stream, score in scores.items():
            own = summary["streams"][stream]
            own["mean_accuracy"] = rounded(score.accuracy)
            own["balanced_accuracy"] = rounded(score.balanced_accuracy)
            own["ap50"] = rounded(score.ap50)
            own["counted_objects"] = score.objects
            own["excluded_objects"] = score.excluded_objects
            by_index = {window.index: window for window in score.windows}
            for window in own["windows"]:
                scored = by_index.get(window["index"])
                window["accuracy"] = rounded(scored.accuracy if scored else None)
                window["ap50"] = rounded(scored.ap50 if scored else None)


def _means(runs: Sequence[Mapping[str, Any]], scheduler: str) -> dict[str, Any]:
    own = [run for run in runs if run["scheduler"] == scheduler]
    return {
        "mean_accuracy": rounded(mean_or_none([run["mean_accuracy"] for run in own])),
        "balanced_accuracy": rounded(mean_or_none([run["balanced_accuracy"] for run in own])),
        "ap50": rounded(mean_or_none([run["ap50"] for run in own])),
        "by_seed": {str(run["seed"]): run["mean_accuracy"] for run in own},
    }


def _difference(means: Mapping[str, Mapping[str, Any]], first: str, second: str) -> dict[str, Any]:
    """Returns by how much the first of two schedulers is above the second, paired by seed."""
    one, other = means[first]["by_seed"], means[second]["by_seed"]
    differences = [
        one[seed] - other[seed] for seed in one if one[seed] is not None and other.get(seed) is not None
    ]
    mean = fmean(differences) if differences else None
    half = None
    if len(differences) > 1:
        half = stdev(differences) / len(differences) ** 0.5 * float(stdtrit(len(differences) - 1, 0.975))
    return {
        "above": first,
        "below": second,
        "difference": rounded(mean),
        "low": rounded(None if mean is None or half is None else mean - half),
        "high": rounded(None if mean is None or half is None else mean + half),
    }

"""`ekya compare`: runs several schedulers on the same frames and scores them on the same objects."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ekya.config.fleet_file import FleetConfig
from ekya.config.run_options import RunOptions
from ekya.pipeline.base_model import warn_of_teacher
from ekya.pipeline.costs import CostCard, load_card
from ekya.pipeline.discover_classes import with_classes
from ekya.results.finalize import labelled_in_any, score_run
from ekya.results.metrics.accuracy import mean_or_none, rounded
from ekya.results.storage.run_folder import RunFolder, plain_name
from ekya.simulation.emulated.run import emulate
from ekya.system.files import write_bytes_atomic

_LOG = logging.getLogger(__name__)


def compare(
    fleet: FleetConfig, schedulers: tuple[str, ...], seeds: tuple[int, ...], options: RunOptions
) -> dict[str, Any]:
    """Runs every scheduler with every seed in the emulated world, each under its own preset.

    All have the windows of the fleet, since their results are compared window by window.

    An object that any scheduler took labels from counts for none, or its whole frame where models detect,
    so that all are scored on the same objects.

    Returns:
        ``runs``: the summary of each, with its accuracies on the common objects and its ``folder``;
        ``mean``: per scheduler its mean accuracy over the seeds, and per seed.
    """
    fleet, card = with_classes(fleet), load_card(options.card)
    fleet = fleet.model_copy(update={"window_s": fleet.window_s})
    warn_of_teacher(fleet)
    root = options.runs / (options.name or f"compare-{fleet.name}")
    runs: list[dict[str, Any]] = []
    for seed in seeds:
        try:
            runs += _one_seed(fleet, schedulers, seed, root, card)
        except KeyboardInterrupt:
            if not runs:
                raise
            _LOG.warning("stopped during seed %d; the seeds before it are compared", seed)
            break
    return {"runs": runs, "mean": {name: _means(runs, name) for name in schedulers}}


def _one_seed(
    fleet: FleetConfig, schedulers: tuple[str, ...], seed: int, root: Path, card: CostCard
) -> list[dict[str, Any]]:
    folders, summaries = {}, []
    for scheduler in schedulers:
        folders[scheduler] = RunFolder.create_numbered(root, plain_name(f"{scheduler}-seed{seed}"))
        _reuse_references(fleet, root, folders[scheduler])
        _LOG.info("%s, seed %d: runs in %s", scheduler, seed, folders[scheduler].path)
        summary = emulate(
            folders[scheduler], fleet.with_preset(scheduler), scheduler, seed, lambda batch, step: None, card
        )
        summaries.append({**summary, "folder": str(folders[scheduler].path)})
    _score_alike(fleet, folders, summaries)
    return summaries


def _reuse_references(fleet: FleetConfig, root: Path, folder: RunFolder) -> None:
    """Copies the golden detector's labels of whole videos from an earlier run; they are the same for all."""
    for stream in fleet.streams:
        made = sorted(root.glob(f"*/reference/{stream.id}.parquet"))
        if made and not stream.source.gives_truth:
            write_bytes_atomic(folder.reference(stream.id), made[0].read_bytes())


def _score_alike(
    fleet: FleetConfig, folders: dict[str, RunFolder], summaries: Sequence[dict[str, Any]]
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


def _means(runs: Sequence[dict[str, Any]], scheduler: str) -> dict[str, Any]:
    own = [run for run in runs if run["scheduler"] == scheduler]
    return {
        "mean_accuracy": rounded(mean_or_none([run["mean_accuracy"] for run in own])),
        "balanced_accuracy": rounded(mean_or_none([run["balanced_accuracy"] for run in own])),
        "ap50": rounded(mean_or_none([run["ap50"] for run in own])),
        "by_seed": {str(run["seed"]): run["mean_accuracy"] for run in own},
    }

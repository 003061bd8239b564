"""`ekya compare`: runs several schedulers on the same frames, on virtual time."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ekya.config.fleet_file import FleetConfig
from ekya.config.run_options import RunOptions
from ekya.pipeline.costs import load_card
from ekya.pipeline.discover_classes import with_classes
from ekya.pipeline.first_look import warn_before_run
from ekya.planning.schedulers.registry import scheduler_word
from ekya.planning.schedulers.scheduler import Scheduler
from ekya.results.comparison import compare_schedulers
from ekya.results.storage.run_folder import RunFolder, plain_name
from ekya.simulation.emulated.run import emulate
from ekya.system.files import write_bytes_atomic

_LOG = logging.getLogger(__name__)


def compare(
    fleet: FleetConfig, schedulers: Sequence[str | Scheduler], seeds: Sequence[int], options: RunOptions
) -> dict[str, Any]:
    """Runs every scheduler with every seed in the emulated world, each under its own preset.

    All have the windows of the fleet, since their results are compared window by window.

    Returns:
        As ``compare_schedulers``.
    """
    fleet, card = with_classes(fleet), load_card(options.card)
    fleet = fleet.model_copy(update={"window_s": fleet.window_s})
    warn_before_run(fleet)
    given = {scheduler_word(one): one for one in schedulers}
    root = options.runs / (options.name or f"compare-{fleet.name}")

    def play(scheduler: str, seed: int) -> Path:
        folder = RunFolder.create_numbered(root, plain_name(f"{scheduler}-seed{seed}"))
        _reuse_references(fleet, root, folder)
        _LOG.info("%s, seed %d: runs in %s", scheduler, seed, folder.path)
        emulate(folder, fleet.with_preset(scheduler), given[scheduler], seed, lambda batch, step: None, card)
        return folder.path

    return compare_schedulers(fleet, tuple(given), seeds, play)


def _reuse_references(fleet: FleetConfig, root: Path, folder: RunFolder) -> None:
    """Copies the golden detector's labels of whole videos from an earlier run; they are the same for all."""
    for stream in fleet.streams:
        made = sorted(root.glob(f"*/reference/{stream.id}.parquet"))
        if made and not stream.source.gives_truth:
            write_bytes_atomic(folder.reference(stream.id), made[0].read_bytes())

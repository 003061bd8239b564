"""`ekya compare`: runs several schedulers on the same frames, on virtual time."""

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
from ekya.results.storage.run_folder import plain_name
from ekya.simulation.emulated.play_once import play_once


def compare(
    fleet: FleetConfig, schedulers: Sequence[str | Scheduler], seeds: Sequence[int], options: RunOptions
) -> dict[str, Any]:
    """Runs every scheduler with every seed in the emulated world, each under its own preset.

    All have the windows of the fleet, since their results are compared window by window. Finished runs of an
    earlier comparison with the same inputs are taken from it, since they would be the same.

    Returns:
        As ``compare_schedulers``.
    """
    fleet, card = with_classes(fleet), load_card(options.card)
    fleet = fleet.model_copy(update={"window_s": fleet.window_s})
    warn_before_run(fleet)
    given = {scheduler_word(one): one for one in schedulers}
    root = options.runs / (options.name or f"compare-{fleet.name}")

    def play(scheduler: str, seed: int) -> Path:
        name = plain_name(f"{scheduler}-seed{seed}")
        return play_once(root, name, fleet.with_preset(scheduler), given[scheduler], seed, card)

    return compare_schedulers(fleet, tuple(given), seeds, play)

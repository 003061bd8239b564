"""Chooses a fleet's open sizes for the machine that it runs on."""

from collections.abc import Mapping
from typing import Any

from ekya.config.fleet_file import MAX_PREPARATION_FRACTION, OPEN, FleetConfig, KeptFrames
from ekya.core.host import HostCosts
from ekya.core.units import FULL_GPU_MILLI
from ekya.planning.profiling.sizes import COARSER_RESOLUTION, RESOLUTIONS, Machine, Sizes, Wishes, fit

ANY_MACHINE = Machine(None)
"""Machine of a run on virtual time."""


def fitted(
    fleet: FleetConfig, costs: HostCosts, machine: Machine, *, overload: bool = False
) -> tuple[FleetConfig, tuple[str, ...]]:
    """Returns the fleet with all of its sizes, and sentences about what was given up for them.

    Values of the file stay, except ``gpus`` above what the machine has and a preparation that does not fit
    beside the cameras' inference. A fitted fleet stays unchanged on the same machine.

    Args:
        fleet: as read.
        costs: costs of its work, at least at ``resolutions_to_measure``.
        machine: what the machine has.
        overload: continue where not even the coarsest inference of all cameras fits.

    Raises:
        UserError: the fleet does not fit; says how many cameras would, and what to change.
    """
    found = fit(_wishes(fleet), costs, machine, overload=overload)
    values = _values(fleet, found.sizes)
    chosen = {key: value for key, value in values.items() if not fleet.says(key) or _of(fleet, key) != value}
    parts: dict[str, dict[str, object]] = {}
    for key, value in chosen.items():
        part, _, name = key.rpartition(".")
        parts.setdefault(part, {})[name] = value
    top = parts.pop("", {})
    top |= {part: getattr(fleet, part).model_copy(update=update) for part, update in parts.items()}
    return fleet.model_copy(update=top), found.gave_up


def resolutions_to_measure(fleet: FleetConfig) -> tuple[int, ...]:
    """Returns the resolutions at which a frame's cost must be measured before sizes can be chosen."""
    if fleet.says("inference.resolutions"):
        return tuple(fleet.inference.resolutions)
    return (*RESOLUTIONS, COARSER_RESOLUTION)


def _wishes(fleet: FleetConfig) -> Wishes:
    said = {key: _of(fleet, key) if fleet.says(key) else None for key in OPEN}
    kept: KeptFrames | None = said["preparation.frames"]
    return Wishes(
        longest_part=MAX_PREPARATION_FRACTION,
        least_epochs=min(fleet.retraining.epochs),
        least_data=min(fleet.retraining.data_fractions),
        labels=fleet.golden.labels_per_window,
        label_gpu_s=fleet.golden.gpu_s_per_window,
        capacity_milli=None if said["gpus"] is None else round(said["gpus"] * FULL_GPU_MILLI),
        window_s=said["window_s"],
        quantum_milli=said["quantum_milli"],
        steal_milli=said["steal_milli"],
        preparation_milli=said["preparation.share_milli"],
        preparation_part=said["preparation.fraction"],
        prepared=said["preparation.streams"],
        draws_frames=None if kept is None else kept is KeptFrames.DRAWN,
        min_accuracy=said["min_accuracy"],
        every=said["inference.every"],
        resolutions=said["inference.resolutions"],
        trainable_blocks=said["retraining.trainable_blocks"],
    )


def _of(fleet: FleetConfig, key: str) -> Any:
    part, _, name = key.rpartition(".")
    return getattr(getattr(fleet, part) if part else fleet, name)


def _values(fleet: FleetConfig, sizes: Sizes) -> Mapping[str, object]:
    rounded_milli = round(fleet.gpus * FULL_GPU_MILLI) // sizes.quantum_milli * sizes.quantum_milli
    kept = fleet.says("gpus") and rounded_milli == sizes.capacity_milli
    return {
        "gpus": fleet.gpus if kept else sizes.capacity_milli / FULL_GPU_MILLI,
        "window_s": sizes.window_s,
        "quantum_milli": sizes.quantum_milli,
        "steal_milli": sizes.steal_milli,
        "preparation.share_milli": sizes.preparation_milli,
        "preparation.fraction": sizes.preparation_part,
        "preparation.streams": sizes.prepared,
        "preparation.frames": KeptFrames.DRAWN if sizes.draws_frames else KeptFrames.ANALYSED,
        "min_accuracy": sizes.min_accuracy,
        "inference.every": sizes.every,
        "inference.resolutions": sizes.resolutions,
        "retraining.trainable_blocks": sizes.trainable_blocks,
    }

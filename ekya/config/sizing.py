"""Chooses a fleet's open sizes for the machine that it runs on."""

from collections.abc import Mapping
from operator import attrgetter

from ekya.config.fleet_file import LABELLED_FRAMES, OPEN, FleetConfig
from ekya.config.fleet_sections import MAX_PREPARATION_FRACTION, KeptFrames, frame_sides
from ekya.core.host import HostCosts
from ekya.core.profile import Profiler
from ekya.core.units import FULL_GPU_MILLI
from ekya.models.edge.architecture_table import Task
from ekya.planning.sizing.choose_sizes import choose_fleet_sizes
from ekya.planning.sizing.fleet_sizes import COARSER_RESOLUTION, RESOLUTIONS, MachineSize, Sizes, Wishes

LEAST_FRAMES = 4
"""Fewest frames of a camera that the golden detector labels in a window."""

ANY_MACHINE = MachineSize(None)
"""Machine of a run on virtual time."""


def fit_fleet(
    fleet: FleetConfig, costs: HostCosts, machine: MachineSize, *, overload: bool = False
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
    found = choose_fleet_sizes(_wishes(fleet), costs, machine, overload=overload)
    values = _values(fleet, found.sizes)
    chosen = {
        key: value
        for key, value in values.items()
        if not fleet.is_set(key) or attrgetter(key)(fleet) != value
    }
    parts: dict[str, dict[str, object]] = {}
    for key, value in chosen.items():
        part, _, name = key.rpartition(".")
        parts.setdefault(part, {})[name] = value
    top = parts.pop("", {})
    top |= {part: getattr(fleet, part).model_copy(update=update) for part, update in parts.items()}
    return fleet.model_copy(update=top), found.gave_up


def resolutions_to_measure(fleet: FleetConfig) -> tuple[int, ...]:
    """Returns the resolutions at which a frame's cost must be measured before sizes can be chosen."""
    if fleet.is_set("inference.resolutions"):
        return tuple(fleet.inference.resolutions)
    usual, coarser = _usual_resolutions(fleet)
    return usual if coarser is None else (*usual, coarser)


def _usual_resolutions(fleet: FleetConfig) -> tuple[tuple[int, ...], int | None]:
    """Returns the resolutions to choose where the file sets none, and another where time is short."""
    if fleet.edge.task is Task.DETECT:
        return frame_sides(fleet.edge.resolution), None
    return RESOLUTIONS, COARSER_RESOLUTION


def _wishes(fleet: FleetConfig) -> Wishes:
    given = {name: attrgetter(key)(fleet) for key, name in OPEN.items() if fleet.is_set(key)}
    if "capacity_milli" in given:
        given["capacity_milli"] = round(fleet.gpus * FULL_GPU_MILLI)
    if not fleet.offers_golden:
        given["golden_every"] = ()
    if "draws_frames" in given:
        given["draws_frames"] = fleet.preparation.frames is KeptFrames.DRAWN
    usual, coarser = _usual_resolutions(fleet)
    detects = fleet.edge.task is Task.DETECT
    return Wishes(
        longest_part=MAX_PREPARATION_FRACTION,
        least_epochs=min(fleet.retraining.epochs),
        least_data=min(fleet.retraining.data_fractions),
        labels=fleet.golden.frames_per_window if detects else fleet.golden.labels_per_window,
        least_labels=LEAST_FRAMES if detects and not fleet.is_set(LABELLED_FRAMES) else None,
        tries=fleet.preparation.profiler is Profiler.PAPER,
        label_gpu_s=fleet.golden.gpu_s_per_window,
        windows=fleet.windows,
        usual_resolutions=usual,
        coarser_resolution=coarser,
        **given,
    )


def _values(fleet: FleetConfig, sizes: Sizes) -> Mapping[str, object]:
    rounded_milli = round(fleet.gpus * FULL_GPU_MILLI) // sizes.quantum_milli * sizes.quantum_milli
    kept = fleet.is_set("gpus") and rounded_milli == sizes.capacity_milli
    return {
        **{key: getattr(sizes, name) for key, name in OPEN.items()},
        "gpus": fleet.gpus if kept else sizes.capacity_milli / FULL_GPU_MILLI,
        "preparation.frames": KeptFrames.DRAWN if sizes.draws_frames else KeptFrames.ANALYSED,
        **({LABELLED_FRAMES: sizes.labels} if fleet.edge.task is Task.DETECT else {}),
    }

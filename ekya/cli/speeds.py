"""``ekya speeds``: measures training and inference speed at shares of this device, and stores the result."""

from dataclasses import asdict, replace

from rich.table import Table

from ekya.cli.output import Output, bars_of
from ekya.config.fleet_file import DEFAULT_FLEET, FleetConfig, load_fleet
from ekya.config.shipped import shipped_path
from ekya.core.errors import UserError
from ekya.core.speed import ModelSpeeds
from ekya.gpu.backends.registry import choose_backend
from ekya.models.edge.architectures import EDGE_MODELS
from ekya.pipeline.setup import crop_side
from ekya.pipeline.speed_probe import SHARES_MILLI, TOGETHER, ProbeSpec, measure_speeds
from ekya.pipeline.speeds import SPEEDS, speed_key
from ekya.planning.profiling.speed_curves import among_others


def measure(model: str | None, shares: str, seconds: float, output: Output) -> None:
    """Measures, stores and prints the speeds of an edge model.

    Raises:
        UserError: the model or share backend is unknown, or the speeds cannot be stored.
    """
    fleet = load_fleet(shipped_path(DEFAULT_FLEET))
    model = model or fleet.edge.model
    if model not in EDGE_MODELS:
        raise UserError(f"--model {model}: there is no such edge model; use one of {', '.join(EDGE_MODELS)}")
    chosen = choose_backend(shares)
    key = speed_key(chosen, model)
    spec = _spec(fleet, model, chosen.capability.device, seconds)
    with chosen.backend.open(1) as opened, bars_of(output.console) as bars:
        bar = bars.add_task(f"{model} with {chosen.name}", total=2 * (len(SHARES_MILLI) + len(TOGETHER)))
        speeds = measure_speeds(opened, spec, progress=lambda: bars.advance(bar))
    SPEEDS.save(key, speeds)
    output.report({**key, "speeds": asdict(speeds), "planned_with": among_others(speeds.training).points})
    output.console.print(_table(f"{model} on {key['device']}, shares by {chosen.name}", speeds))
    output.console.print(
        f"Kept in {SPEEDS.path}; every run here plans with it.", highlight=False, soft_wrap=True
    )


def _spec(fleet: FleetConfig, model: str, device: str, seconds: float) -> ProbeSpec:
    """Returns a probe of the most expensive γ of the shipped fleet, with its smallest batches."""
    deepest = max(fleet.retrain_configs(), key=lambda config: (config.trainable_blocks, -config.batch_size))
    return ProbeSpec(model, crop_side(fleet), replace(deepest, data_fraction=1.0), device, seconds)


def _table(title: str, speeds: ModelSpeeds) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in ("share", "training", "training among others", "inference"):
        table.add_column(heading, justify="right")
    training, inference = speeds.training.alone, speeds.inference.alone
    planned = among_others(speeds.training)
    shares = sorted({share for curve in (training, planned, inference) for share, _ in curve.points if share})
    for share in shares:
        values = (curve.speed(share) for curve in (training, planned, inference))
        table.add_row(f"{share / 10:g}%", *(f"{value:.3f}" for value in values))
    for own, other in zip(speeds.training.together, speeds.inference.together, strict=True):
        table.add_row(f"{own.jobs} jobs together", f"{own.throughput:.3f}", "", f"{other.throughput:.3f}")
    return table

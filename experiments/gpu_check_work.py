"""Checks of `make gpu-check`: training and inference at shares, alone and together, and without shares."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING

import gpu_check_energy as energy
from gpu_check_mps import seen_by_cuda
from gpu_check_report import Finding
from inference_ways import FRAME_SIDE

from ekya.core.configs import RetrainConfig
from ekya.core.errors import UserError
from ekya.core.units import FULL_GPU_MILLI
from ekya.gpu.backends.backend import Measured, Resized, ShareBackend, ShareJob
from ekya.gpu.backends.registry import SHARE_BACKENDS, Machine
from ekya.gpu.nvml import GpuInventory
from ekya.models.edge.architecture_table import FASTESTDET
from ekya.pipeline.speed_jobs import KINDS, Kind, ProbeSpec, Rate, probes, rates_at
from ekya.system.host import cpu_limit

if TYPE_CHECKING:
    from ekya.gpu.window_meter import GpuMeter

SHARES_MILLI = tuple(range(125, 1001, 125))
SPEC = ProbeSpec("resnet18", 32, RetrainConfig(1, 32, 0, 5, 1.0), "cuda", 0.6)
"""All blocks train, in batches of 32; an inference is a frame of six objects."""

STUDENT = ProbeSpec(FASTESTDET, FRAME_SIDE, RetrainConfig(1, 8, 0, 5, 1.0), "cuda", 0.6)
"""The same of a detector; an inference is a whole frame."""

QUARTERS_MILLI = tuple(range(250, 1001, 250))

KEPT = 0.9
"""Lowest accepted part of an expected speed."""

Both = tuple[Rate, Rate]
"""Rates of training and of inference, at the same time."""


class NoShares:
    """Share backend without any limit. Both backend and handle, with the methods that probes use."""

    def actor_env(self, job: ShareJob) -> Mapping[str, str]:
        """Sets nothing."""
        return {}

    def attach_job(self, job: ShareJob) -> "NoShares":
        """Returns itself as the handle."""
        return self

    def resize(self, share_milli: int) -> Resized:
        """Grants the full GPU."""
        return Resized(FULL_GPU_MILLI, 0)

    def scope(self) -> AbstractContextManager[None]:
        """Returns an empty context for a batch."""
        return nullcontext()

    def measured(self) -> Measured:
        """Measures nothing."""
        return Measured(0, 0)

    def release(self) -> None:
        """Does nothing."""


def work() -> Iterator[Finding]:
    """Checks classifiers, and what they take in energy."""
    inventory = seen_by_cuda()
    with energy.metered(inventory) as meter:
        yield from _work(inventory, SPEC, SHARES_MILLI, meter)


def student() -> Iterator[Finding]:
    """Checks detectors, at fewer shares."""
    yield from _work(seen_by_cuda(), STUDENT, QUARTERS_MILLI, None)


def _work(
    inventory: GpuInventory, spec: ProbeSpec, shares_milli: Sequence[int], meter: "GpuMeter | str | None"
) -> Iterator[Finding]:
    """Checks the first usable share backend, in the order of ``--shares auto``, and then no shares."""
    machine = Machine(cpu_limit(), inventory)
    for name, make in SHARE_BACKENDS.items():
        backend = make(machine)
        capability = backend.probe_machine()
        if not capability.usable or capability.device != "cuda":
            continue
        try:
            half = yield from with_shares(backend, name, spec, shares_milli, meter)
        except (UserError, RuntimeError) as error:
            yield Finding(
                f"training and inference of a {spec.architecture} by {name}", "work", str(error), False
            )
            continue
        yield from without_shares(name, half, spec)
        return


def with_shares(
    backend: ShareBackend,
    name: str,
    spec: ProbeSpec,
    shares_milli: Sequence[int],
    meter: "GpuMeter | str | None",
) -> Generator[Finding, None, Both]:
    """Measures training and inference, alone at each share, and then together; returns both rates at half.

    Args:
        backend: not open yet.
        name: its name.
        spec: models and batches of training and inference.
        shares_milli: rising in equal steps; the last is 1000.
        meter: of the GPU, or why there is none; None if energy is not to be measured.

    Raises:
        UserError: the backend cannot be opened, or a job cannot begin.
        RuntimeError: a job has died.
    """
    with backend.open(1) as opened, probes(opened, spec, KINDS) as (trainer, predictor):
        alone: dict[Kind, list[Rate]] = {}
        for kind, own, other in zip(KINDS, (trainer, predictor), (predictor, trainer), strict=True):
            rates_at([(other, 0)])
            alone[kind] = [rates_at([(own, share)])[0] for share in shares_milli]
            yield _alone(kind, name, spec, alone[kind])
        rates_at([(predictor, 0)])
        if meter is not None:
            yield from energy.of_images(meter, lambda: rates_at([(trainer, FULL_GPU_MILLI)])[0])

        def together(share_milli: int) -> Both:
            training, inference = rates_at(
                [(trainer, share_milli), (predictor, FULL_GPU_MILLI - share_milli)]
            )
            return training, inference

        beside = [together(share) for share in shares_milli[:-1]]
        yield _beside(name, spec, alone, beside)
        if meter is not None:
            yield from energy.of_jobs(meter, lambda: together(FULL_GPU_MILLI // 2))
    return beside[len(beside) // 2]


def without_shares(name: str, held: Both, spec: ProbeSpec) -> Iterator[Finding]:
    """Runs the same two processes without shares, beside the rates that were held to half each."""
    with probes(NoShares(), spec, KINDS) as (trainer, predictor):
        training, inference = rates_at([(trainer, FULL_GPU_MILLI), (predictor, FULL_GPU_MILLI)])
    with_ms, without_ms = held[1].p99_ms, inference.p99_ms
    yield Finding(
        f"inference of a {spec.architecture} beside training, with half each by {name} and without shares",
        "the 99th percentile of a frame's latency no higher with shares than without",
        f"with: {_latency(held[1])}, training {held[0].images_per_s:.0f}/s; "
        f"without: {_latency(inference)}, training {training.images_per_s:.0f}/s",
        with_ms <= without_ms,
        {
            "with_shares": {"training": asdict(held[0]), "inference": asdict(held[1])},
            "without_shares": {"training": asdict(training), "inference": asdict(inference)},
        },
    )


def _alone(kind: Kind, name: str, spec: ProbeSpec, rates: Sequence[Rate]) -> Finding:
    full = rates[-1]
    parts = [rate.images_per_s / full.images_per_s for rate in rates]
    granted = [rate.granted_milli / full.granted_milli for rate in rates]
    told = [
        f"{rate.granted_milli / 10:g}%: {_latency(rate) if kind == 'inference' else _images(rate)}"
        for rate in rates
    ]
    return Finding(
        f"{kind} of a {spec.architecture} at {len(rates)} shares by {name}, alone",
        f"a part of the GPU gives at least {KEPT:.0%} of that part of the speed",
        "; ".join(told),
        all(part >= KEPT * share for part, share in zip(parts, granted, strict=True)),
        {"rates": [asdict(rate) for rate in rates]},
    )


def _beside(
    name: str, spec: ProbeSpec, alone: Mapping[Kind, Sequence[Rate]], beside: Sequence[Both]
) -> Finding:
    """Compares training at a share beside inference at the rest with each alone."""
    left = list(reversed(alone["inference"][:-1]))
    kept = [
        (own.images_per_s / one.images_per_s, other.images_per_s / two.images_per_s)
        for (own, other), one, two in zip(beside, alone["training"][:-1], left, strict=True)
    ]
    told = [
        f"{own.granted_milli / 10:g}% and {other.granted_milli / 10:g}%: training {_images(own)}, "
        f"inference {_latency(other)}"
        for own, other in beside
    ]
    return Finding(
        f"training and inference of a {spec.architecture} by {name}, beside each other",
        f"each at least {KEPT:.0%} of its speed alone at that share",
        f"at least {min(map(min, kept)):.0%}; " + "; ".join(told),
        min(map(min, kept)) >= KEPT,
        {
            "rates": [{"training": asdict(own), "inference": asdict(other)} for own, other in beside],
            "kept": kept,
        },
    )


def _images(rate: Rate) -> str:
    return f"{rate.images_per_s:.0f}/s"


def _latency(rate: Rate) -> str:
    return f"{_images(rate)}, p50 {rate.p50_ms:.2f} ms, p99 {rate.p99_ms:.2f} ms"

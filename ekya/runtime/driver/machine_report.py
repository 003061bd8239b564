"""Examination of this machine: its resources, what Ekya will use of them, and why."""

import platform
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ekya import __version__
from ekya.config.fleet_file import DEFAULT_FLEET, FleetConfig
from ekya.config.fleet_reading import load_fleet
from ekya.config.shipped import describe_better_base, shipped_path
from ekya.config.sizing import resolutions_to_measure
from ekya.core.errors import UserError
from ekya.core.units import FULL_GPU_MILLI
from ekya.gpu.backends.cpu import cores_in_words
from ekya.gpu.backends.registry import Machine, choose_backend
from ekya.gpu.mps.service import FindMps, find_mps
from ekya.gpu.nvml import GpuInventory, list_gpus
from ekya.gpu.torch_build import find_torch
from ekya.models.catalogue import CATALOGUE, STUDENT, golden_candidates
from ekya.models.edge.architecture_table import Task
from ekya.models.onnx_wheels import onnxruntime_version, why_no_cuda
from ekya.pipeline.host_probe import CostProbe, ProbedHost
from ekya.pipeline.kept_measurements import SELF_TESTS, self_test_key
from ekya.planning.sizing.carried_cameras import CarriedCameras, count_carried_cameras
from ekya.results.storage.run_folder import FREE_BYTES_NEEDED
from ekya.runtime.driver.local_ray import fit_object_store
from ekya.streams.ingest.hardware import probe_hardware
from ekya.system.host import cpu_limit, instruction_set, processor_name, read_host_memory

ACTOR_BYTES = 800_000_000
"""Memory of one actor with torch loaded, measured."""


@dataclass(frozen=True, slots=True)
class MeasuredWork:
    """A fleet, and what its work costs here."""

    fleet: FleetConfig
    host: ProbedHost


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check.

    Attributes:
        what: name of the check.
        found: one sentence, or a figure with its unit.
        fine: False if a run cannot work like this.
    """

    what: str
    found: str
    fine: bool = True


@dataclass(frozen=True, slots=True)
class Examination:
    """Results of all checks.

    Attributes:
        findings: result of each check.
        shares: name of the share backend that ``auto`` takes.
        device: torch device of the jobs.
        gpus: number of GPUs that a fleet may use here.
        reasons: why these, and why not more; one sentence each.
        measured: measurements of this machine, in the format of ``host`` in ``summary.json``; empty if none
            were made.
        cameras: how many like those that were measured it carries; None if none were.
    """

    findings: tuple[Finding, ...]
    shares: str
    device: str
    gpus: float
    reasons: tuple[str, ...]
    measured: Mapping[str, object] = field(default_factory=dict)
    cameras: CarriedCameras | None = None

    @property
    def fine(self) -> bool:
        """True if ``ekya run`` can work here."""
        return all(finding.fine for finding in self.findings)


def examine_machine(
    runs: Path,
    inventory: GpuInventory | None = None,
    find_mps_of: FindMps = find_mps,
    measured: MeasuredWork | None = None,
) -> Examination:
    """Runs all checks without importing torch or Ray, which takes seconds.

    Args:
        runs: folder for runs; it need not exist.
        inventory: the GPUs; by default the driver is queried.
        find_mps_of: returns the state of MPS without starting anything.
        measured: costs of a fleet's work here, as ``measure_work`` returns them.
    """
    inventory = inventory or list_gpus()
    cores = cpu_limit()
    machine = Machine(cores, inventory, find_mps_of)
    chosen = choose_backend(machine=machine)
    device, cameras = chosen.capability.device, None
    if measured:
        gpus = 0 if device == "cpu" else chosen.capability.capacity_milli // FULL_GPU_MILLI
        cameras = count_carried_cameras(measured.host.costs, gpus)
    findings = (
        Finding(
            "CPU",
            f"{processor_name()} ({instruction_set()}), {cores_in_words(cores)} that this process may use",
        ),
        _memory(),
        _shared_memory(),
        _disk(runs),
        *_gpus(inventory),
        Finding(
            "MPS", find_mps_of(inventory).why if inventory.gpus else "not looked for, since there is no GPU"
        ),
        _package("Ray", "ray"),
        _torch(),
        _package("OpenCV", "opencv-python-headless"),
        _decoders(),
        _default_fleet(),
        _models_of_video(),
        _golden_models(device, measured),
        _forward(device, measured.fleet if measured else _shipped()),
        *(_frames(measured) if measured else ()),
        *((Finding("Cameras", cameras.sentence),) if cameras else ()),
    )
    return Examination(
        findings,
        chosen.name,
        device,
        chosen.capability.capacity_milli / FULL_GPU_MILLI,
        (*chosen.reasons, *_limits(device, inventory)),
        measured.host.summary() if measured else {},
        cameras,
    )


def _limits(device: str, inventory: GpuInventory) -> Iterator[str]:
    if device == "cpu" and inventory.gpus:
        yield "the GPU stays idle, since no backend can share it here"
    actors = read_host_memory().free_bytes // ACTOR_BYTES
    yield f"memory is enough for about {actors} actors at {ACTOR_BYTES / 1e9:.1f} GB"


def _memory() -> Finding:
    free = read_host_memory().free_bytes
    needed = 4 * ACTOR_BYTES
    remedy = "" if free > needed else f"; a run needs {needed / 1e9:.1f} GB: end other programs"
    return Finding("Memory", f"{free / 1e9:.1f} GB free{remedy}", free > needed)


def _shared_memory() -> Finding:
    store = fit_object_store()
    return Finding("Shared memory", store.slow or f"{store.size_bytes / 1e9:.1f} GB for Ray's object store")


def _disk(runs: Path) -> Finding:
    folder = runs.resolve()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    remedy = (
        "" if free >= FREE_BYTES_NEEDED else f"; a run needs {FREE_BYTES_NEEDED / 1e9:.1f} GB: delete files"
    )
    return Finding("Disk", f"{free / 1e9:.1f} GB free for {runs.resolve()}{remedy}", not remedy)


def _gpus(inventory: GpuInventory) -> Iterator[Finding]:
    if not inventory.gpus:
        yield Finding("GPU", f"none: {inventory.why}")
    for gpu in inventory.gpus:
        memory = "memory shared with the system"
        if gpu.memory_bytes is not None and gpu.memory_free_bytes is not None:
            memory = f"{gpu.memory_free_bytes / 1e9:.0f} of {gpu.memory_bytes / 1e9:.0f} GB free"
        yield Finding(f"GPU {gpu.index}", f"{gpu.name}, {memory}, driver {inventory.driver}")


def _package(what: str, name: str) -> Finding:
    try:
        return Finding(what, version(name))
    except PackageNotFoundError:
        return Finding(what, f"{name} is not installed; install Ekya again", False)


def _decoders() -> Finding:
    """Reports which hardware can decode video, by the key ``decoder`` of a camera or a video."""
    found = probe_hardware()
    there = ", ".join(kind for kind, why in found.items() if not why)
    missing = "; ".join(why for why in found.values() if why)
    return Finding("Decoders", f"cpu{f', {there}' if there else ''}{f'; not {missing}' if missing else ''}")


def _torch() -> Finding:
    build = find_torch()
    if build.broken:
        return Finding("torch", f"{build.broken}; install torch and torchvision anew", False)
    made_for = f"CUDA {build.cuda}" if build.cuda else "CPU only"
    return Finding("torch", f"{build.version} ({made_for}), torchvision {build.vision_version}")


def _shipped() -> FleetConfig:
    return load_fleet(shipped_path(DEFAULT_FLEET))


def start_measuring(fleet: FleetConfig) -> CostProbe:
    """Begins to run the self-test and to time a fleet's work, in a separate process."""
    return CostProbe(fleet, choose_backend().capability.device, cpu_limit(), again=True)


def measure_shipped() -> MeasuredWork:
    """Measures the work of the shipped fleet.

    Raises:
        UserError: the measurement failed.
    """
    fleet = _shipped()
    with start_measuring(fleet) as probe:
        return MeasuredWork(fleet, probe.result())


def _forward(device: str, fleet: FleetConfig) -> Finding:
    """Reports how the self-test decided to run forward passes of a fleet's edge model."""
    what = "Forward passes"
    try:
        key = self_test_key(device, fleet.edge.model, resolutions_to_measure(fleet))
    except PackageNotFoundError:
        return Finding(what, "not tested, since torch is not installed")
    test = SELF_TESTS.load(key)
    if test is None:
        return Finding(what, "not tested yet: the next run does it, or `ekya doctor --measure`")
    return Finding(
        what,
        f"{test.way}: {test.chosen_ms:.1f} ms for a typical frame of a {fleet.edge.model}, "
        f"plain {test.plain_ms:.1f} ms",
    )


def _frames(measured: MeasuredWork) -> Iterator[Finding]:
    """Reports the measured costs of a fleet's work."""
    costs = measured.host.costs
    frame_ms = max(of.frame_gpu_s[max(of.frame_gpu_s)] for of in costs.streams.values()) * 1e3
    epoch_ms = max(of.epoch_gpu_s for of in costs.families) * 1e3
    label_ms = costs.label_gpu_s * 1e3
    part = "frame" if measured.fleet.edge.task is Task.DETECT else "crop"
    yield Finding(
        "Measured",
        f"a frame {frame_ms:.1f} ms, an epoch {epoch_ms:.1f} ms a {part}, a label {label_ms:.1f} ms",
    )


def _default_fleet() -> Finding:
    try:
        fleet = _shipped()
    except UserError as error:
        return Finding("Shipped fleet", str(error), False)
    weights = [path for path in (fleet.golden.weights, fleet.edge.weights) if path is not None]
    sizes = ", ".join(f"{path.name} {path.stat().st_size / 1e6:.1f} MB" for path in weights)
    base = f"its base has seen a rendered city only; {describe_better_base()}"
    return Finding("Shipped fleet", f"{len(fleet.streams)} cameras with {sizes or 'no weights'}; {base}")


def _models_of_video() -> Finding:
    """Reports what a run of video takes from the catalogue, and under which licences."""
    student, *golden = (f"{model.name} ({model.licence})" for model in (STUDENT, *golden_candidates()))
    best = "the best that is fast enough of " if len(golden) > 1 else ""
    cached = ", ".join(model.name for model in CATALOGUE if model.is_cached)
    return Finding(
        "Models of video",
        f"student {student}; golden {best}{', '.join(golden)}; in the cache: {cached or 'none yet'}",
    )


def _golden_models(device: str, measured: MeasuredWork | None) -> Finding:
    """Reports where golden models run, and what is wrong with the installed onnxruntime."""
    without, wheel = why_no_cuda(), onnxruntime_version()
    found = "on the CPU"
    if device != "cpu":
        onnx = f"too, by {wheel}" if without is None else f"on the CPU, since {without}"
        found = f"on the GPU, ONNX detectors {onnx}"
    if measured is not None and measured.host.golden_device is not None:
        found += f"; that of the measured fleet ran on {measured.host.golden_device}"
    return Finding("Golden models", found)


def installed_versions() -> Mapping[str, str]:
    """Returns versions that machines of a fleet share, without a build's label (``+cu128``); empty: none."""
    found = {"Python": platform.python_version(), "ekya": __version__}
    for package in ("ray", "torch"):
        try:
            found[package] = version(package).partition("+")[0]
        except PackageNotFoundError:
            found[package] = ""
    return found


def examination_as_json(examination: Examination) -> Mapping[str, object]:
    """Returns the examination as JSON values."""
    cameras = examination.cameras
    return {
        "fine": examination.fine,
        "shares": examination.shares,
        "device": examination.device,
        "gpus": examination.gpus,
        "reasons": list(examination.reasons),
        "findings": {
            finding.what: {"found": finding.found, "fine": finding.fine} for finding in examination.findings
        },
        "measured": examination.measured,
        "cameras": None if cameras is None else {**asdict(cameras), "limit": cameras.limit},
    }

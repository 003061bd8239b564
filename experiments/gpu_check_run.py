"""Checks of `make gpu-check`: runs of the synthetic city on the GPU, planned by `ekya` and by `uniform`."""

import importlib
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_check_report import Finding

from ekya.core.events import GpuMeasured

STREAMS, WINDOWS = 16, 2
"""The first window collects and labels frames; in the second one retrainings can pay off."""

SCHEDULERS = ("ekya", "uniform")

WITHIN = 0.01
"""Accuracy by which ekya may be behind: random variation between two live runs."""

QUANTUM_MILLI, PREPARATION_MILLI = 10, 800
"""Shares for sixteen streams on one GPU: beside the preparation, each has one quantum."""


_EKYA = "import sys; from ekya.cli import main; sys.exit(main())"


def runs() -> Iterator[Finding]:
    """Runs the fleet with the share backend that ``--shares auto`` selects.

    Raises:
        ModuleNotFoundError: a package that a run needs is missing here.
    """
    for module in ("ekya.runtime.driver.live", "ekya.cli"):
        importlib.import_module(module)
    chosen = importlib.import_module("ekya.gpu.backends.registry").choose_backend()
    if chosen.capability.device != "cuda":
        yield Finding("runs of the synthetic city", "on the GPU", chosen.why, False)
        return
    yield from compared(STREAMS, 1.0, PREPARATION_MILLI, chosen.name)


def compared(streams: int, gpus: float, preparation_milli: int, shares: str) -> Iterator[Finding]:
    """Runs the same fleet under each scheduler.

    Args:
        streams: number of cameras.
        gpus, preparation_milli: as in a fleet file.
        shares: name of the share backend.
    """
    accuracies: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="ekya-check-") as folder:
        fleet = Path(folder) / "fleet.yaml"
        fleet.write_text(short_fleet(streams, gpus, preparation_milli))
        for scheduler in SCHEDULERS:
            summary = _run(fleet, scheduler, shares)
            accuracies[scheduler] = summary["mean_accuracy"]
            yield of_frames(scheduler, shares, summary)
            yield of_energy(scheduler, summary, _windows_j(_runs(fleet) / scheduler / "journal.jsonl"))
    yield of_accuracies(streams, accuracies)


_PREPARED_GPU_S = 0.2
"""GPU-seconds to label and micro-profile a camera's sample, at least."""


def short_fleet(streams: int, gpus: float, preparation_milli: int) -> str:
    """Returns the shipped fleet's cameras, repeated with other seeds, in the shortest possible windows.

    Changes of the shipped fleet's second window happen in the first one here.
    """
    default = importlib.import_module("ekya.config.fleet_file").DEFAULT_FLEET
    path = importlib.import_module("ekya.config.shipped").shipped_path(default)
    reading = importlib.import_module("ekya.config.fleet_reading")
    shipped = reading.load_fleet(path)
    raw = shipped.model_dump(mode="json")
    part = raw["preparation"]["fraction"] * preparation_milli / 1000
    window_s = max(8, math.ceil(_PREPARED_GPU_S * streams / part))
    longer = window_s / shipped.window_s
    cameras = []
    for number in range(streams):
        source = raw["streams"][number % len(raw["streams"])]["source"]
        scenes = [
            {
                **scene,
                "at_s": max(0.0, scene["at_s"] - shipped.window_s) * longer,
                "ramp_s": scene["ramp_s"] * longer,
            }
            for scene in source["scenes"]
        ]
        cameras.append(
            {"id": f"cam-{number:02}", "source": {**source, "seed": 1000 + number, "scenes": scenes}}
        )
    changes = {
        "name": "check",
        "gpus": gpus,
        "window_s": window_s,
        "windows": WINDOWS,
        "quantum_milli": QUANTUM_MILLI,
        "preparation": {**raw["preparation"], "share_milli": preparation_milli},
        "streams": cameras,
    }
    fleet: str = reading.dump_fleet(reading.parse_fleet({**raw, **changes}, "gpu-check", (Path(),)))
    return fleet


def of_frames(scheduler: str, shares: str, summary: Mapping[str, Any]) -> Finding:
    """Returns the finding that no frame was lost, with counts of frames and retrainings."""
    frames, retrainings, host = summary["frames"], summary["retrainings"], summary["host"]
    return Finding(
        f"`ekya run` of {len(summary['streams'])} streams under {scheduler}, shares by {shares}",
        "0 frames lost",
        f"{frames['lost']} of {frames['arrived']} lost, {frames['analysed']} analysed; "
        f"{retrainings['finished']} of {retrainings['started']} retrainings finished, "
        f"{retrainings['failed']} failed; begun after {host['start_s']:.0f} s",
        frames["lost"] == 0 and frames["arrived"] > 0,
        {"frames": frames, "retrainings": retrainings, "host": host},
    )


def of_energy(scheduler: str, summary: Mapping[str, Any], windows_j: Sequence[float]) -> Finding:
    """Returns the finding of the energy of the run's windows; the jobs' parts of it are modelled."""
    name, expected = f"energy of that run under {scheduler}", "told by the driver's counter, for each window"
    gpu = summary["host"].get("gpus", {}).get("0", {})
    if gpu.get("energy_j") is None:
        return Finding(name, expected, "this device does not tell", None)
    model = gpu["modelled_energy_j"]
    jobs: dict[str, float] = {}
    for own in model["jobs"].values() if model else ():
        for what, joules in own.items():
            jobs[what] = jobs.get(what, 0.0) + joules
    told = [f"{what} {joules:.0f} J" for what, joules in sorted(jobs.items())]
    return Finding(
        name,
        expected,
        f"{' + '.join(f'{joules:.0f}' for joules in windows_j)} J in {gpu['measured_s']:.0f} s, "
        f"by {gpu['energy_from']}; by a model: "
        + ", ".join([f"idle {model['idle']:.0f} J" if model else "nothing", *told]),
        gpu["energy_from"] == "counter" and len(windows_j) > 0,
        {"gpu": gpu, "windows_j": windows_j},
    )


def of_accuracies(streams: int, accuracies: Mapping[str, float]) -> Finding:
    """Compares the accuracy of both schedulers on the same frames."""
    own, other = (accuracies[scheduler] for scheduler in SCHEDULERS)
    return Finding(
        f"accuracy of {streams} streams under {' and '.join(SCHEDULERS)}, {WINDOWS} windows",
        f"{SCHEDULERS[0]} at most {WITHIN:g} behind {SCHEDULERS[1]}",
        f"{own:.4f} and {other:.4f}",
        own >= other - WITHIN,
        {"mean_accuracy": dict(accuracies)},
    )


def _runs(fleet: Path) -> Path:
    return fleet.parent / "runs"


def _windows_j(journal: Path) -> list[float]:
    """Returns the energy by window from the journal; empty if it was not measured."""
    _, _, turns = importlib.import_module("ekya.results.storage.journal").read_journal(journal)
    told = [event for turn in turns for event in turn.events if isinstance(event, GpuMeasured)]
    return [use.energy_j for event in told for use in event.gpus if use.energy_j is not None]


def _run(fleet: Path, scheduler: str, shares: str) -> dict[str, Any]:
    """Executes a run and returns its summary."""
    command = [sys.executable, "-c", _EKYA, "run", str(fleet)]
    command += ["--scheduler", scheduler, "--name", scheduler]
    command += ["--shares", shares, "--no-dashboard", "--runs", str(_runs(fleet)), "--json", "-"]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    # Streams that were not well are a finding and no failure.
    if ended.returncode not in (0, importlib.import_module("ekya.cli").UNWELL):
        raise RuntimeError(f"ekya run --scheduler {scheduler} ended with {ended.returncode}")
    summary: dict[str, Any] = json.loads(ended.stdout)
    return summary

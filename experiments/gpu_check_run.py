"""Items of `make gpu-check`: runs of the synthetic city, planned by `ekya` and by `uniform`."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from gpu_check_process import Finding, Rig

from ekya.cli import UNWELL
from ekya.cli.fleet_from_options import repeat_cameras
from ekya.config.fleet_file import DEFAULT_FLEET, FleetConfig
from ekya.config.fleet_reading import dump_fleet, load_fleet, parse_fleet
from ekya.config.shipped import shipped_path
from ekya.results.comparison import compare_schedulers

CAMERAS, MANY, WINDOWS, WINDOW_S, SEED = 16, 48, 2, 16.0, 1
DUE_PART, ERRORS = 0.95, 2.0
"""Part of the due frames that must be analysed, and standard errors by which ekya may be behind."""


def run_ekya(rig: Rig) -> Iterator[Finding]:
    """Runs the cameras under `ekya`."""
    yield of_run(_run(rig, "ekya", rig.pick(CAMERAS, 2)))


def run_uniform(rig: Rig) -> Iterator[Finding]:
    """Runs the same cameras and seeds under `uniform`, and compares the two, stream by stream."""
    cameras = rig.pick(CAMERAS, 2)
    yield of_run(_run(rig, "uniform", cameras))
    folders = {scheduler: rig.out / "runs" / f"{scheduler}-{cameras}" for scheduler in ("ekya", "uniform")}
    both = compare_schedulers(fleet_of(cameras), list(folders), [SEED], lambda name, _: folders[name])
    yield of_pairs({run["scheduler"]: run["streams"] for run in both["runs"]})


def run_many(rig: Rig) -> Iterator[Finding]:
    """Runs three times as many cameras under `ekya`, where the cores may bind."""
    yield of_run(_run(rig, "ekya", rig.pick(MANY, 3)))


def fleet_of(cameras: int) -> FleetConfig:
    """Returns the shipped cameras as often as needed, in short windows, their changes a window earlier."""
    changes = {"windows": WINDOWS, "window_s": WINDOW_S, "gpus": 1.0, "processes": "gpu"}
    path = shipped_path(DEFAULT_FLEET)
    raw = repeat_cameras(load_fleet(path, changes), cameras).model_dump(mode="json", exclude_unset=True)
    # Left open, it is chosen for the number of cameras.
    del raw["preparation"]["share_milli"]
    shipped_s = load_fleet(path).window_s
    for scene in (scene for stream in raw["streams"] for scene in stream["source"]["scenes"]):
        scene["at_s"] = max(0.0, scene["at_s"] - shipped_s) * WINDOW_S / shipped_s
        scene["ramp_s"] = scene.get("ramp_s", 0.0) * WINDOW_S / shipped_s
    return parse_fleet(raw, "gpu-check", (Path(),))


def of_run(summary: Mapping[str, Any]) -> Finding:
    """Returns the finding of a run, with what was late for want of cores and of the GPU."""
    frames, trained = summary["frames"], summary["retrainings"]
    met = frames["lost"] == 0 and frames["analysed"] >= DUE_PART * frames["due"] > 0
    return Finding(
        f"`ekya run` of {len(summary['streams'])} cameras under {summary['scheduler']}",
        f"0 frames lost, at least {DUE_PART:.0%} of the due ones analysed; under ekya all retrainings finish",
        f"{frames}; {trained['finished']} of {trained['started']} retrainings finished; accuracy "
        f"{summary['mean_accuracy']}",
        met and (summary["scheduler"] != "ekya" or trained["finished"] == trained["started"]),
        {name: summary[name] for name in ("frames", "retrainings", "host", "mean_accuracy")},
    )


def of_pairs(streams: Mapping[str, Mapping[str, Any]]) -> Finding:
    """Compares the accuracies of `ekya` and of `uniform`, a pair for each stream."""
    ours, theirs = streams["ekya"], streams["uniform"]
    pairs = [(ours[name]["mean_accuracy"], theirs[name]["mean_accuracy"]) for name in ours]
    differences = [one - other for one, other in pairs if one is not None and other is not None]
    mean, error = fmean(differences), stdev(differences) / len(differences) ** 0.5
    return Finding(
        "accuracy of ekya and uniform",
        f"ekya at most {ERRORS:g} standard errors of the paired differences behind",
        f"difference {100 * mean:+.1f} points, standard error {100 * error:.1f}, {len(differences)} pairs",
        mean >= -ERRORS * error,
        {"pairs": pairs, "mean": mean, "standard_error": error},
    )


def _run(rig: Rig, scheduler: str, cameras: int) -> dict[str, Any]:
    """Executes a run, whose folder stays, and returns its summary; a rehearsal's is on virtual time."""
    fleet, name = rig.out / f"fleet-{cameras}.yaml", f"{scheduler}-{cameras}"
    shutil.rmtree(rig.out / "runs" / name, ignore_errors=True)
    fleet.write_text(dump_fleet(fleet_of(cameras)))
    where: Sequence[str] = rig.pick((), ("--clock", "virtual", "--card", "h200"))
    command = [sys.executable, "-m", "ekya", "run", str(fleet), "--scheduler", scheduler, "--seed", str(SEED)]
    command += ["--name", name, "--runs", str(rig.out / "runs"), "--no-dashboard", "--json", "-", *where]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    # Streams that were not well are a finding and no failure.
    if ended.returncode not in (0, UNWELL):
        raise RuntimeError(f"ekya run --scheduler {scheduler} ended with {ended.returncode}")
    summary: dict[str, Any] = json.loads(ended.stdout)
    return summary

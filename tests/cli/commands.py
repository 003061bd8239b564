"""Builders of what the tests of commands share: fleet files, summaries, and the reading of messages."""

import contextlib
import json

import yaml

from ekya.core.trace import Trace
from ekya.gpu.backends.duty_cycle import DutyCycleShares
from ekya.gpu.backends.registry import ChosenBackend
from ekya.gpu.nvml import Gpu, GpuInventory
from ekya.results.storage.run_folder import RunFolder

CAMERA = "cam-1"


def stream_summary():
    return {
        "mean_accuracy": 0.8,
        "balanced_accuracy": 0.7,
        "without_retraining": 0.6,
        "gain": 0.2,
        "set_aside": None,
        "windows": [{"retrained": True, "retrain_share_milli": 500, "inference_share_milli": 250}],
    }


def run_summary(**changes):
    """Returns the summary of a run of one camera."""
    return {
        "world": "live",
        "task": "classify",
        "scheduler": "thief",
        "seed": 7,
        "gpus": 1.0,
        "mean_accuracy": 0.8,
        "balanced_accuracy": 0.7,
        "ap50": None,
        "streams": {CAMERA: stream_summary()},
        "frames": {"arrived": 10, "analysed": 6, "skipped": 4, "lost": 0, "due": 8},
        "retrainings": {"started": 1, "finished": 1, "failed": 0},
        "reference": None,
        "adaptation": {"labelled": 9, "served": 1, "sentence": None, "missed": False},
        "health": {"sentence": None, "streams": {CAMERA: [{"index": 0, "state": "ok"}]}},
        "warnings": [],
        **changes,
    }


def write_fleet(folder, **changes):
    """Writes a fleet file of one rendered camera and returns its path."""
    raw = {
        "name": "small",
        "classes": ["person"],
        "gpus": 1,
        "window_s": 9,
        "golden": {},
        "streams": [{"id": CAMERA, "source": {"kind": "synthetic_city", "seed": 1}}],
        **changes,
    }
    path = folder / "fleet.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


def live_camera(url):
    """Returns the keys of a fleet of one live camera."""
    return {
        "golden": {"model": "fasterrcnn_mobilenet_v3_large_320_fpn"},
        "preparation": {"share_milli": 500},
        "streams": [{"id": CAMERA, "source": {"kind": "camera", "url": url}}],
    }


def gpu(index):
    """Returns a GPU of this machine."""
    return Gpu(
        index=index,
        name="a GPU",
        memory_bytes=8 << 30,
        memory_free_bytes=7 << 30,
        uuid=f"GPU-{index}",
    )


def empty_trace(**changes):
    """Returns a trace without streams."""
    values = {
        "window_us": 1_000_000,
        "gpu": "a device",
        "classes": ("car",),
        "retrain_configs": (),
        "inference_configs": (),
        "streams": (),
    }
    return Trace(**(values | changes))


class FakeWorld:
    """World that records its runs and leaves folders with a summary.

    Attributes:
        runs: fleet and options of each run.
        during: called with the folder in each run.
        summary: of each run.
    """

    def __init__(self, root):
        self.root = root
        self.runs = []
        self.during = lambda folder: None
        self.summary = run_summary()

    def run(self, fleet, options, console=None):
        self.runs.append((fleet, options))
        folder = RunFolder.create_numbered(self.root, "run")
        # The worlds handle Ctrl-C themselves: they end early.
        with contextlib.suppress(KeyboardInterrupt):
            self.during(folder)
        folder.summary.write_text(json.dumps(self.summary))
        return folder.path


def error_line(capfd):
    """Returns standard error, which must be one line; standard output must be empty."""
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("ekya: ")
    assert err.count("\n") == 1
    return err


def on_a_machine_with(gpus):
    """Returns a ``choose_backend`` for a machine with this number of GPUs."""
    inventory = GpuInventory(tuple(gpu(at) for at in range(gpus)), "600.1", "GPUs")
    backend = DutyCycleShares(inventory)
    return lambda name: ChosenBackend("duty-cycle", backend, backend.probe_machine(), (), 2)

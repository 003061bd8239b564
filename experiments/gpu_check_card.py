"""The cost card that the findings of `make gpu-check` give; what they do not tell is as on the H200."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_check_process import Finding, figures_of

from ekya.core.configs import RetrainConfig
from ekya.core.units import FULL_GPU_MILLI
from ekya.models.edge.architecture_table import DEFAULT_ARCHITECTURE
from ekya.models.golden.spec import RESNEXT29
from ekya.models.training.operations import TrainingCrops, training_cost
from ekya.pipeline.costs import CostCard, load_card

MACHINE, RENDERING, DECODING = "this machine", "rendering a frame of 640x360", "decoding a frame of {}"
PREPARING, COST = "cutting, copying and launching a frame", "cost of a batch of {}"
TRAINING, SERVING = "trainers of a {} side by side", "server of 16 cameras with a {} beside 4 trainers"
TORCHVISION, ONNX = "fasterrcnn_mobilenet_v3_large_320_fpn", "an ONNX golden detector"
FREE, CAPPED, ALONE, EAGER, GRAPH = "no shares", "MPS caps", "alone", "eager", "graph"
"""Names of findings and ways that the card is made of."""

STEPS, LARGER, SIDE = 6, 4, 32
"""Steps of an epoch of a trainer, how much larger its other batch is, and the side of its crops in pixels."""

Figures = Mapping[str, Any]


def make_card(findings: Sequence[Finding]) -> CostCard:
    """Returns the card; each of its figures says whether it was measured."""
    base, measured, names = load_card(Path("h200")), {}, {}
    sources: dict[str, Callable[[Figures], Figures]] = {
        MACHINE: lambda of: {"device": of["gpu"], "cores": of["cores"]},
        COST.format(DEFAULT_ARCHITECTURE): _inference_of,
        COST.format(RESNEXT29): lambda of: {"golden_ops_per_s": _full_batch_rate(of)},
        COST.format(TORCHVISION): lambda of: {"detector_ops_per_s": _full_batch_rate(of)},
        COST.format(ONNX): lambda of: {"detector_ops_per_s": 1e3 * of["operations"] / of["wall_ms"]},
        TRAINING.format(DEFAULT_ARCHITECTURE): _training_of,
        SERVING.format(DEFAULT_ARCHITECTURE): lambda of: {"beside_training": min(of["slowed_to"], 1.0)},
        RENDERING: lambda of: {"reading_s": of["host_ms"] / 1e3},
        PREPARING: lambda of: {"frame_s": of["host_ms"] / 1e3},
    }
    for name, figures_from in sources.items():
        figures = figures_of(findings, name)
        told = figures_from(figures) if figures else {}
        measured.update(told)
        names.update(dict.fromkeys(told, name))
    assert base.gpu is not None
    found = {
        key: f"measured: docs/gpu_check.json, {names[key]}"
        if key in names
        else f"assumed: as on an H200 ({text.partition(': ')[2]})"
        for key, text in base.gpu.found.items()
        if not key.startswith("first.")
    }
    facts = {key: value for key, value in measured.items() if hasattr(base.gpu, key)}
    rates = {key: value for key, value in measured.items() if key not in facts}
    return replace(base, **rates, gpu=replace(base.gpu, **facts, first=None, found=found))


def _inference_of(cost: Figures) -> Figures:
    a_ms, b_ms = cost["fit_ms"].get(GRAPH, cost["fit_ms"][EAGER])
    batches = _full_batch_rate(cost)
    frames = 1e3 * cost["operations"] / b_ms if b_ms else batches
    return {"pass_s": a_ms / 1e3, "inference_ops_per_s": frames, "batch_inference_ops_per_s": batches}


def _full_batch_rate(cost: Figures) -> float:
    """Returns the operations a second of the largest batch, kernel by kernel."""
    largest = cost["ways"][EAGER][-1]
    return 1e3 * cost["operations"] * largest["n"] / largest["gpu_ms"]


def _training_of(trained: Figures) -> Figures:
    """Returns the speed of one of K trainers at its part, and the rate if a larger batch takes longer."""
    batch, small_s, large_s = trained["batch"], trained["alone"]["step_s"], trained["larger"]["step_s"]
    most, points = 1.0, [(FULL_GPU_MILLI, 1.0)]
    ways = trained["trainers"]
    for count, each in sorted((int(count), each) for count, each in (ways[CAPPED] or ways[FREE]).items()):
        # A speed must not fall with the part.
        each_per_s = sum(one["images_per_s"] for one in each) / count
        most = min(most, each_per_s / trained["alone"]["images_per_s"])
        points += [(FULL_GPU_MILLI // count, most)] * (count > 1)
    speeds = {"training_speed": ((0, 0.0), *reversed(points))}
    image_s = (large_s - small_s) / ((LARGER - 1) * batch)
    if image_s <= 0:
        return speeds
    crops = TrainingCrops(0, STEPS * batch, batch)
    operations = training_cost(RetrainConfig(1, batch, 0, 5, 1.0), crops, SIDE).epoch / (STEPS * batch)
    step_s = max(small_s - batch * image_s, 0.0)
    return {**speeds, "training_ops_per_s": operations / image_s, "training_step_s": step_s}

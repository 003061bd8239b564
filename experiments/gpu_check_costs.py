"""Item of `make gpu-check`: what a batch costs, t(n) = a + b n, kernel by kernel and as a CUDA graph."""

import copy
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from gpu_check_card import COST, EAGER, GRAPH, ONNX, SIDE, TORCHVISION
from gpu_check_process import Finding, Rig
from torch import Tensor
from torchvision.models import get_model

from ekya.models.catalogue import GOLDEN
from ekya.models.edge.architecture_table import FASTESTDET
from ekya.models.edge.forward import ForwardWay
from ekya.models.edge.model import build_edge_model, normalised
from ekya.models.edge.predictor import prepared
from ekya.models.golden.golden_model import open_detector
from ekya.models.golden.resnext import build_resnext29
from ekya.models.golden.spec import CLASSIFIERS, RESNEXT29
from ekya.models.operations_counter import count_operations
from ekya.models.training.operations import forward_operations

CLASSES = ("person", "bicycle", "car", "motorcycle", "bus", "truck")
CLASSIFIER, OBJECTS, FRAME, FRAME_SIDES, HALF = "resnet18", 6, (360, 640), (352, 96), "half graph"
SECONDS, WARM_UPS, EVENTS_WITHIN, HALF_ERROR = 0.25, 3, 1.2, 0.01
"""Time for each size of batch and each way, and passes before a recording; accepted ratio of a graph's wall
time to its GPU time, and relative difference of answers in 16 bits."""

PRECISIONS = {EAGER: torch.float32, GRAPH: torch.float32, HALF: torch.float16}
"""Ways that a batch can take, and the type that it is computed in."""

Rows = dict[str, list[dict[str, float]]]
Work = Callable[[Tensor], Any]
"""Maps (N, H, W, 3) uint8 on the device to a network's outputs."""


def measure_costs(rig: Rig) -> Iterator[Finding]:
    """Measures every network."""
    crops, frames = rig.pick((6, 12, 24, 48, 96), (6, 12)), rig.pick((1, 2, 4, 8, 16), (1, 2))
    side, square = rig.pick(*FRAME_SIDES), (SIDE, SIDE)
    nets: Mapping[str, tuple[Any, tuple[int, int], Sequence[int]]] = {
        CLASSIFIER: (lambda: _edge_net(rig, CLASSIFIER, SIDE), square, crops),
        FASTESTDET: (lambda: _edge_net(rig, FASTESTDET, side), (side, side), frames),
        RESNEXT29: (lambda: _golden_net(rig), square, crops),
        TORCHVISION: (lambda: _torchvision_net(rig), FRAME, frames),
    }
    for network, (make, shape, counts) in nets.items():
        operations, works = make()
        noise = np.random.default_rng(0).integers(0, 256, (max(counts), *shape, 3), np.uint8)
        with torch.inference_mode():
            rows, refused = _time_ways(rig, works, torch.from_numpy(noise).to(rig.device), counts)
        yield of_cost(network, operations, rows, refused)
    yield _onnx_cost(rig)


def _time_ways(
    rig: Rig, works: dict[str, Work], pixels: Tensor, counts: Sequence[int]
) -> tuple[Rows, dict[str, str]]:
    rows, refused = Rows(), {}
    for way, work in works.items():
        try:
            for given in (pixels[:count].clone() for count in counts):
                ready, answers = (partial(work, given), None) if way == EAGER else _record(rig, work, given)
                expected = works[EAGER](given) if way == HALF else None
                if expected is not None and (answers - expected).norm() > HALF_ERROR * expected.norm():
                    raise RuntimeError("its answers are others")
                times = time_calls(rig, ready, rig.pick(SECONDS, 0.0))
                rows.setdefault(way, []).append({"n": len(given), **times})
        except RuntimeError as error:
            refused[way] = str(error).splitlines()[0]
    return rows, refused


def of_cost(network: str, operations: int, rows: Rows, refused: dict[str, str]) -> Finding:
    """Returns the finding of a network by the times of its batches by way, and why ways were refused."""
    fits = {way: fit_line(*([one[key] for one in of] for key in ("n", "gpu_ms"))) for way, of in rows.items()}
    told = [f"{way} {a:.2f} ms + {b:.4f} ms an image" for way, (a, b) in fits.items()]
    fast = all(one["wall_ms"] <= EVENTS_WITHIN * one["gpu_ms"] for one in rows.get(GRAPH, ()))
    return Finding(
        COST.format(network),
        f"as a graph at most {EVENTS_WITHIN - 1:.0%} more wall time than GPU time, if it can be one",
        "; ".join(told + [f"{way} refused: {why}" for way, why in refused.items()]),
        fast and not {EAGER, GRAPH} & set(refused),
        {"operations": operations, "ways": rows, "fit_ms": fits},
    )


def fit_line(counts: Sequence[float], took_ms: Sequence[float]) -> tuple[float, float]:
    """Returns a and b of t(n) = a + b n, both at least 0, by the times of batches of n."""
    b, a = np.polyfit(counts, took_ms, 1).tolist() if len(counts) > 1 else (0.0, 0.0)
    if b <= 0:
        return float(np.mean(took_ms)), 0.0
    return (a, b) if a >= 0 else (0.0, float(np.dot(counts, took_ms) / np.dot(counts, counts)))


def _record(rig: Rig, work: Work, given: Tensor) -> tuple[Callable[[], object], Any]:
    """Records work on these pixels as a CUDA graph; returns its replay and where its answers are."""
    if rig.rehearses:
        return partial(work, given), work(given)
    for _ in range(WARM_UPS):
        work(given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        answers = work(given)
    graph.replay()
    return graph.replay, answers


def _edge_net(rig: Rig, architecture: str, side: int) -> tuple[int, dict[str, Work]]:
    model = build_edge_model(CLASSES, 0, 0, architecture)

    def make(dtype: torch.dtype) -> Work:
        ready = prepared(model, rig.device, ForwardWay(channels_last=True)).to(dtype)
        decode = ready.detector and ready.detector.decode_outputs
        read = (lambda found: decode(found).boxes) if decode else (lambda found: found)
        return lambda pixels: read(ready(normalised(pixels).to(dtype)))

    works = {way: make(dtype) for way, dtype in PRECISIONS.items()}
    return forward_operations(side, architecture=architecture), works


def _golden_net(rig: Rig) -> tuple[int, dict[str, Work]]:
    """Returns the golden classifier, with weights of noise, which cost the same."""
    network = build_resnext29(len(CLASSES)).eval()

    def make(dtype: torch.dtype) -> Work:
        placed = copy.deepcopy(network).to(rig.device, dtype)
        return lambda pixels: placed(pixels.permute(0, 3, 1, 2).to(dtype) / 255)

    return CLASSIFIERS[RESNEXT29].operations, {way: make(dtype) for way, dtype in PRECISIONS.items()}


def _torchvision_net(rig: Rig) -> tuple[int, dict[str, Work]]:
    """Returns a golden detector, with weights of noise; how much it finds is not known beforehand."""
    model = get_model(TORCHVISION, weights=None, weights_backbone=None).eval().to(rig.device)
    with count_operations(model) as counted, torch.no_grad():
        model([torch.zeros(3, *FRAME, device=rig.device)])
    work: Work = lambda pixels: model(list(pixels.permute(0, 3, 1, 2).float() / 255))  # noqa: E731
    return counted.forward, {EAGER: work}


def _onnx_cost(rig: Rig) -> Finding:
    """Times a golden detector of the catalogue that is in the cache, frame by frame as in a run."""
    name, expected = COST.format(ONNX), "on the GPU"
    model = next((one for one in GOLDEN if one.is_cached), None)
    if model is None:
        return Finding(name, expected, "left out: none is in the cache (ekya models fetch)", None)
    detector = open_detector("onnx", model.cached_path, device=rig.device)
    frame = np.random.default_rng(0).integers(0, 256, (*FRAME, 3), np.uint8)
    times = time_calls(rig, partial(detector.detect_objects, frame), rig.pick(SECONDS, 0.0))
    figures = {"operations": detector.operations_per_frame(frame.shape), **times}
    told = f"{model.name}: {times['wall_ms']:.1f} ms a frame, on {detector.runs_on}"
    return Finding(name, expected, told, detector.runs_on.device == rig.device, figures)


def time_calls(rig: Rig, work: Callable[[], object], seconds: float) -> dict[str, float]:
    """Times one call after another, at least a few, and returns medians.

    ``gpu_ms`` is between CUDA events before and after a call, gaps between its kernels included, or on a CPU
    its wall time; ``wall_ms`` until the GPU has finished; ``host_ms`` the thread's time until it returns.
    """
    rows: list[tuple[float, float, float]] = []
    until_s = time.perf_counter() + seconds
    while len(rows) < rig.pick(8, 2) or time.perf_counter() < until_s:
        marks = [] if rig.rehearses else [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        began_s, host_s = time.perf_counter(), time.thread_time()
        for mark in marks[:1]:
            mark.record()
        work()
        host_ms = 1e3 * (time.thread_time() - host_s)
        for mark in marks[1:]:
            mark.record()
            mark.synchronize()
        wall_ms = 1e3 * (time.perf_counter() - began_s)
        rows.append((marks[0].elapsed_time(marks[1]) if marks else wall_ms, wall_ms, host_ms))
    # The first calls choose kernels.
    medians = map(statistics.median, zip(*rows[1:], strict=True))
    return dict(zip(("gpu_ms", "wall_ms", "host_ms"), medians, strict=True))

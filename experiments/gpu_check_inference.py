"""Checks of `make gpu-check`: ways to speed up inference on this GPU, and inference at smaller shares."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

import numpy as np
import torch
from gpu_check_kernels import Kernels
from gpu_check_report import Finding
from inference_ways import FRAME_SIDE, FRAMES, OBJECTS, SIDE, Bench, Row, settled

from ekya.gpu.backends.backend import Resized, ShareJob
from ekya.gpu.green.green_context_pool import open_process
from ekya.gpu.green.handle import GreenHandle
from ekya.models.edge.architecture_table import FASTESTDET
from ekya.models.edge.detection.predictor import DetectorPredictor
from ekya.models.edge.detection.read_objects import BoxCandidates
from ekya.models.edge.forward import TORCH, ForwardWay
from ekya.models.edge.model import EdgeModel, build_edge_model
from ekya.models.edge.predictor import Predictor
from ekya.pipeline.speed_jobs import random_images

CLASSES = ("person", "bicycle", "car", "motorcycle", "bus", "truck")
ROUNDS, MOST_S = 100, 2.0
SHARES = tuple(range(125, 1001, 125))

WITHIN = 0.03
"""Accepted relative deviation from an expected speed."""

STUDENT_SAME = 0.02
"""Accepted relative difference of a detector's boxes or scores. Convolutions rounded to TF32 give up to
0.006, rounded to bfloat16 up to 0.05 (computed on a CPU)."""

_WORK_MS, _STUDENT_FRAMES = 20.0, 4


def ways(device: str = "cuda") -> Iterator[Finding]:
    """Compares every way with its baseline, on the whole GPU."""
    bench = _bench(device)
    for question, compared in bench.of_one_model().items():
        yield finding_of(question, list(bench.compared(question, compared())))


def streams(device: str = "cuda") -> Iterator[Finding]:
    """Compares the models of eight streams one by one and in one call."""
    bench = _bench(device)
    for question, compared in bench.of_streams().items():
        yield finding_of(question, list(bench.compared(question, compared())))


def finding_of(question: str, rows: Sequence[Row]) -> Finding:
    """Returns the finding of one question. A way whose answers differ is refused and has no times."""
    is_faster = any(row.times is not None and row.times > 1.0 for row in rows)
    return Finding(
        f"inference of a ResNet18, {question}",
        "some way faster than the first, with its answers",
        "; ".join(_told(row) for row in rows),
        is_faster,
        {"rows": [asdict(row) for row in rows]},
    )


def student(device: str = "cuda") -> Iterator[Finding]:
    """Compares a detector's answers with those on the CPU, both in torch."""
    model = settled(build_edge_model(CLASSES, 0, 0, FASTESTDET), 0)
    frames, in_torch = random_images(_STUDENT_FRAMES, FRAME_SIDE), ForwardWay(engine=TORCH)
    ours, exact = (
        DetectorPredictor(model, where, in_torch).predict(frames, FRAME_SIDE) for where in (device, "cpu")
    )
    yield answers_of(ours, exact)


def answers_of(ours: BoxCandidates, exact: BoxCandidates) -> Finding:
    """Returns the finding of a detector's answers and the CPU's."""
    boxes, scores = _apart(ours.boxes, exact.boxes), _apart(ours.scores, exact.scores)
    return Finding(
        f"boxes and scores of a FastestDet at {FRAME_SIDE} pixels",
        f"those of torch on the CPU, within {STUDENT_SAME:g}",
        f"boxes within {boxes:.1e}, scores within {scores:.1e}",
        boxes <= STUDENT_SAME and scores <= STUDENT_SAME,
        {"boxes": boxes, "scores": scores},
    )


def _apart(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


def shares() -> Iterator[Finding]:
    """Measures one frame and sixteen in a call, at eight shares, by single kernels and as a graph."""
    process = open_process()
    crops = _noise()
    # Inference is a guest and may get more than its share, so a job whose share is enforced is measured.
    job = ShareJob("check", "retraining", SHARES[-1])
    handle = GreenHandle(process.levels, process.streams, process.claims(), job)
    try:
        for name, way in (
            ("kernel by kernel", ForwardWay(crops_a_pass=len(crops))),
            ("as graphs", ForwardWay(crops_a_pass=len(crops), graphs=True)),
        ):
            ask = Predictor(_model(), "cuda", way)
            for frames in (FRAMES[0], FRAMES[-1]):
                yield _at_shares(handle, f"{name}, {frames} frames a call", ask, crops[: frames * OBJECTS])
    finally:
        handle.release()


def graphs_stay() -> Iterator[Finding]:
    """Checks a graph recorded on a quarter of the multiprocessors and launched on a stream of all of them."""
    process, kernels = open_process(), Kernels()
    layout = process.levels.layout
    few = process.levels.usable(0, max(1, layout.groups // 4)).level
    every = process.levels.usable(0, layout.groups).level
    if few is None or every is None:
        yield Finding("where a recorded graph runs", "on its level", "no level can be used", False)
        return
    blocks, rounds = 64 * layout.sms, 1000
    rounds = round(rounds * _WORK_MS / _took_ms(lambda: kernels.compute(every.stream, blocks, rounds)))
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.ExternalStream(few.stream)
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        kernels.compute(few.stream, blocks, rounds)
    process.streams.enter_stream(every.stream)
    direct_ms = _took_ms(lambda: kernels.compute(few.stream, blocks, rounds))
    replayed_ms = _took_ms(graph.replay)
    whole_ms = _took_ms(lambda: kernels.compute(every.stream, blocks, rounds))
    yield Finding(
        f"a graph recorded on {few.sms} multiprocessors, launched on a stream of {every.sms}",
        f"takes what its kernel takes on {few.sms}, within {WITHIN:.0%}",
        f"{replayed_ms:.1f} ms; directly {direct_ms:.1f} ms, and {whole_ms:.1f} ms on {every.sms}",
        abs(replayed_ms / direct_ms - 1.0) <= WITHIN,
        {"replayed_ms": replayed_ms, "direct_ms": direct_ms, "whole_ms": whole_ms, "sms": few.sms},
    )


def _at_shares(handle: GreenHandle, name: str, ask: Predictor, crops: np.ndarray) -> Finding:
    figures = []
    for share_milli in SHARES:
        got: Resized = handle.resize(share_milli)
        seconds = []
        for turn in range(ROUNDS // 2 + 5):
            began_s = time.perf_counter()
            with handle.scope():
                ask.predict(crops, SIDE)
            if turn >= 5:
                seconds.append(time.perf_counter() - began_s)
        p50_s, p99_s = np.percentile(seconds, (50, 99)).tolist()
        figures.append(
            {
                "share_milli": got.share_milli,
                "images_s": len(crops) / p50_s,
                "p50_ms": 1e3 * p50_s,
                "p99_ms": 1e3 * p99_s,
            }
        )
    rates = [one["images_s"] for one in figures]
    return Finding(
        f"inference of a ResNet18 at {len(SHARES)} shares, {name}",
        "images a second at the full GPU at least those at an eighth",
        "; ".join(
            f"{one['share_milli']:.0f}: {one['images_s']:.0f}/s, p50 {one['p50_ms']:.2f} ms, "
            f"p99 {one['p99_ms']:.2f} ms"
            for one in figures
        ),
        rates[-1] >= rates[0],
        {"shares": figures},
    )


def _told(row: Row) -> str:
    if row.p50_ms is None:
        return f"{row.way} {row.note}"
    return (
        f"{row.way} x{row.times:.2f}: {row.images_s:.0f}/s, p50 {row.p50_ms:.2f} ms, p99 {row.p99_ms:.2f} ms"
    )


def _took_ms(work: Callable[[], object]) -> float:
    took = []
    for _ in range(5):
        torch.cuda.synchronize()
        began_s = time.perf_counter()
        work()
        torch.cuda.synchronize()
        took.append(1e3 * (time.perf_counter() - began_s))
    return statistics.median(took)


def _bench(device: str) -> Bench:
    return Bench(device, _model(), _noise(), ROUNDS, MOST_S)


def _model() -> EdgeModel:
    return settled(build_edge_model(CLASSES, 0, 0, "resnet18"), 0)


def _noise() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (FRAMES[-1] * OBJECTS, SIDE, SIDE, 3)).astype(np.uint8)

"""Checks of `make gpu-check`: ways to speed up inference on this GPU."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict

import numpy as np
from gpu_check_report import Finding
from inference_ways import FRAME_SIDE, FRAMES, OBJECTS, SIDE, Bench, Row, settled

from ekya.models.edge.architecture_table import FASTESTDET
from ekya.models.edge.detection.predictor import DetectorPredictor
from ekya.models.edge.detection.read_objects import BoxCandidates
from ekya.models.edge.forward import TORCH, ForwardWay
from ekya.models.edge.model import EdgeModel, build_edge_model
from ekya.pipeline.speed_jobs import random_images

CLASSES = ("person", "bicycle", "car", "motorcycle", "bus", "truck")
ROUNDS, MOST_S = 100, 2.0

STUDENT_SAME = 0.02
"""Accepted relative difference of a detector's boxes or scores. Convolutions rounded to TF32 give up to
0.006, rounded to bfloat16 up to 0.05 (computed on a CPU)."""

_STUDENT_FRAMES = 4


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


def _told(row: Row) -> str:
    if row.p50_ms is None:
        return f"{row.way} {row.note}"
    return (
        f"{row.way} x{row.times:.2f}: {row.images_s:.0f}/s, p50 {row.p50_ms:.2f} ms, p99 {row.p99_ms:.2f} ms"
    )


def _bench(device: str) -> Bench:
    return Bench(device, _model(), _noise(), ROUNDS, MOST_S)


def _model() -> EdgeModel:
    return settled(build_edge_model(CLASSES, 0, 0, "resnet18"), 0)


def _noise() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (FRAMES[-1] * OBJECTS, SIDE, SIDE, 3)).astype(np.uint8)

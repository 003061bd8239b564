"""Chooses how forward passes run on this device: correct answers first, then speed compared with plain.

What is faster depends on the processor's instruction set, on the GPU and on the versions of libraries, and
results of one machine do not hold for another. So every way but plain is tested. Of a detector only the
engine can be chosen, and its predictor does so; this is reported, and timed against torch.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray

from ekya.core.host import TYPICAL_OBJECTS
from ekya.models.edge.architecture_table import Task, task_of
from ekya.models.edge.detection.predictor import DetectorPredictor
from ekya.models.edge.forward import ONNXRUNTIME, PLAIN, TORCH, ForwardWay, SelfTest, Tried
from ekya.models.edge.model import build_edge_model
from ekya.models.edge.multi_model import MultiModelPredictor, Request
from ekya.models.edge.predictor import Predictor, can_pack
from ekya.system.numeric_result import MOST_ERROR

BUDGET_S = 0.6
"""Time limit of the whole test: the choice is made from what has been measured until then."""

CLEARLY = 0.95
"""A way is chosen if it needs at most this fraction of the present way's time for the typical frame."""

NEVER_ABOVE = 1.05
"""No other pass may take more than this multiple of the present way's time."""

_TYPICAL_CROPS = round(TYPICAL_OBJECTS)
_MANY_CROPS = 24
"""Crops of a crowded frame, or of several streams' frames in one call."""

_FULL_PASS = 128
_ROUNDING = 1e-3
"""Upper bound of the difference of scores in 32 bits that the order of additions makes."""

_ROUNDS = 9
_LEAST_ROUNDS = 3
_MODELS = 3
_CLASSES = ("a", "b", "c")


Call = Callable[[], NDArray[np.float32]]
"""A forward pass that returns its scores."""


def choose_way(architecture: str, device: str, sides: Sequence[int], budget_s: float = BUDGET_S) -> SelfTest:
    """Tries the ways available on a device, starting from plain, and keeps what is clearly faster.

    Args:
        architecture: of the edge model, a key of ``EDGE_MODELS``; its weights do not matter.
        device: torch device.
        sides: resolutions of Λ in pixels.
        budget_s: time limit of the whole test; that of a detector needs none.
    """
    if task_of(architecture) is Task.DETECT:
        return _test_of_detector(architecture, device, max(sides))
    return _SelfTest(architecture, device, sides, budget_s).run()


def _test_of_detector(architecture: str, device: str, side: int) -> SelfTest:
    began_s = time.perf_counter()
    model = build_edge_model(_CLASSES, 0, 0, architecture)
    plain = DetectorPredictor(model, device, ForwardWay(engine=TORCH))
    chosen = DetectorPredictor(model, device)
    image = np.random.default_rng(0).integers(0, 256, (1, side, side, 3), np.uint8)
    clock = device_clock(device)
    took: list[tuple[float, float]] = []
    # The first pass of each is slow, and is not counted.
    for _ in range(1 + _LEAST_ROUNDS):
        times = [clock()]
        for ask in (plain, chosen):
            ask.predict(image, side)
            times.append(clock())
        took.append((times[1] - times[0], times[2] - times[1]))
    plain_s, chosen_s = (median(own) for own in zip(*took[1:], strict=True))
    tried = [Tried(chosen.way, (round(chosen_s / plain_s, 3),), "")] if chosen.way != plain.way else []
    if not tried and torch.device(device).type == "cpu":
        tried.append(Tried(ForwardWay(engine=ONNXRUNTIME), (), "it failed; a warning says why"))
    return SelfTest(chosen.way, plain_s * 1e3, chosen_s * 1e3, tuple(tried), time.perf_counter() - began_s)


class _SelfTest:
    def __init__(self, architecture: str, device: str, sides: Sequence[int], budget_s: float) -> None:
        self._device = device
        self._sides = sorted(sides, reverse=True)
        # Models are grouped on a GPU only, and building them takes longer than all other trials.
        count = 1 if self._on_cpu else _MODELS
        self._models = [build_edge_model(_CLASSES, 0, seed, architecture) for seed in range(count)]
        self._began_s = time.perf_counter()
        self._ends_s = self._began_s + budget_s
        side = self._sides[0]
        self._crops = np.random.default_rng(0).integers(0, 256, (_FULL_PASS, side, side, 3), np.uint8)
        self._way = PLAIN
        self._tried: list[Tried] = []

    def run(self) -> SelfTest:
        for candidates in (self._layouts, self._halves, self._graphs):
            self._take_best(list(candidates()), self._passes)
        self._take_best(list(self._batches()), self._full_pass)
        self._take_best(list(self._groupings()), self._several)
        plain_s, chosen_s = self._took([self._passes(PLAIN)[:1], self._passes(self._way)[:1]], _LEAST_ROUNDS)
        took_s = time.perf_counter() - self._began_s
        return SelfTest(self._way, plain_s[0] * 1e3, chosen_s[0] * 1e3, tuple(self._tried), took_s)

    def _layouts(self) -> Iterator[ForwardWay]:
        yield replace(self._way, channels_last=True)
        if self._on_cpu and can_pack():
            packed = replace(self._way, packed_for=(_TYPICAL_CROPS, self._sides[0]))
            yield packed
            yield replace(packed, channels_last=True)

    def _halves(self) -> Iterator[ForwardWay]:
        if not self._on_cpu:
            yield replace(self._way, half="float16")
            yield replace(self._way, half="bfloat16")

    def _graphs(self) -> Iterator[ForwardWay]:
        if not self._on_cpu:
            yield replace(self._way, graphs=True)

    def _batches(self) -> Iterator[ForwardWay]:
        yield replace(self._way, crops_a_pass=_FULL_PASS)

    def _groupings(self) -> Iterator[ForwardWay]:
        if not self._on_cpu:
            yield replace(self._way, grouped=True)

    def _passes(self, way: ForwardWay) -> list[Call]:
        """Returns a typical frame's pass, then others that must not become slower."""
        ask = Predictor(self._models[0], self._device, way)
        # The largest and the smallest side.
        typical = [(_TYPICAL_CROPS, side) for side in self._sides[:: max(1, len(self._sides) - 1)]]
        return [self._call(ask, crops, side) for crops, side in (*typical, (_MANY_CROPS, self._sides[0]))]

    def _full_pass(self, way: ForwardWay) -> list[Call]:
        return [self._call(Predictor(self._models[0], self._device, way), _FULL_PASS, self._sides[0])]

    def _several(self, way: ForwardWay) -> list[Call]:
        """Returns one call for a typical frame of each of several streams with different models."""
        call, side = MultiModelPredictor(self._device, way), self._sides[0]
        predictors = [call.predictors.predictor_for(model) for model in self._models]
        for place, predictor in enumerate(predictors):
            call.add_owner(place, predictor)
        requests = [Request(predictor, self._crops[:_TYPICAL_CROPS], side) for predictor in predictors]
        return [lambda: np.concatenate([of[1] for of in call.predict(requests) if isinstance(of, tuple)])]

    def _call(self, ask: Predictor, crops: int, side: int) -> Call:
        return lambda: ask.predict(self._crops[:crops], side)[1]

    def _take_best(
        self, candidates: Sequence[ForwardWay], passes: Callable[[ForwardWay], Sequence[Call]]
    ) -> None:
        """Compares candidates with the present way and adopts the fastest that is clearly faster."""
        candidates = [way for way in candidates if time.perf_counter() < self._ends_s]
        if not candidates:
            return
        before = passes(self._way)
        # First passes, in which libraries choose kernels and allocate memory, are not timed.
        expected = [call() for call in before]
        able: list[tuple[ForwardWay, Sequence[Call]]] = []
        for way in candidates:
            try:
                calls = passes(way)
                wrong = score_error([call() for call in calls], expected)
            except (RuntimeError, ValueError) as error:
                self._tried.append(Tried(way, (), f"it failed: {str(error).splitlines()[0]}"))
                continue
            most = _ROUNDING if way.half is None else MOST_ERROR
            if wrong > most:
                self._tried.append(Tried(way, (), f"its scores are off by {wrong:.2g}"))
            else:
                able.append((way, calls))
        took = self._took([before, *(calls for _, calls in able)], _ROUNDS)
        compared = [(_parts(own, took[0]), way) for (way, _), own in zip(able, took[1:], strict=True)]
        best = fastest([parts for parts, _ in compared])
        for place, (parts, way) in enumerate(compared):
            why = "" if place == best else "it is not the fastest"
            self._tried.append(Tried(way, tuple(round(part, 3) for part in parts), why))
        if best is not None:
            self._way = compared[best][1]

    def _took(self, ways: Sequence[Sequence[Call]], rounds: int) -> list[list[float]]:
        """Returns the seconds of each call of each way: medians over rounds in which all ways alternate."""
        clock = device_clock(self._device)
        took: list[list[list[float]]] = [[[] for _ in calls] for calls in ways]
        for done in range(rounds):
            if done >= _LEAST_ROUNDS and time.perf_counter() > self._ends_s:
                break
            for calls, times in zip(ways, took, strict=True):
                for call, own in zip(calls, times, strict=True):
                    before_s = clock()
                    call()
                    own.append(clock() - before_s)
        return [[median(own) for own in times] for times in took]

    @property
    def _on_cpu(self) -> bool:
        return torch.device(self._device).type == "cpu"


def device_clock(device: str) -> Callable[[], float]:
    """Returns a clock in seconds: the thread's, or wall time once the GPU's work is done."""
    if torch.device(device).type == "cpu":
        return time.thread_time

    def after_gpu() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return after_gpu


def _parts(own: Sequence[float], others: Sequence[float]) -> list[float]:
    # A coarse clock may not have moved.
    return [one / max(other, 1e-9) for one, other in zip(own, others, strict=True)]


def fastest(compared: Sequence[Sequence[float]]) -> int | None:
    """Returns the index of the fastest way, if clearly faster and nowhere slower; of equals the first."""
    best: int | None = None
    for place, parts in enumerate(compared):
        if parts[0] > CLEARLY or max(parts) > NEVER_ABOVE:
            continue
        if best is None or sum(parts) < CLEARLY * sum(compared[best]):
            best = place
    return best


def score_error(found: Sequence[NDArray[np.float32]], expected: Sequence[NDArray[np.float32]]) -> float:
    """Returns the largest difference between scores, which lie in [0, 1]; infinite if one is not finite."""
    off = np.concatenate([np.abs(one - other) for one, other in zip(found, expected, strict=True)])
    # No comparison with NaN is true, so NaN would pass for a small difference.
    return float(off.max()) if np.isfinite(off).all() else float("inf")

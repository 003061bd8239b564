"""Chooses how forward passes run on this device: correct answers first, then speed compared with plain.

What is faster depends on the processor's instruction set, on the GPU and on the versions of libraries, and
results of one machine do not hold for another. So every way but plain is tested. A detector's predictor takes
its engine itself; this is reported, and timed against torch.
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
from ekya.models.edge.detection.read_objects import BoxCandidates
from ekya.models.edge.forward import (
    MOST_CROPS,
    MOST_IMAGES,
    ONNXRUNTIME,
    PLAIN,
    TORCH,
    ForwardWay,
    SelfTest,
    Tried,
)
from ekya.models.edge.model import build_edge_model
from ekya.models.edge.multi_model import Answer, AnyPredictor, MultiModelPredictor, Request
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

_CAMERAS = 4
"""Frames in a typical call of a detector for several cameras, and on a CPU in a batch: its cache is small."""

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
        budget_s: time limit of the whole test.
    """
    return _SelfTest(architecture, device, sides, budget_s).run()


class _SelfTest:
    def __init__(self, architecture: str, device: str, sides: Sequence[int], budget_s: float) -> None:
        self._device = device
        self._sides = sorted(sides, reverse=True)
        self._detects = task_of(architecture) is Task.DETECT
        # Models are grouped on a GPU only, and building them takes longer than all other trials.
        count = 1 if self._on_cpu or self._detects else _MODELS
        self._models = [build_edge_model(_CLASSES, 0, seed, architecture) for seed in range(count)]
        self._began_s = time.perf_counter()
        self._plain = ForwardWay(engine=TORCH) if self._detects else PLAIN
        # A detector's first predictor of a process exports the network.
        self._way = DetectorPredictor(self._models[0], device).way if self._detects else PLAIN
        self._ends_s = time.perf_counter() + budget_s
        side, most = self._sides[0], MOST_IMAGES if self._detects else MOST_CROPS
        self._crops = np.random.default_rng(0).integers(0, 256, (most, side, side, 3), np.uint8)
        self._tried: list[Tried] = []

    def run(self) -> SelfTest:
        engine = self._way
        if self._detects:
            batch = replace(engine, images_a_pass=_CAMERAS if self._on_cpu else MOST_IMAGES)
            self._take_best([batch], self._frame_of_each)
            self._take_best(list(self._graphs()), self._passes)
        else:
            self._try_classifier()
        ways = (self._plain, self._way)
        plain_s, chosen_s = self._took([self._passes(way)[:1] for way in ways], _LEAST_ROUNDS)
        if engine.engine == ONNXRUNTIME:
            self._tried.insert(0, Tried(engine, (round(chosen_s[0] / plain_s[0], 3),), ""))
        elif self._detects and self._on_cpu:
            self._tried.insert(0, Tried(ForwardWay(engine=ONNXRUNTIME), (), "it failed; a warning says why"))
        took_s = time.perf_counter() - self._began_s
        return SelfTest(self._way, plain_s[0] * 1e3, chosen_s[0] * 1e3, tuple(self._tried), took_s)

    def _try_classifier(self) -> None:
        for candidates in (self._layouts, self._halves, self._graphs):
            self._take_best(list(candidates()), self._passes)
        self._take_best(list(self._batches()), self._full_pass)
        self._take_best(list(self._groupings()), self._several)

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
        yield replace(self._way, crops_a_pass=MOST_CROPS)

    def _groupings(self) -> Iterator[ForwardWay]:
        if not self._on_cpu:
            yield replace(self._way, grouped=True)

    def _passes(self, way: ForwardWay) -> list[Call]:
        """Returns a typical frame's pass, then others that must not become slower."""
        typical, many = (1, MOST_IMAGES) if self._detects else (_TYPICAL_CROPS, _MANY_CROPS)
        # The largest and the smallest side.
        calls = [(typical, side) for side in self._sides[:: max(1, len(self._sides) - 1)]]
        return self._calls(way, *calls, (many, self._sides[0]))

    def _frame_of_each(self, way: ForwardWay) -> list[Call]:
        """Returns calls for several cameras, first at the smallest side, where a batch gains most."""
        many = _CAMERAS if self._on_cpu else MOST_IMAGES
        return self._calls(way, (_CAMERAS, self._sides[-1]), (many, self._sides[0]))

    def _calls(self, way: ForwardWay, *passes: tuple[int, int]) -> list[Call]:
        """Returns calls, each with a number of crops or images and the side to which they are resized."""
        of_task = DetectorPredictor if self._detects else Predictor
        ask: AnyPredictor = of_task(self._models[0], self._device, way)
        return [self._call(ask, count, side) for count, side in passes]

    def _full_pass(self, way: ForwardWay) -> list[Call]:
        return self._calls(way, (MOST_CROPS, self._sides[0]))

    def _several(self, way: ForwardWay) -> list[Call]:
        """Returns one call for a typical frame of each of several streams with different models."""
        call, side = MultiModelPredictor(self._device, way), self._sides[0]
        predictors = [call.predictors.predictor_for(model) for model in self._models]
        for place, predictor in enumerate(predictors):
            call.add_owner(place, predictor)
        requests = [Request(predictor, self._crops[:_TYPICAL_CROPS], side) for predictor in predictors]
        return [lambda: np.concatenate([_scores_of(answer) for answer in call.predict(requests)])]

    def _call(self, ask: AnyPredictor, crops: int, side: int) -> Call:
        return lambda: _scores_of(ask.predict(self._crops[:crops], side))

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
        clock = _clock_of(self._device)
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


def _clock_of(device: str) -> Callable[[], float]:
    """Returns a clock in seconds: the thread's, or wall time once the GPU's work is done."""
    if torch.device(device).type == "cpu":
        return time.thread_time

    def after_gpu() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return after_gpu


def _scores_of(answer: Answer) -> NDArray[np.float32]:
    return (answer.scores if isinstance(answer, BoxCandidates) else answer[1]).ravel()


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

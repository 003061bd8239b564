"""Ways to run inference, each beside its baseline; timed by a bench."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from ekya.models.edge.forward import PLAIN, ForwardWay
from ekya.models.edge.model import EdgeModel, clone
from ekya.models.edge.multi_model import BatchedPredictor, MultiModelPredictor, Request
from ekya.models.edge.predictor import Predictor, can_pack, half_error, prepared
from ekya.system.numeric_check import MOST_ERROR

Scores = tuple[NDArray[np.int64], NDArray[np.float32]]
Call = Callable[[], Scores]

OBJECTS, SIDE = 6, 32
"""Objects of a frame; pixels of a crop's side."""

FRAMES = (1, 2, 4, 8, 16)
STREAMS = 8
ALIKE = (0, 3, None)
"""Number of first blocks that the models of the streams have in common; None is all."""

WARM_UPS = 3

ROUNDING = 1e-5
"""Accepted difference of scores on a CPU. On a GPU, where torch uses TF32 (10 bits): ``MOST_ERROR``."""

_NOISE = 30
"""Batches until the normalisation statistics fit the weights, so that answers are not rounding errors."""


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """One way of a question.

    Attributes:
        name: of the way.
        images: in a call.
        call: call to time; None if ``note`` gives a reason not to.
        note: why it is not timed, or another remark.
        is_exact: whether its scores must equal those of the first way.
    """

    name: str
    images: int
    call: Call | None
    note: str = ""
    is_exact: bool = True


Questions = dict[str, Callable[[], list[Way]]]
"""Ways by question; the first way is the baseline of the others."""


@dataclass(frozen=True, slots=True)
class Row:
    """Result of one way of a question.

    Attributes:
        p50_ms, p99_ms: of a call; None where it was refused.
        images_s: at the median.
        times: images a second over those of the question's first way.
        off_by: largest difference of a score from the first way's.
    """

    question: str
    way: str
    images: int
    p50_ms: float | None
    p99_ms: float | None
    images_s: float | None
    times: float | None
    off_by: float | None
    note: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Bench:
    """Runs the questions with one model on one device.

    Attributes:
        device: torch's name.
        model: of one stream.
        crops: (N, S, S, 3) uint8 RGB of its frames, N enough for the longest call.
        rounds: calls of each way, if there is time.
        most_s: upper bound of the time of one question.
    """

    device: str
    model: EdgeModel
    crops: NDArray[np.uint8]
    rounds: int
    most_s: float

    def rows(self, told: Callable[[str], None]) -> Iterator[Row]:
        """Measures all questions, one after the other."""
        for question, ways in (self.of_one_model() | self.of_streams()).items():
            told(question)
            yield from self.compared(question, ways())

    def of_one_model(self) -> Questions:
        """Returns the questions about one model."""
        return {
            "frames": self.frames,
            "passes": self.passes,
            "layout, one frame": partial(self.layout, 1),
            "layout, 16 frames": partial(self.layout, 16),
            "half": self.half,
            "graphs": self.graphs,
        }

    def of_streams(self) -> Questions:
        """Returns the questions about the models of several streams."""
        return {
            f"{STREAMS} streams, {self._alike(common)}": partial(self.streams, common) for common in ALIKE
        }

    def frames(self) -> list[Way]:
        """Returns one frame in a call, or several."""
        ask = Predictor(self.model, self.device)
        return [Way(f"{count} frames", count * OBJECTS, self._asked(ask, count)) for count in FRAMES]

    def passes(self) -> list[Way]:
        """Returns the crops of many frames in several passes, or in one."""
        frames = FRAMES[-1]
        sizes = (PLAIN.crops_a_pass, frames * OBJECTS)
        return [self._way(f"{size} crops a pass", ForwardWay(crops_a_pass=size), frames) for size in sizes]

    def layout(self, frames: int) -> list[Way]:
        """Returns memory layouts of pictures and kernels."""
        ways = {"plain": PLAIN, "channels-last": ForwardWay(channels_last=True)}
        if torch.device(self.device).type == "cpu" and can_pack():
            packed = ForwardWay(packed_for=(frames * OBJECTS, SIDE))
            ways |= {"packed": packed, "both": replace(packed, channels_last=True)}
        return [self._way(name, way, frames) for name, way in ways.items()]

    def half(self) -> list[Way]:
        """Returns 32 bits and both kinds of 16."""
        return [
            self._way("float32", PLAIN, FRAMES[-1]),
            *(self._halved(PLAIN, half) for half in ("float16", "bfloat16")),
        ]

    def graphs(self) -> list[Way]:
        """Returns kernels one by one or as one graph."""
        if torch.device(self.device).type != "cuda":
            return [Way("as a CUDA graph", OBJECTS, None, f"{self.device} has none")]
        everything = ForwardWay(channels_last=True, half="float16", graphs=True)
        return [
            self._way("one by one", PLAIN, 1),
            self._way("as a CUDA graph", ForwardWay(graphs=True), 1),
            self._way("graph, channels-last, float16", everything, 1),
        ]

    def streams(self, common: int | None) -> list[Way]:
        """Returns the models of several streams, each with a frame of its own."""
        models = [self._retrained(common, seed) for seed in range(STREAMS)]
        crops = np.split(self.crops[: STREAMS * OBJECTS], STREAMS)
        singles = [Predictor(model, self.device) for model in models]
        images = STREAMS * OBJECTS

        def one_by_one() -> Scores:
            return _joined([ask.predict(of, SIDE) for ask, of in zip(singles, crops, strict=True)])

        call = MultiModelPredictor(self.device)
        together = [call.predictors.predictor_for(clone(model)) for model in models]
        requests = [Request(*both, SIDE) for both in zip(together, crops, strict=True)]
        ways = [
            Way("one by one", images, one_by_one),
            Way("as far as they are alike", images, lambda: _joined(call.predict(requests))),
        ]
        try:
            batched = BatchedPredictor(models, self.device)
        except ValueError as refused:
            return [*ways, Way("grouped", images, None, str(refused))]
        return [*ways, Way("grouped", images, lambda: _joined(batched.predict(crops, SIDE)))]

    def compared(self, question: str, ways: Sequence[Way]) -> Iterator[Row]:
        """Times the ways in turn; a way whose answers differ from the first way's is refused."""
        kept, off_by, notes = [], {}, {way.name: way.note for way in ways}
        expected = ways[0].call() if ways[0].call else None
        for way in ways:
            if way.call is None:
                continue
            if way.images == ways[0].images and expected is not None:
                off_by[way.name] = _difference(way.call(), expected, self.device == "cpu" and way.is_exact)
            if way.is_exact and off_by.get(way.name, 0.0) > self._rounding:
                notes[way.name] = f"refused: scores are off by {off_by[way.name]:.2g}"
                continue
            kept.append(way)
        took = self._timed([way.call for way in kept if way.call is not None])
        rates = {way.name: way.images / float(np.median(of)) for way, of in zip(kept, took, strict=True)}
        times = dict(zip((way.name for way in kept), took, strict=True))
        for way in ways:
            timed = times.get(way.name)
            yield Row(
                question=question,
                way=way.name,
                images=way.images,
                p50_ms=None if timed is None else 1e3 * float(np.median(timed)),
                p99_ms=None if timed is None else 1e3 * float(np.percentile(timed, 99)),
                images_s=rates.get(way.name),
                times=rates[way.name] / rates[ways[0].name] if way.name in rates else None,
                off_by=off_by.get(way.name),
                note=notes[way.name],
            )

    @property
    def _rounding(self) -> float:
        return ROUNDING if self.device == "cpu" else MOST_ERROR

    def _timed(self, calls: Sequence[Call]) -> list[list[float]]:
        """Returns the seconds of each call."""
        # Thread time does not include the GPU's work; wall time needs an otherwise idle machine.
        clock = time.thread_time if self.device == "cpu" else time.perf_counter
        took: list[list[float]] = [[] for _ in calls]
        began_s = time.monotonic()
        for turn in range(WARM_UPS + self.rounds):
            if turn > WARM_UPS and time.monotonic() - began_s > self.most_s:
                break
            for call, seconds in zip(calls, took, strict=True):
                before_s = clock()
                call()
                if turn >= WARM_UPS:
                    seconds.append(clock() - before_s)
        return took

    def _way(self, name: str, way: ForwardWay, frames: int) -> Way:
        ask = Predictor(self.model, self.device, way)
        return Way(name, frames * OBJECTS, self._asked(ask, frames), is_exact=way.half is None)

    def _halved(self, exact: ForwardWay, half: str) -> Way:
        loose = replace(exact, packed_for=None)
        model, halved = (prepared(self.model, self.device, loose) for _ in range(2))
        error = half_error(halved.to(getattr(torch, half)), model)
        note = f"logits off by {error:.2g}"
        if error > MOST_ERROR:
            return Way(half, FRAMES[-1] * OBJECTS, None, f"refused: {note}")
        return replace(self._way(half, replace(exact, half=half), FRAMES[-1]), note=note)

    def _asked(self, ask: Predictor, frames: int) -> Call:
        crops = self.crops[: frames * OBJECTS]
        return lambda: ask.predict(crops, SIDE)

    def _alike(self, common: int | None) -> str:
        return "only heads differ" if common is None else f"{common} blocks alike"

    def _retrained(self, common: int | None, seed: int) -> EdgeModel:
        """Returns a copy with slight changes after the common blocks."""
        model = clone(self.model)
        made = torch.Generator().manual_seed(seed)
        own = [] if common is None else list(model.blocks)[common:]
        with torch.no_grad():
            for module in (*own, model.head):
                for weight in module.parameters():
                    weight.add_(0.02 * weight.abs().mean() * torch.randn(weight.shape, generator=made))
        return model


def _joined(answers: Sequence[Scores]) -> Scores:
    classes, confidence = zip(*answers, strict=True)
    return np.concatenate(classes), np.concatenate(confidence)


def _difference(found: Scores, expected: Scores, of_classes: bool) -> float:
    """Returns the largest difference of scores; with ``of_classes``, 1 if a class differs.

    In half precision the classes of unsure crops may differ.
    """
    if of_classes and not np.array_equal(found[0], expected[0]):
        return 1.0
    return float(np.abs(found[1] - expected[1]).max())


def settled(model: EdgeModel, seed: int) -> EdgeModel:
    """Returns the model after noise has set its normalisation statistics, so that its answers vary."""
    made = torch.Generator().manual_seed(seed)
    model.train()
    with torch.no_grad():
        for _ in range(_NOISE):
            model(torch.randn(32, 3, SIDE, SIDE, generator=made))
    return model.eval()

"""Runs several models in one call, each on its own crops or all on the same, while models are hot swapped.

Equal models are one. Blocks that models share, as those that no retraining trains, run once, on all crops or
images in one ordinary batch; of detectors only in torch and without graphs. The others run model by model, or
are joined into grouped convolutions, for which the models of a call must be classifiers of one architecture.
Heads may differ in width and in classes, and always run one by one, since a classifier's cost nothing.
"""

import copy
import logging
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, takewhile
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ekya.models.edge.detection.predictor import DetectorPredictor
from ekya.models.edge.detection.read_objects import BoxCandidates
from ekya.models.edge.forward import PLAIN, ForwardWay
from ekya.models.edge.model import EdgeModel, normalised, pool, same_weights, split_at, to_input
from ekya.models.edge.predictor import Predictor, prepared, resized
from ekya.system.numeric_check import relative_error
from ekya.system.numeric_result import MOST_ERROR

Joined = Callable[[Tensor], Tensor]
"""Maps (K, N, C, h, w), the inputs of each of K modules, to (K, N, D, h', w')."""

_CHECKED_SIDE = 16


class BatchedPredictor:
    """Frozen copies of K models of one architecture, in 32 bits.

    Args:
        models: at least one.
        device: torch device on which the copies run.
        way: options of their forward passes. Neither half precision nor graphs are used.

    Raises:
        ValueError: detectors, different architectures, or one whose blocks cannot be joined.
    """

    def __init__(self, models: Sequence[EdgeModel], device: str = "cpu", way: ForwardWay = PLAIN) -> None:
        architectures = {model.architecture for model in models}
        if len(architectures) != 1:
            raise ValueError(f"models of one architecture run together, not of {sorted(architectures)}")
        if models[0].detector is not None:
            raise ValueError(f"{models[0].architecture} detects; detectors are not joined")
        self._device = device
        self.shared_blocks = common_blocks(models)
        shared = list(models[0].blocks)[: self.shared_blocks]
        self._shared = prepared(nn.Sequential(*shared), device, way)
        self._heads = [prepared(model.head, device, way) for model in models]
        self._joined: Joined | None = None
        if self.shared_blocks < len(models[0].blocks):
            # Joining needs weights in torch's layout.
            own = [list(model.blocks)[self.shared_blocks :] for model in models]
            unpacked = replace(way, packed_for=None)
            loose = [prepared(nn.Sequential(*blocks), device, unpacked) for blocks in own]
            self._joined = _joined(loose, self._shared)

    @torch.inference_mode()
    def predict(
        self, crops: Sequence[NDArray[np.uint8]], resolution: int
    ) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Returns for each model, in order, what ``Predictor.predict`` returns for its crops.

        Args:
            crops: for each model (N, S, S, 3) uint8 RGB; N may differ and may be 0, S may not differ.
            resolution: side in pixels that all are resized to.
        """
        counts = [len(of) for of in crops]
        if sum(counts) == 0:
            return [(np.zeros(0, np.int64), np.zeros(0, np.float32)) for _ in counts]
        pixels = torch.from_numpy(np.concatenate(crops)).to(self._device)
        features = self._features(self._shared(resized(normalised(pixels), resolution)), counts)
        scores = [
            head(of).softmax(dim=1).max(dim=1)
            for head, of in zip(self._heads, torch.split(features, counts), strict=True)
        ]
        # All heads are launched before the first result is waited for.
        return [(index.cpu().numpy(), best.cpu().numpy()) for best, index in scores]

    def _features(self, activations: Tensor, counts: Sequence[int]) -> Tensor:
        """Maps (ΣN, C, h, w) after the shared blocks, model by model, to (ΣN, F)."""
        if self._joined is None:
            return pool(activations)
        # Joined modules take equally many crops of each model; missing ones are zeros, and left out again.
        most = max(counts)
        is_crop = torch.arange(most) < torch.tensor(counts)[:, None]
        is_crop = is_crop.to(self._device)
        together = activations.new_zeros((len(counts), most, *activations.shape[1:]))
        together[is_crop] = activations
        return self._joined(together).mean(dim=(3, 4))[is_crop]


def common_blocks(models: Sequence[EdgeModel]) -> int:
    """Returns the number of first blocks that have the same weights and statistics in all models."""

    def is_alike(blocks: tuple[nn.Module, ...]) -> bool:
        first, *others = blocks
        return all(same_weights(first, other) for other in others)

    return len(list(takewhile(is_alike, zip(*(model.blocks for model in models), strict=True))))


def _grouped(modules: Sequence[nn.Module]) -> Joined:
    """Joins modules into one with K times the channels, whose grouped convolutions keep models separate."""
    wide = copy.deepcopy(modules[0])
    # Only convolutions have weights: ``prepared`` has folded normalisations into them.
    for name, module in wide.named_modules():
        if isinstance(module, nn.Conv2d):
            module.groups *= len(modules)
            for weights, _ in list(module.named_parameters()):
                # A grouped kernel has the outputs of all groups, but the inputs of one.
                together = torch.cat([of.get_parameter(f"{name}.{weights}") for of in modules])
                setattr(module, weights, nn.Parameter(together, requires_grad=False))

    def joined(images: Tensor) -> Tensor:
        answers: Tensor = wide(images.transpose(0, 1).flatten(1, 2))
        crops, channels, *pixels = answers.shape
        return answers.reshape(crops, len(images), channels // len(images), *pixels).transpose(0, 1)

    return joined


def _joined(modules: Sequence[nn.Module], before: nn.Module) -> Joined:
    """Joins modules if outputs do not change: blocks that mix channels themselves cannot be grouped."""
    device = next(modules[0].parameters()).device
    made = torch.Generator().manual_seed(0)
    noise = torch.randn(len(modules), 3, _CHECKED_SIDE, _CHECKED_SIDE, generator=made).to(device)
    with torch.inference_mode():
        inputs = before(noise)[:, None]
        expected = torch.stack([module(of) for module, of in zip(modules, inputs, strict=True)])
        try:
            joined = _grouped(modules)
            error = relative_error(joined(inputs), expected)
        except RuntimeError as refused:
            raise ValueError(f"these blocks cannot be joined: {refused}") from refused
    if error > MOST_ERROR:
        raise ValueError(f"these blocks cannot be joined: their answers would be off by {error:.2g}")
    return joined


_PASS_CROPS = 256


@dataclass(frozen=True, slots=True, eq=False)
class SharedTrunk:
    """Activations of crops after the first blocks, which a family of models has in common.

    Attributes:
        activations: (N, …) float32 at the boundary; (N, F) features if no block is left.
        blocks_left: number of blocks from the boundary to the head; models may differ in these.
    """

    activations: Tensor
    blocks_left: int

    @staticmethod
    def from_crops(
        model: EdgeModel, blocks_left: int, crops: NDArray[np.uint8], resolution: int, device: str = "cpu"
    ) -> "SharedTrunk":
        """Passes (N, S, S, 3) uint8 RGB crops, at a resolution, through all but the last ``blocks_left``.

        Args:
            model: any model of the family.
            blocks_left: number of blocks, counted from the end, that the family does not have in common.

        Raises:
            ValueError: the model is a detector.
        """
        if model.detector is not None:
            raise ValueError(f"{model.architecture} detects; only classifiers share a trunk's activations")
        shared = prepared(split_at(model, blocks_left)[0], device, PLAIN)

        def pass_crops(part: Tensor) -> Tensor:
            activations: Tensor = shared(resized(to_input(part.numpy(), device), resolution))
            return activations

        return SharedTrunk(_in_parts(pass_crops, torch.from_numpy(crops)), blocks_left)

    def without_blocks(self, model: EdgeModel) -> "SharedTrunk":
        """Returns the features of the crops, for models that differ from this one in the head only."""
        if not self.blocks_left:
            return self
        ready = self._prepared(split_at(model, self.blocks_left)[1].blocks)
        return SharedTrunk(_in_parts(lambda part: pool(ready(part)), self.activations), 0)

    def select_crops(self, rows: NDArray[np.int64]) -> "SharedTrunk":
        """Returns these crops, in this order."""
        return SharedTrunk(self.activations[torch.from_numpy(rows)], self.blocks_left)

    def predict(self, model: EdgeModel) -> NDArray[np.int64]:
        """Returns the (N,) class of each crop, an index into the model's classes."""
        ready = self._prepared(split_at(model, self.blocks_left)[1])
        answers: NDArray[np.int64] = (
            _in_parts(lambda part: ready(part).argmax(dim=1), self.activations).cpu().numpy()
        )
        return answers

    def _prepared(self, module: nn.Module) -> nn.Module:
        return prepared(module, str(self.activations.device), PLAIN)


@torch.inference_mode()
def _in_parts(call: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """Passes (N, …) rows on, at most ``_PASS_CROPS`` at a time, which bounds the memory of activations."""
    return torch.cat([call(part) for part in torch.split(rows, _PASS_CROPS)])


_LOG = logging.getLogger(__name__)

ClassAnswer = tuple[NDArray[np.int64], NDArray[np.float32]]
"""Classes and confidences, as ``Predictor.predict`` returns them."""

Answer = ClassAnswer | BoxCandidates
"""Answer of a classifier to crops, or of a detector to images."""

AnyPredictor = Predictor | DetectorPredictor


class Predictors:
    """Creates the predictors of one process. Methods may be called by any thread.

    A retraining changes a model's head, and perhaps its last blocks. The other blocks equal those of earlier
    models and of other streams' models. They are held and prepared once: preparing a whole model takes as
    long as dozens of frames.

    Args:
        device: torch device on which they run.
        way: options of their forward passes.
    """

    def __init__(self, device: str = "cpu", way: ForwardWay = PLAIN) -> None:
        self.device = device
        self.way = way
        self._making = threading.Lock()
        # Weak, so that blocks are freed with the last predictor that uses them.
        self._made: WeakSet[AnyPredictor] = WeakSet()

    def predictor_for(self, model: EdgeModel) -> AnyPredictor:
        """Returns a predictor of a model that must not change any more; equal models have the same one.

        Blocks of earlier models with the same weights, on the same device, replace the model's blocks.
        """
        with self._making:
            ready = self._share_blocks(model)
            made = next((one for one in self._made if _is_same(one.source, model)), None)
            if made is not None:
                return made
            of_task = Predictor if model.detector is None else DetectorPredictor
            predictor: AnyPredictor = of_task(model, self.device, self.way, ready=ready)
            self._made.add(predictor)
        return predictor

    def _share_blocks(self, model: EdgeModel) -> dict[int, nn.Module]:
        """Replaces blocks; returns those that are prepared already, by the ``id`` of the model's block."""
        ready: dict[int, nn.Module] = {}
        kin = [one for one in self._made if one.source.architecture == model.architecture]
        for at, block in enumerate(model.blocks):
            # Many models may hold the same block, which is compared once.
            known = {id(one.source.blocks[at]): one for one in kin}
            like = next((one for one in known.values() if _is_like(one.source.blocks[at], block)), None)
            if like is None:
                continue
            model.blocks[at] = like.source.blocks[at]
            # A half-precision copy is cast from a 32-bit one and checked as a whole.
            if like.dtype == torch.float32:
                ready[id(model.blocks[at])] = like.model.blocks[at]
        return ready


def _is_same(source: EdgeModel, model: EdgeModel) -> bool:
    """Returns whether a model, whose equal blocks were replaced by the source's, answers as the source."""
    outputs = [(of.architecture, of.classes, of.head_width, *of.blocks) for of in (source, model)]
    return outputs[0] == outputs[1] and _is_like(source.head, model.head)


def _is_like(one: nn.Module, other: nn.Module) -> bool:
    devices = {weights.device for block in (one, other) for weights in block.parameters()}
    return len(devices) <= 1 and same_weights(one, other)


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """Request to a model: crops or images (N, S, S, 3) uint8 RGB, N may be 0, at a resolution."""

    predictor: AnyPredictor
    crops: NDArray[np.uint8]
    resolution: int


@dataclass(frozen=True, slots=True, eq=False)
class _Joined:
    """The newest models of all owners joined into one predictor, and the place of each in it."""

    predictor: BatchedPredictor
    places: Mapping[AnyPredictor, int]


class MultiModelPredictor:
    """Gives the same answers as each model alone. Any thread may add; one thread at a time may predict.

    Requests to one predictor are one batch. Blocks that several models share run once, on the images of all
    of these. From the first different block on, each runs separately or, if the way says so, all are joined.
    A request names the predictor, and so the weights, that serves its owner. So owners need not hot-swap at
    the same moment: while a join is not ready, a predictor that is missing in it runs separately.

    Attributes:
        predictors: makes the predictors of all requests, with shared blocks.
    """

    def __init__(self, device: str = "cpu", way: ForwardWay = PLAIN) -> None:
        self.predictors = Predictors(device, way)
        self._adding = threading.Lock()
        self._newest: dict[Hashable, AnyPredictor] = {}
        self._joined: _Joined | None = None

    def add_owner(self, owner: Hashable, predictor: AnyPredictor) -> None:
        """Prepares an owner's newest weights, while the previous ones still serve. Takes time."""
        with self._adding:
            self._newest[owner] = predictor
            self._join()

    def remove_owner(self, owner: Hashable) -> None:
        """Removes an owner."""
        with self._adding:
            self._newest.pop(owner, None)
            self._join()

    @torch.inference_mode()
    def predict(self, requests: Sequence[Request]) -> list[Answer]:
        """Returns the answer to each request, in order."""
        # Read once: another thread may replace it during the call.
        joined = self._joined
        same = _places_by(lambda one: (one.predictor, one.resolution, one.crops.shape[1:]), requests)
        batches = [_one_batch([requests[place] for place in places]) for places in same]
        answers: dict[int, Answer] = {}
        for kind in _places_by(lambda one: _kind_of(one, joined), batches):
            found = self._together([batches[at] for at in kind], joined)
            for at, answer in zip(kind, found, strict=True):
                counts = [len(requests[place].crops) for place in same[at]]
                answers.update(zip(same[at], _split(answer, counts), strict=True))
        return [answers[place] for place in range(len(requests))]

    def _together(self, requests: Sequence[Request], joined: _Joined | None) -> Sequence[Answer]:
        """Answers requests of one kind, to different predictors, together."""
        first, *others = requests
        if not others:
            return [first.predictor.predict(first.crops, first.resolution)]
        if joined is None:
            together = np.concatenate([one.crops for one in requests])
            images = first.predictor.load_images(together, first.resolution)
            return first.predictor.read_scores(_scores(requests, images))
        crops = [first.crops[:0]] * len(joined.places)
        for one in requests:
            crops[joined.places[one.predictor]] = one.crops
        answers = joined.predictor.predict(crops, first.resolution)
        return [answers[joined.places[one.predictor]] for one in requests]

    def _join(self) -> None:
        """Joins classifiers if the way says so and there are several; if that fails, they run separately."""
        owned = dict.fromkeys(self._newest.values())
        newest = [one for one in owned if not isinstance(one, DetectorPredictor)]
        way = self.predictors.way
        self._joined = None
        if not way.grouped or len(newest) < 2:
            return
        try:
            sources = [one.source for one in newest]
            together = BatchedPredictor(sources, self.predictors.device, way)
        except ValueError as refused:
            _LOG.warning("models run one by one: %s", refused)
            return
        self._joined = _Joined(together, {predictor: place for place, predictor in enumerate(newest)})


def _places_by(key: Callable[[Request], Hashable], requests: Sequence[Request]) -> list[list[int]]:
    """Returns the places of the requests that have one key, for each key."""
    groups: dict[Hashable, list[int]] = {}
    for place, one in enumerate(requests):
        groups.setdefault(key(one), []).append(place)
    return list(groups.values())


def _kind_of(request: Request, joined: _Joined | None) -> Hashable:
    """Returns what requests that are answered together have in common."""
    predictor, images = request.predictor, request.crops
    if joined is not None and predictor not in joined.places:
        return request
    if len(images) == 0 or not predictor.shares_blocks:
        return request
    return type(predictor), predictor.dtype, request.resolution, images.shape[1:]


def _one_batch(requests: Sequence[Request]) -> Request:
    """Returns requests to one predictor as one."""
    first, *others = requests
    if not others:
        return first
    return replace(first, crops=np.concatenate([one.crops for one in requests]))


def _split(answer: Answer, counts: Sequence[int]) -> list[Answer]:
    """Returns the parts of an answer to this many images each."""
    parts = [slice(*of) for of in pairwise(accumulate(counts, initial=0))]
    if isinstance(answer, BoxCandidates):
        return [answer.select_images(part) for part in parts]
    classes, confidence = answer
    return [(classes[part], confidence[part]) for part in parts]


def _scores(requests: Sequence[Request], images: Tensor, at: int = 0) -> list[Tensor]:
    """Returns (n, …) float32 scores for each request; their models share all blocks before ``at``.

    Args:
        requests: at least one.
        images: (Σn, …), inputs of block ``at`` for the images of all requests, in order.
        at: index of a block; the head follows the last one.
    """
    # Where source blocks are equal, so are the prepared ones: those of the first request stand for all.
    first = requests[0].predictor
    blocks = first.model.blocks
    while at <= len(blocks) and len({_part_of(one, at) for one in requests}) == 1:
        images = blocks[at](images) if at < len(blocks) else first.score_maps(images)
        at += 1
    parts = torch.split(images, [len(one.crops) for one in requests])
    if at > len(blocks):
        return list(parts)
    scores: dict[int, Tensor] = {}
    for places in _places_by(lambda one: _part_of(one, at), requests):
        inputs = torch.cat([parts[place] for place in places])
        scores.update(zip(places, _scores([requests[place] for place in places], inputs, at), strict=True))
    return [scores[place] for place in range(len(requests))]


def _part_of(request: Request, at: int) -> nn.Module:
    """Returns the source's block, which equal models share, or head; halved ones are not shared."""
    source = request.predictor.source
    return source.blocks[at] if at < len(source.blocks) else source.head

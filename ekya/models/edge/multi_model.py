"""Runs the models of several owners in one call, each on separate crops, while models are hot swapped."""

import logging
import threading
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ekya.models.edge.batched import BatchedPredictor, same_weights
from ekya.models.edge.detection.predictor import DetectorPredictor
from ekya.models.edge.detection.read_objects import Candidates
from ekya.models.edge.forward import PLAIN, ForwardWay
from ekya.models.edge.model import EdgeModel, pool
from ekya.models.edge.predictor import Predictor, on_device

_LOG = logging.getLogger(__name__)

ClassAnswer = tuple[NDArray[np.int64], NDArray[np.float32]]
"""Classes and confidences, as ``Predictor.predict`` returns them."""

Answer = ClassAnswer | Candidates
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
        self._made: WeakSet[AnyPredictor] = WeakSet()

    def of(self, model: EdgeModel) -> AnyPredictor:
        """Returns a predictor of a model that must not change any more.

        Blocks of earlier models with the same weights, on the same device, replace the model's blocks.
        """
        with self._making:
            ready = self._share_blocks(model)
            predictor: AnyPredictor
            if model.detector is None:
                predictor = Predictor(model, self.device, self.way, ready=ready)
            else:
                predictor = DetectorPredictor(model, self.device, self.way, ready)
            self._made.add(predictor)
        return predictor

    def _share_blocks(self, model: EdgeModel) -> dict[int, nn.Module]:
        """Replaces blocks; returns those that are prepared already, by the ``id`` of the model's block."""
        ready: dict[int, nn.Module] = {}
        kin = [one for one in self._made if one.source.architecture == model.architecture]
        for at, block in enumerate(model.blocks):
            known = {id(one.source.blocks[at]): one for one in kin}
            like = next((one for one in known.values() if _is_like(one.source.blocks[at], block)), None)
            if like is None:
                continue
            model.blocks[at] = like.source.blocks[at]
            if like.dtype == torch.float32:
                ready[id(model.blocks[at])] = like.model.blocks[at]
        return ready


def _is_like(one: nn.Module, other: nn.Module) -> bool:
    return _device_of(one) == _device_of(other) and same_weights(one, other)


def _device_of(block: nn.Module) -> torch.device | None:
    return next((weights.device for weights in block.parameters()), None)


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

    Blocks that several classifiers share run once, on the crops of all of these. From the first different
    block on, each runs separately or, if the way says so, all are joined. A request names the predictor, and
    so the weights, that serves its owner. So owners need not hot-swap at the same moment: while a join is not
    ready, a predictor that is missing in it runs separately. Detectors always run separately.

    Attributes:
        predictors: makes the predictors of all requests, with shared blocks.
    """

    def __init__(self, device: str = "cpu", way: ForwardWay = PLAIN) -> None:
        self.predictors = Predictors(device, way)
        self._adding = threading.Lock()
        self._newest: dict[Hashable, AnyPredictor] = {}
        self._joined: _Joined | None = None

    def add(self, owner: Hashable, predictor: AnyPredictor) -> None:
        """Prepares an owner's newest weights, while the previous ones still serve. Takes time."""
        with self._adding:
            self._newest[owner] = predictor
            self._join()

    def remove(self, owner: Hashable) -> None:
        """Removes an owner."""
        with self._adding:
            self._newest.pop(owner, None)
            self._join()

    @torch.inference_mode()
    def predict(self, requests: Sequence[Request]) -> list[Answer]:
        """Returns the answer to each request, in order."""
        joined = self._joined
        kinds: dict[Hashable, list[int]] = {}
        for place, one in enumerate(requests):
            alone = len(one.crops) == 0 or (joined is not None and one.predictor not in joined.places)
            kind = place if alone else (type(one.predictor), one.resolution, one.predictor.dtype)
            kinds.setdefault(kind, []).append(place)
        answers: dict[int, Answer] = {}
        for places in kinds.values():
            found = self._together([requests[place] for place in places], joined)
            answers.update(zip(places, found, strict=True))
        return [answers[place] for place in range(len(requests))]

    def _together(self, requests: Sequence[Request], joined: _Joined | None) -> Sequence[Answer]:
        """Answers requests of one resolution and type together."""
        first, *others = requests
        if not others or isinstance(first.predictor, DetectorPredictor):
            return [one.predictor.predict(one.crops, one.resolution) for one in requests]
        if joined is None:
            pixels = on_device(np.concatenate([one.crops for one in requests]), self.predictors.device)
            images = first.predictor.images(pixels, first.resolution)
            best = [of.max(dim=1) for of in _scores(requests, images)]
            return [(index.cpu().numpy(), sure.cpu().numpy()) for sure, index in best]
        crops = [first.crops[:0]] * len(joined.places)
        for one in requests:
            crops[joined.places[one.predictor]] = one.crops
        answers = joined.predictor.predict(crops, first.resolution)
        return [answers[joined.places[one.predictor]] for one in requests]

    def _join(self) -> None:
        """Joins classifiers if the way says so and there are several; if that fails, they run separately."""
        newest = [one for one in self._newest.values() if not isinstance(one, DetectorPredictor)]
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


def _scores(requests: Sequence[Request], images: Tensor, at: int = 0) -> list[Tensor]:
    """Returns (n, C) float32 for each request; their models share all blocks before ``at``.

    Args:
        requests: at least one.
        images: (Σn, …), inputs of block ``at`` for the crops of all requests, in order.
        at: index of a block, or the number of blocks.
    """
    blocks = requests[0].predictor.model.blocks
    while at < len(blocks) and len({_block_of(one, at) for one in requests}) == 1:
        images = blocks[at](images)
        at += 1
    parts = torch.split(images, [len(one.crops) for one in requests])
    if at == len(blocks):
        heads = [one.predictor.model.head for one in requests]
        return [head(pool(part)).float().softmax(dim=1) for head, part in zip(heads, parts, strict=True)]
    groups: dict[nn.Module, list[int]] = {}
    for place, one in enumerate(requests):
        groups.setdefault(_block_of(one, at), []).append(place)
    scores: dict[int, Tensor] = {}
    for places in groups.values():
        inputs = torch.cat([parts[place] for place in places])
        scores.update(zip(places, _scores([requests[place] for place in places], inputs, at), strict=True))
    return [scores[place] for place in range(len(requests))]


def _block_of(request: Request, at: int) -> nn.Module:
    """Returns the source's block, which equal models share; prepared ones in 16 bits are not shared."""
    return request.predictor.source.blocks[at]

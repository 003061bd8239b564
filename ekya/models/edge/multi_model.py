"""Runs the models of several owners in one call, each on separate crops, while models are hot swapped."""

import itertools
import logging
import threading
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ekya.models.edge.batched import BatchedPredictor, same_weights
from ekya.models.edge.forward import PLAIN, ForwardWay
from ekya.models.edge.model import EdgeModel, pool
from ekya.models.edge.predictor import Predictor, on_device

_LOG = logging.getLogger(__name__)

Answer = tuple[NDArray[np.int64], NDArray[np.float32]]
"""Classes and confidences, as ``Predictor.predict`` returns them."""


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """A model that can run together with others.

    Attributes:
        model: must not change any more.
        predictor: of the model.
        lineage: a number for each block. Two models have the same number if that block, and all blocks before
            it, are equal in both.
    """

    model: EdgeModel
    predictor: Predictor
    lineage: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """Request to a model: crops (N, S, S, 3) uint8 RGB, N may be 0, at a resolution."""

    member: Member
    crops: NDArray[np.uint8]
    resolution: int


@dataclass(frozen=True, slots=True, eq=False)
class _Joined:
    """The newest models of all owners joined into one predictor, and the place of each in it."""

    predictor: BatchedPredictor
    places: Mapping[Member, int]


class MultiModelPredictor:
    """Gives the same answers as each model alone. Any thread may add; one thread at a time may predict.

    Blocks that are equal in several models run once, on the crops of all of these. From the first different
    block on, each model runs separately or, if the way says so, all are joined. A request names the member,
    and so the weights, that serves its owner. So owners need not hot-swap at the same moment: while a join is
    not ready, a member that is missing in it runs separately.

    Args:
        device: torch device on which the predictors are.
        way: options of their forward passes.
    """

    def __init__(self, device: str = "cpu", way: ForwardWay = PLAIN) -> None:
        self._device = device
        self._way = way
        self._adding = threading.Lock()
        self._numbers = itertools.count()
        self._newest: dict[Hashable, Member] = {}
        self._joined: _Joined | None = None

    def add(self, owner: Hashable, model: EdgeModel, predictor: Predictor) -> Member:
        """Prepares an owner's newest weights, while the previous ones still serve. Takes time."""
        with self._adding:
            member = Member(model, predictor, self._lineage(model))
            self._newest[owner] = member
            self._join()
        return member

    def remove(self, owner: Hashable) -> None:
        """Removes an owner."""
        with self._adding:
            self._newest.pop(owner, None)
            self._join()

    @torch.inference_mode()
    def predict(self, asked: Sequence[Asked]) -> list[Answer]:
        """Returns the answer to each request, in order."""
        joined = self._joined
        kinds: dict[Hashable, list[int]] = {}
        for place, one in enumerate(asked):
            alone = len(one.crops) == 0 or (joined is not None and one.member not in joined.places)
            kind = place if alone else (one.resolution, one.member.predictor.dtype)
            kinds.setdefault(kind, []).append(place)
        answers: dict[int, Answer] = {}
        for places in kinds.values():
            found = self._together([asked[place] for place in places], joined)
            answers.update(zip(places, found, strict=True))
        return [answers[place] for place in range(len(asked))]

    def _together(self, asked: Sequence[Asked], joined: _Joined | None) -> Sequence[Answer]:
        """Answers requests of one resolution and type together."""
        first, *others = asked
        if not others:
            return [first.member.predictor.predict(first.crops, first.resolution)]
        if joined is None:
            pixels = on_device(np.concatenate([one.crops for one in asked]), self._device)
            images = first.member.predictor.images(pixels, first.resolution)
            scores = _scores([one.member for one in asked], [len(one.crops) for one in asked], images)
            best = [of.max(dim=1) for of in scores]
            return [(index.cpu().numpy(), sure.cpu().numpy()) for sure, index in best]
        crops = [first.crops[:0]] * len(joined.places)
        for one in asked:
            crops[joined.places[one.member]] = one.crops
        answers = joined.predictor.predict(crops, first.resolution)
        return [answers[joined.places[one.member]] for one in asked]

    def _lineage(self, model: EdgeModel) -> tuple[int, ...]:
        lineage: list[int] = []
        kin = [one for one in self._newest.values() if one.model.architecture == model.architecture]
        for at, block in enumerate(model.blocks):
            kinds = {one.lineage[at]: one for one in kin}
            alike = (number for number, one in kinds.items() if same_weights(block, one.model.blocks[at]))
            number = next(alike, None)
            kin = [one for one in kin if one.lineage[at] == number]
            lineage.append(next(self._numbers) if number is None else number)
        return tuple(lineage)

    def _join(self) -> None:
        """Joins the members if the way says so and there are several; if that fails, they run separately."""
        members = list(self._newest.values())
        self._joined = None
        if self._way.joining is None or len(members) < 2:
            return
        models = [one.model for one in members]
        try:
            together = BatchedPredictor(models, self._way.joining, self._device, self._way)
        except ValueError as refused:
            _LOG.warning("models are asked one by one: %s", refused)
            return
        self._joined = _Joined(together, {member: place for place, member in enumerate(members)})


def _scores(members: Sequence[Member], counts: Sequence[int], images: Tensor, at: int = 0) -> list[Tensor]:
    """Returns (n, C) float32 for each member; the members are equal before block ``at``.

    Args:
        members: at least one.
        counts: number of crops of each member, in order.
        images: (Σn, …), inputs of block ``at``.
        at: index of a block, or the number of blocks.
    """
    blocks = members[0].predictor.model.blocks
    while at < len(blocks) and len({one.lineage[at] for one in members}) == 1:
        images = blocks[at](images)
        at += 1
    parts = torch.split(images, list(counts))
    if at == len(blocks):
        heads = [one.predictor.model.head for one in members]
        return [head(pool(part)).float().softmax(dim=1) for head, part in zip(heads, parts, strict=True)]
    scores: dict[int, Tensor] = {}
    for number in sorted({one.lineage[at] for one in members}):
        alike = [place for place, one in enumerate(members) if one.lineage[at] == number]
        passed = _scores(
            [members[place] for place in alike],
            [counts[place] for place in alike],
            torch.cat([parts[place] for place in alike]),
            at,
        )
        scores.update(zip(alike, passed, strict=True))
    return [scores[place] for place in range(len(members))]

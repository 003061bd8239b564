"""Models of several owners asked in one call, each about crops of its own, while weights come and go."""

import itertools
import logging
import threading
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ekya.learning.batched import BatchedPredictor, same_weights
from ekya.learning.edge import EdgeModel, pool
from ekya.learning.forward import PLAIN, ForwardWay
from ekya.learning.predictor import Predictor, on_device

_LOG = logging.getLogger(__name__)

Answer = tuple[NDArray[np.int64], NDArray[np.float32]]
"""Classes and confidences, as ``Predictor.predict`` gives them."""


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """A model that can be asked together with others.

    Attributes:
        model: must not change any more.
        predictor: of the model.
        lineage: a number for each block. Two models have the same one where that block, and all before it,
            are alike in both.
    """

    model: EdgeModel
    predictor: Predictor
    lineage: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """What a model is asked: crops (N, S, S, 3) uint8 RGB, N may be 0, at a resolution."""

    member: Member
    crops: NDArray[np.uint8]
    resolution: int


@dataclass(frozen=True, slots=True, eq=False)
class _Joined:
    """The newest models of all owners in one, and the place of each in it."""

    predictor: BatchedPredictor
    places: Mapping[Member, int]


class OneCall:
    """Answers as each model by itself would. Any thread may add; one at a time asks.

    Blocks that models have alike see the crops of all of those in one batch. From the first on that differ,
    each model goes on by itself, or, where the way says so, all are joined. Whoever asks says which weights
    serve its owner. So nothing need be exchanged at the same moment everywhere: while a join is not ready,
    what is missing in it is asked by itself.

    Args:
        device: torch's name of where the predictors are.
        way: how they run.
    """

    def __init__(self, device: str = "cpu", way: ForwardWay = PLAIN) -> None:
        self._device = device
        self._way = way
        self._adding = threading.Lock()
        self._numbers = itertools.count()
        self._newest: dict[Hashable, Member] = {}
        self._joined: _Joined | None = None

    def add(self, owner: Hashable, model: EdgeModel, predictor: Predictor) -> Member:
        """Makes ready an owner's newest weights, while those before them are still asked. Takes time."""
        with self._adding:
            member = Member(model, predictor, self._lineage(model))
            self._newest[owner] = member
            self._join()
        return member

    def remove(self, owner: Hashable) -> None:
        """An owner is gone."""
        with self._adding:
            self._newest.pop(owner, None)
            self._join()

    @torch.inference_mode()
    def predict(self, asked: Sequence[Asked]) -> list[Answer]:
        """What each is answered, in order."""
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
        """At one resolution."""
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
        """Where the way says so and there are several; those that cannot be joined are asked one by one."""
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
    """Of each member (n, C) float32; members that are alike before block ``at`` go on together.

    Args:
        members: at least one.
        counts: how many of the crops are whose, in order.
        images: (Σn, …), as block ``at`` takes them.
        at: position of a block, or their number.
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

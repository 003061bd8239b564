"""Caches activations and features of frozen blocks, for reuse between micro-profiling and retraining."""

from collections.abc import Callable
from hashlib import blake2b

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class ActivationCache:
    """Cache of one model's activations at freeze boundaries, by the crops' pixels.

    A boundary is identified by the number of trainable blocks after it. Activations are kept in float32 on
    the CPU: a few hundred kilobytes, which move between processes in the time that a crop or two take to
    pass.
    """

    def __init__(self) -> None:
        self._rows: dict[int, dict[bytes, int]] = {}
        self._activations: dict[int, Tensor] = {}

    def find_cached(self, trainable_blocks: int, crops: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Returns (N,) bool: which of (N, S, S, 3) crops are cached for this boundary."""
        rows = self._rows.get(trainable_blocks, {})
        return np.fromiter((key in rows for key in _keys(crops)), np.bool_, len(crops))

    def store_activations(self, trainable_blocks: int, crops: NDArray[np.uint8], activations: Tensor) -> None:
        """Adds the (N, …) activations of (N, S, S, 3) crops at this boundary."""
        rows = self._rows.setdefault(trainable_blocks, {})
        new: dict[bytes, int] = {}
        for place, key in enumerate(_keys(crops)):
            if key not in rows:
                new.setdefault(key, place)
        if not new:
            return
        first = len(rows)
        added = (
            activations[torch.tensor(list(new.values()), device=activations.device)].detach().float().cpu()
        )
        kept = self._activations.get(trainable_blocks)
        self._activations[trainable_blocks] = added if kept is None else torch.cat([kept, added])
        # Last, so that a concurrent copy finds the activations of every row.
        rows.update({key: first + place for place, key in enumerate(new)})

    def copy(self) -> "ActivationCache":
        """Returns a snapshot for another process; another thread may add crops meanwhile."""
        copied = ActivationCache()
        # Rows first, as they are stored last; a boundary without rows may have no activations yet.
        copied._rows = {blocks: dict(rows) for blocks, rows in dict(self._rows).items() if rows}
        copied._activations = {blocks: self._activations[blocks] for blocks in copied._rows}
        return copied

    def completed(
        self,
        trainable_blocks: int,
        crops: NDArray[np.uint8],
        through: Callable[[NDArray[np.uint8]], Tensor],
        device: str,
    ) -> Tensor:
        """Returns the (N, …) activations of (N, S, S, 3) crops, on the device; new ones go ``through``."""
        known = self.find_cached(trainable_blocks, crops)
        if not known.any():
            return through(crops)
        rows = self._rows[trainable_blocks]
        there = torch.tensor([rows[key] for key in _keys(crops[known])])
        parts = [self._activations[trainable_blocks][there].to(device)]
        if not known.all():
            # Cached activations are in 32 bits, new ones may be in half precision.
            parts.append(through(crops[~known]).float())
        # Sorting the positions inverts the order in which known and new crops were joined.
        places = np.argsort(np.concatenate([np.flatnonzero(known), np.flatnonzero(~known)]))
        return torch.cat(parts)[torch.from_numpy(places).to(device)]


def _keys(crops: NDArray[np.uint8]) -> list[bytes]:
    return [blake2b(crop.tobytes(), digest_size=16).digest() for crop in crops]

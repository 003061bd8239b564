"""Splits the measured use of one share among the streams that it is shared by."""

import threading
from collections import Counter
from collections.abc import Hashable

from ekya.gpu.protocol import Measured, ShareHandle


class SharedUse:
    """Charges each owner its part of a handle's measured use, in proportion to its analysed pictures.

    A batched call for all streams has only one measured cost. Thread-safe. Nothing else may call the handle's
    ``measured``, which counts from one call to the next.
    """

    def __init__(self, handle: ShareHandle) -> None:
        self._handle = handle
        self._lock = threading.Lock()
        self._looked_at: Counter[Hashable] = Counter()
        self._open_us = 0.0
        self._used_us: dict[Hashable, float] = {}
        self._wall_us = 0
        self._asked_at_us: dict[Hashable, int] = {}

    def enter(self, owner: Hashable) -> None:
        """Adds an owner."""
        with self._lock:
            self._share_out()
            self._used_us[owner], self._asked_at_us[owner] = 0.0, self._wall_us

    def leave(self, owner: Hashable) -> None:
        """Removes an owner."""
        with self._lock:
            self._share_out()
            self._used_us.pop(owner, None)
            self._asked_at_us.pop(owner, None)

    def count(self, owner: Hashable, pictures: int) -> None:
        """Counts pictures that were analysed for an owner."""
        with self._lock:
            if owner in self._used_us:
                self._looked_at[owner] += pictures

    def measured(self, owner: Hashable) -> Measured:
        """Returns the use of an owner since the last call, or since it entered.

        Raises:
            KeyError: the owner has not entered.
        """
        with self._lock:
            self._share_out()
            wall_us = self._wall_us - self._asked_at_us[owner]
            used_us = round(self._used_us[owner])
            self._used_us[owner], self._asked_at_us[owner] = 0.0, self._wall_us
            return Measured(used_us, wall_us)

    def _share_out(self) -> None:
        whole = self._handle.measured()
        self._wall_us += whole.wall_us
        self._open_us += whole.used_us
        pictures = self._looked_at.total()
        if not pictures:
            return
        for owner, count in self._looked_at.items():
            self._used_us[owner] += self._open_us * count / pictures
        self._looked_at.clear()
        self._open_us = 0.0

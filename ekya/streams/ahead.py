"""Reads ahead: a thread prepares the next items while the consumer works on the current one."""

from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_Item = TypeVar("_Item")


class _End:
    """Sentinel behind the last item."""


_END = _End()


def read_ahead(items: Generator[_Item, None, None], count: int) -> Generator[_Item, None, None]:
    """Yields the same items in the same order, up to ``count`` of them made in advance.

    An exception of the generator is raised where its item would have come. Closing this iterator also closes
    the generator, once the item in progress is made.
    """
    with ThreadPoolExecutor(1, "read-ahead") as pool:
        coming: deque[Future[_Item | _End]] = deque(pool.submit(next, items, _END) for _ in range(count))
        try:
            while not isinstance(item := coming.popleft().result(), _End):
                coming.append(pool.submit(next, items, _END))
                yield item
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            items.close()

"""Reading ahead: a thread that has the next items ready while somebody is busy with these."""

from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_Item = TypeVar("_Item")


class _End:
    """Stands behind the last item."""


_END = _End()


def read_ahead(items: Generator[_Item, None, None], count: int) -> Generator[_Item, None, None]:
    """The same items in the same order, of which up to ``count`` were made before they are asked for.

    What making them raises is raised where the item would have come. When this iterator is closed, the
    generator is too, after the item that is being made.
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

"""Cases of a recipe that several processes work on."""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Annotated, TypeVar

import typer
from city_windows import one_thread
from rich.console import Console
from rich.progress import track

Jobs = Annotated[int, typer.Option(min=1, help="Cases at a time, each in a process of its own.")]

_CaseT = TypeVar("_CaseT")
_FoundT = TypeVar("_FoundT")


def run_cases(
    work: Callable[[_CaseT], _FoundT], cases: Sequence[_CaseT], jobs: int, console: Console
) -> Iterator[_FoundT]:
    """Yields the results of all cases in their order; several at a time run in processes of one thread."""
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, fresh, initializer=_begin_worker) as pool:
        try:
            yield from track(pool.map(work, cases), "cases", len(cases), console=console, transient=True)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _begin_worker() -> None:
    one_thread()
    threading.Thread(target=end_with_parent, daemon=True).start()


def end_with_parent() -> None:
    """Ends this process when the one that made it is gone: workers of a killed recipe would wait for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)

"""Ends a service process whose Ray has died or hangs: only a new process can start Ray again.

Otherwise the death of Ray's node would look like that of every worker, which it takes with it, and again at
each attempt to start one: all cameras would be set aside. A service whose control store has died serves for
a minute, but starts nothing; one whose control store hangs starts nothing either, as long as that lasts.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial

import psutil

from ekya.system.http2 import speaks_http2
from ekya.system.processes import runs_executable, still_runs

_LOG = logging.getLogger(__name__)

_PROCESSES = ("raylet", "gcs_server")
_EVERY_S = 0.1
"""Soon: what the loop hears of dying workers is forgotten at a restart if no window has opened since."""

_ASK_EVERY_S, _ASK_AGAIN_S = 2.0, 0.5
_ANSWER_S, _UNANSWERED = 3.0, 5
"""A process hangs that leaves this number of greetings in a row unanswered, each for this time. Ray itself
gives a raylet up after half a minute, and then ends all actors. A count, since the machine may have been
stopped."""

_FAILED = 1


@contextmanager
def ended_with_ray(end: Callable[[int], object] = os._exit, answer_s: float = _ANSWER_S) -> Iterator[None]:
    """Watches Ray's processes of this process during a block, in threads of its own.

    Args:
        end: ends this process with an exit code. Without an orderly end, which would wait for Ray; the
            supervisor ends what is left.
        answer_s: time within which a process answers a greeting.
    """
    children = psutil.Process().children()
    watched = {name: one for one in children for name in _PROCESSES if runs_executable(one, name)}
    over = threading.Event()

    def fail(said: str) -> None:
        if not over.is_set():
            _LOG.error("Ray's %s; the service is started again", said)
            end(_FAILED)

    look = partial(_watch_deaths, watched, over, fail)
    threads = [threading.Thread(target=look, name="ray-watch", daemon=True)]
    for name, process in watched.items():
        if (port := _port_of(process, answer_s)) is not None:
            ask = partial(_watch_answers, name, port, answer_s, over, fail)
            threads.append(threading.Thread(target=ask, name=f"ask-{name}", daemon=True))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        threads[0].join()  # The others may wait for an answer.


def _watch_deaths(
    watched: Mapping[str, psutil.Process], over: threading.Event, fail: Callable[[str], None]
) -> None:
    while not over.wait(_EVERY_S):
        for name, process in watched.items():
            if not still_runs(process):
                fail(f"{name} has died")
                return


def _watch_answers(
    name: str, port: int, answer_s: float, over: threading.Event, fail: Callable[[str], None]
) -> None:
    unanswered = 0
    while not over.wait(_ASK_AGAIN_S if unanswered else _ASK_EVERY_S):
        unanswered = 0 if _answers(port, answer_s) else unanswered + 1
        if unanswered >= _UNANSWERED:
            fail(f"{name} hangs: it does not answer")
            return


def _port_of(process: psutil.Process, answer_s: float) -> int | None:
    """Returns a port of a process at which it answers; None where it has none, or none may be looked for."""
    with suppress(psutil.Error):
        listening = [one for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
        return next((one.laddr.port for one in listening if _answers(one.laddr.port, answer_s)), None)
    return None


def _answers(port: int, within_s: float) -> bool:
    """Returns whether a gRPC server of this machine answers a greeting."""
    try:
        return speaks_http2("127.0.0.1", port, within_s)
    except OSError:
        return False
